"""`veca bench`: time, memory and FLOPs of VECA beside full attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import tyro
from rich.console import Console

from veca.analysis.bench_report import LEGEND, NO_PLOT, UNTRAINED, findings, tables, write
from veca.analysis.benchmark import BenchConfig, Report, run_bench
from veca.backbone.config import SIZES, BackboneConfig
from veca.cli.flags import command_line, numbers, texts, whole_numbers
from veca.runtime.device import Precision
from veca.runtime.timing import Effort
from veca.weights.checkpoint import model_info

DESCRIPTION = """Measure time, peak memory and FLOPs over resolutions, budgets and FFN shares.

VECA runs in turns with full attention of the same size and with its own unfolded form. Prints
tables, says where VECA does not win, and writes JSON, Markdown and a plot.

Example: veca bench --model small --resolutions 256,512 --budgets 8,64 --out build/bench"""

BUDGETS, QUICK_BUDGETS = (8, 16, 32, 64), (8, 64)
RESOLUTIONS, QUICK_RESOLUTIONS = (256, 512, 1024), (256, 512)
QUICK_ROUNDS = 3
WIDTH = 120
"""Columns that the tables need where no terminal tells how many there are."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command takes."""

    model: Annotated[str, tyro.conf.arg(metavar="SIZE|PATH")] = "small"
    """a size, or a stored model whose configuration to take; several with commas"""

    resolutions: Annotated[str | None, tyro.conf.arg(metavar="PIXELS,...")] = None
    """sides of the images; 256,512,1024 if not given, 256,512 if quick"""

    budgets: Annotated[str | None, tyro.conf.arg(metavar="CORES,...")] = None
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

    @property
    def names(self) -> list[str]:
        """The models."""
        return [self.model] if Path(self.model).exists() else self.model.split(",")

    def config(self, name: str) -> BenchConfig:
        """What to measure of one model."""
        backbone, digest = _backbone(name)
        return BenchConfig(
            model=name,
            backbone=backbone,
            weights_sha256=digest,
            resolutions=_resolutions(self.resolutions, self.quick),
            budgets=_budgets(self.budgets, self.quick, backbone),
            shares=numbers("--ffn", self.ffn),
            batch=self.batch,
            threads=self.threads,
            device=self.device,
            precisions=cast(tuple[Precision, ...], texts("--precision", self.precision)),
            seed=self.seed,
            memory=self.memory,
            effort=Effort(
                rounds=QUICK_ROUNDS if self.quick else self.rounds,
                seconds=0.0 if self.quick else min(self.seconds, self.max_seconds),
                most_seconds=self.max_seconds,
            ),
        )


def bench(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    flags = tyro.cli(Flags, prog="veca bench", description=DESCRIPTION, args=words)
    command = command_line("bench", words)
    configs = [flags.config(name) for name in flags.names]
    for config in configs:
        out = flags.out if len(configs) == 1 else flags.out / Path(config.model).name
        _bench(config, command, out)


def _bench(config: BenchConfig, command: str, out: Path) -> None:
    """Measure, print and write one model."""
    progress = Console(stderr=True, highlight=False)
    report = run_bench(config, command, lambda line: progress.print(line, markup=False))
    _print(report)
    files = write(report, out)
    print(f"\nWritten: {', '.join(map(str, files))}")
    if not any(file.suffix == ".png" for file in files):
        print(NO_PLOT)


def _print(report: Report) -> None:
    """The report for the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    print(f"{report.config.model} on {report.machine}.\n{UNTRAINED}")
    for table in tables(report):
        console.print()
        console.print(table)
    print(f"\n{LEGEND}")
    for title, sentences in findings(report):
        print(f"\n{title}:")
        for sentence in sentences:
            print(f"  {sentence}")


def _backbone(name: str) -> tuple[BackboneConfig, str | None]:
    """The configuration of a size or a stored model, and the hash of the latter."""
    stored = Path(name).exists()
    if name in SIZES and not stored:
        return SIZES[name], None
    try:
        facts = model_info(name)
    except ValueError as error:
        hint = "" if stored else f" The sizes are {', '.join(SIZES)}."
        raise ValueError(f"{error}{hint}") from error
    return facts.config, facts.digest


def _resolutions(text: str | None, quick: bool) -> tuple[int, ...]:
    """The resolutions that were asked for, or ours."""
    if text is not None:
        return whole_numbers("--resolutions", text)
    return QUICK_RESOLUTIONS if quick else RESOLUTIONS


def _budgets(text: str | None, quick: bool, backbone: BackboneConfig) -> tuple[int, ...]:
    """The budgets that were asked for, or those of ours that the model has cores for."""
    if text is not None:
        return whole_numbers("--budgets", text)
    ours = QUICK_BUDGETS if quick else BUDGETS
    return tuple(budget for budget in ours if budget <= backbone.cores) or (backbone.cores,)
