"""`veca bench`: time, memory and FLOPs of VECA beside full attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import tyro
from rich.console import Console

from veca.analysis.bench_report import LEGEND, UNTRAINED, notes, tables, write
from veca.analysis.benchmark import BenchConfig, run_bench
from veca.backbone.config import SIZES, BackboneConfig
from veca.cli.flags import command_line, numbers, read_flags, texts, whole_numbers
from veca.runtime import NO_PLOT
from veca.runtime.device import Precision
from veca.runtime.logging import log_to_console
from veca.runtime.timing import Effort
from veca.weights.checkpoint import model_info

DESCRIPTION = """Measure time, peak memory and FLOPs over resolutions, budgets and FFN shares.

VECA runs in turns with full attention of the same size and with its own unfolded form. Prints
tables that mark where VECA is not faster, and writes JSON, Markdown and a plot.

Example: veca bench --model small --resolutions 256,512 --budgets 8,64 --out build/bench"""


COMMON = ("model", "resolutions", "budgets", "ffn", "threads", "precision", "quick", "out")
"""Flags that --help shows."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """The flags of the command."""

    model: Annotated[str, tyro.conf.arg(metavar="SIZE|PATH")] = "small"
    """a size, or a stored model whose configuration to take; several with commas"""

    resolutions: Annotated[
        str | None, tyro.conf.arg(metavar="PIXELS,...", help_behavior_hint="")
    ] = None
    """sides of the images; 256,512,1024 if not given, 256,512 if quick"""

    budgets: Annotated[str | None, tyro.conf.arg(metavar="CORES,...", help_behavior_hint="")] = None
    """numbers of cores; 8,16,32,64 if not given, 8,64 if quick"""

    ffn: Annotated[str, tyro.conf.arg(metavar="SHARE,...")] = "0.25,1.0"
    """shares of the hidden units"""

    batch: int = 1
    """images in a call"""

    threads: int | None = None
    """torch threads; torch's default if not given"""

    rounds: int = 7
    """minimum number of rounds; each runs every case once"""

    seconds: float = 2.0
    """minimum measuring time for each case, in seconds"""

    max_seconds: float = 120.0
    """a case that took this long starts no new round; the report notes it"""

    device: str = "cpu"
    """cpu, cuda, cuda:1, ..., or auto"""

    precision: Annotated[str, tyro.conf.arg(metavar="PRECISION,...")] = "auto"
    """fp32, bf16 or auto (bf16 where the device computes it natively); fp32,bf16 measures both in
    turns and reports the ratio"""

    seed: int = 0
    """seed of weights, images and the order within a round"""

    memory: bool = True
    """measure peak memory, in a process for each case"""

    quick: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """three rounds of fewer cases"""

    out: Path = Path("build/bench")
    """folder of the report; with several models, a folder in it for each"""

    def config(self, name: str) -> BenchConfig:
        """The settings of one model."""
        backbone, digest = _backbone(name)
        if self.resolutions is not None:
            resolutions = whole_numbers("--resolutions", self.resolutions)
        else:
            resolutions = (256, 512) if self.quick else (256, 512, 1024)
        if self.budgets is not None:
            budgets = whole_numbers("--budgets", self.budgets)
        else:  # those of ours that the model has cores for
            ours = (8, 64) if self.quick else (8, 16, 32, 64)
            budgets = tuple(c for c in ours if c <= backbone.cores) or (backbone.cores,)
        return BenchConfig(
            model=name,
            backbone=backbone,
            weights_sha256=digest,
            resolutions=resolutions,
            budgets=budgets,
            shares=numbers("--ffn", self.ffn),
            batch=self.batch,
            threads=self.threads,
            device=self.device,
            precisions=cast(tuple[Precision, ...], texts("--precision", self.precision)),
            seed=self.seed,
            memory=self.memory,
            effort=Effort(
                rounds=3 if self.quick else self.rounds,
                seconds=0.0 if self.quick else min(self.seconds, self.max_seconds),
                most_seconds=self.max_seconds,
            ),
        )


def bench(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    flags = read_flags(Flags, words, prog="veca bench", description=DESCRIPTION, common=COMMON)
    command = command_line("bench", words)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # columns of the tables
    names = [flags.model] if Path(flags.model).exists() else flags.model.split(",")
    for config in [flags.config(name) for name in names]:
        with log_to_console():
            report = run_bench(config, command)
        print(f"{config.model} on {report.machine}.\n{UNTRAINED}")
        for table in tables(report):
            console.print()
            console.print(table)
        print("", LEGEND, *notes(report), sep="\n")
        out = flags.out if len(names) == 1 else flags.out / Path(config.model).name
        files = write(report, out)
        print(f"\nWritten: {', '.join(map(str, files))}")
        if files[-1].suffix != ".png":
            print(NO_PLOT)


def _backbone(name: str) -> tuple[BackboneConfig, str | None]:
    """The configuration of a size or a stored model, and the hash of the latter."""
    stored = Path(name).exists()
    if name in SIZES and not stored:
        return SIZES[name], None
    try:
        info = model_info(name)
    except ValueError as error:
        hint = "" if stored else f" The sizes are {', '.join(SIZES)}."
        raise ValueError(f"{error}{hint}") from error
    return info.config, info.digest
