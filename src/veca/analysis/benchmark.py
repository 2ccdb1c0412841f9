"""Time, memory and FLOPs of VECA beside full attention.

All models are built untrained from one configuration: time, memory and FLOPs depend on sizes, not
on what the weights have learned. At each resolution all cases run in turns within one process
(`runtime/timing.py`). Peak memory is measured before, in a process for each case:

    python -m veca.analysis.benchmark < request.json

builds one model, runs it once and prints how far its memory rose above that of the model, loaded
and not yet run. On a CPU this is what the operating system counts, so some megabytes of threads and
libraries that start with the first call are included; on a GPU it is what torch allocates. Linux
keeps the peak of the process that started us in `ru_maxrss`, so there VmHWM is read, which belongs
to this process alone.
"""

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from veca.analysis.machine import Machine, load_average, this_machine
from veca.backbone.attention import CorePeripheryAttention
from veca.backbone.config import PAPER_BUDGETS, BackboneConfig
from veca.backbone.cost import folded_flops
from veca.backbone.model import VECA, Features, check_budget, patch_grid
from veca.runtime.device import (
    Precision,
    ResolvedPrecision,
    autocast,
    pick_device,
    resolve_precision,
)
from veca.runtime.timing import (
    OUT_OF_MEMORY,
    Effort,
    Quartiles,
    Tell,
    Timing,
    measure,
    quartiles,
    ran_out_of_memory,
    speedup,
)
from veca.weights.format import config_from_json

Kind = Literal["veca", "plain", "twin"]
"""'plain' is VECA with attention unfolded, 'twin' the full-attention baseline."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One model in one mode."""

    kind: Kind

    budget: int | None = None
    """Cores; None for a twin, which has none."""

    ffn: float = 1.0
    """Share of the hidden units."""

    precision: ResolvedPrecision = "fp32"
    """What it computes with; weights are fp32 in any case."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        end = "" if self.precision == "fp32" else f", {self.precision}"
        if self.kind == "twin":
            return f"full attention{end}"
        form = "plain form" if self.kind == "plain" else "VECA"
        share = "" if self.ffn == 1 else f", FFN {self.ffn:g}"
        return f"{form}, {self.budget} core{'' if self.budget == 1 else 's'}{share}{end}"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all contenders of a run have in common."""

    backbone: BackboneConfig
    """Of the VECA model; its twin is built from it."""

    resolution: int
    """Side of the square images in pixels."""

    batch: int = 1
    """Images in one call."""

    device: str = "cpu"
    """Where to run, as torch names it."""

    threads: int | None = None
    """Threads of a CPU; None leaves torch's choice."""

    seed: int = 0
    """Decides weights and images."""

    @property
    def patches(self) -> int:
        """Patches N of an image."""
        rows, columns = patch_grid(self.backbone, self.resolution, self.resolution)
        return rows * columns


class Work(NamedTuple):
    """What a contender computes for one image, by formula."""

    gflops: float
    pairs: int
    """Query-key pairs of a block."""

    attention_share: float
    """Of the FLOPs, projections included."""

    folded: bool
    """Whether attention is computed in the folded form."""


class Lineup:
    """The models of a setup, each built when it is first needed, and images to run them on."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @cached_property
    def images(self) -> torch.Tensor:
        """Normally distributed pixels."""
        setup = self.setup
        side, channels = setup.resolution, setup.backbone.in_channels
        draw = torch.Generator().manual_seed(setup.seed)
        images = torch.randn(setup.batch, channels, side, side, generator=draw)
        return images.to(setup.device)

    @cached_property
    def veca(self) -> VECA:
        """The model itself."""
        return self._built(self.setup.backbone)

    @cached_property
    def twin(self) -> VECA:
        """Its baseline: the same blocks with full attention and one class token."""
        config = replace(
            self.setup.backbone, attention="full", budgets=PAPER_BUDGETS, ffn_shares=(1.0,)
        )
        return self._built(config)

    def call(self, contender: Contender) -> Callable[[], Features]:
        """A function that encodes the images and returns when the result is there."""
        model, images = self._encoder(contender), self.images

        def encode() -> Features:
            with autocast(images.device, contender.precision):
                features = model(images)
            if images.device.type != "cpu":
                torch.accelerator.synchronize(images.device)
            return features

        return encode

    def work(self, contender: Contender) -> Work:
        """What the contender computes for one image."""
        side = self.setup.resolution
        folded = False
        if contender.kind == "twin":
            config, cost = self.twin.config, self.twin.cost(side, side)
        else:
            config = self.veca.config
            self.veca.set_attention_form("plain" if contender.kind == "plain" else "auto")
            cost = self.veca.cost(side, side, contender.budget, contender.ffn)
            folded = self._folds(contender)
        attention = cost.attention_flops
        if folded:
            cores = config.cores if contender.budget is None else contender.budget
            attention = folded_flops(config, self.setup.patches, cores)
        share = config.layers * attention / cost.flops
        return Work(cost.flops / 1e9, cost.pairs, share, folded)

    def _encoder(self, contender: Contender) -> Callable[[torch.Tensor], Features]:
        """The model in its mode; the form is set at each call, since the modes share weights."""
        if contender.kind == "twin":
            return self.twin
        veca = self.veca

        def encode(images: torch.Tensor) -> Features:
            veca.set_attention_form("plain" if contender.kind == "plain" else "auto")
            return veca(images, contender.budget, contender.ffn)

        return encode

    def _folds(self, contender: Contender) -> bool:
        """Whether VECA, in the form that is set, folds at this budget."""
        attention = self.veca.block_of(0).attention
        budget = contender.budget or self.veca.config.cores
        return isinstance(attention, CorePeripheryAttention) and attention.is_folded(budget)

    def _built(self, config: BackboneConfig) -> VECA:
        """An untrained model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.setup.seed)
            model = VECA(config)
        return model.eval().to(self.setup.device)


Rival = Literal["twin", "plain", "whole", "fp32"]
"""Full attention, VECA unfolded, VECA with all cores that were run, all in the same precision; and
the same contender in fp32."""

RIVALS: tuple[Rival, ...] = get_args(Rival)


class Measured(NamedTuple):
    """What was measured of a contender."""

    contender: Contender
    work: Work
    timing: Timing
    """Of a call, whatever its batch."""

    peak_bytes: int | None


class Row(NamedTuple):
    """One contender at one resolution."""

    resolution: int
    patches: int
    contender: Contender
    work: Work
    milliseconds: Quartiles | None
    """Of one image; None if it could not be run."""

    rounds: int
    peak_mb: float | None
    """Of one call, above the loaded model; None if it was not measured."""

    speedups: Mapping[Rival, Quartiles]
    """How many times faster than a rival, over rounds; without those that make no sense."""

    note: str
    """What was not measured as asked for."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        return self.contender.name

    def as_json(self) -> dict[str, Any]:
        """Plain values; `budget` is null for the twin."""
        contender, time = self.contender, self.milliseconds
        found = {rival: self.speedups.get(rival) for rival in RIVALS}
        return {
            "resolution": self.resolution,
            "patches": self.patches,
            "name": self.name,
            "contender": contender.kind,
            "budget": contender.budget,
            "ffn": contender.ffn,
            "precision": contender.precision,
            "folded": self.work.folded,
            "ms": time._asdict() if time else None,
            "rounds": self.rounds,
            "peak_mb": self.peak_mb,
            "gflops": self.work.gflops,
            "pairs": self.work.pairs,
            "attention_share": self.work.attention_share,
            "speedup": {name: item._asdict() if item else None for name, item in found.items()},
            "note": self.note,
        }


def rows_of(resolution: int, patches: int, batch: int, measured: Sequence[Measured]) -> list[Row]:
    """The lines of one interleaved run, rivals found among them."""
    timings = {item.contender: item.timing for item in measured if item.timing.samples}
    return [
        Row(
            resolution=resolution,
            patches=patches,
            contender=item.contender,
            work=item.work,
            milliseconds=_of_one_image(item.timing, batch),
            rounds=len(item.timing.samples),
            peak_mb=None if item.peak_bytes is None else item.peak_bytes / 1e6,
            speedups=_speedups(item.contender, timings),
            note=item.timing.note,
        )
        for item in measured
    ]


def rival_of(contender: Contender, rival: Rival, among: Sequence[Contender]) -> Contender | None:
    """The contender that another one is to be compared with, if it takes part."""
    if rival in ("plain", "whole") and contender.kind != "veca":
        return None
    if rival == "fp32":
        like = replace(contender, precision="fp32")
        return like if like != contender and like in among else None
    among = [item for item in among if item.precision == contender.precision]
    if rival == "plain":
        fits = [item for item in among if item.kind == "plain" and _same_mode(item, contender)]
    elif rival == "whole":
        fits = [item for item in among if item.kind == "veca" and item.ffn == 1]
        fits = sorted(fits, key=lambda item: item.budget or 0)[-1:]
    else:
        fits = [item for item in among if item.kind == rival]
    others = [item for item in fits if item != contender]
    return others[0] if others else None


def _speedups(contender: Contender, timings: Mapping[Contender, Timing]) -> dict[Rival, Quartiles]:
    """How a contender compares with its rivals."""
    if contender not in timings:
        return {}
    found: dict[Rival, Quartiles] = {}
    for name in RIVALS:
        rival = rival_of(contender, name, list(timings))
        if rival is not None:
            found[name] = speedup(timings[contender], timings[rival])
    return found


def _same_mode(one: Contender, other: Contender) -> bool:
    """Whether cores and hidden units are the same."""
    return (one.budget, one.ffn) == (other.budget, other.ffn)


def _of_one_image(timing: Timing, batch: int) -> Quartiles | None:
    """Time of an image, if there is one."""
    if not timing.samples:
        return None
    return quartiles([sample / batch for sample in timing.samples])


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The settings of one run."""

    model: str
    """Name for the report."""

    backbone: BackboneConfig
    """Configuration of the VECA model."""

    weights_sha256: str | None = None
    """Hash of the stored model whose configuration this is, for the report."""

    resolutions: tuple[int, ...] = (256, 512, 1024)
    """Sides of the square images in pixels."""

    budgets: tuple[int, ...] = (8, 16, 32, 64)
    """Numbers of cores."""

    shares: tuple[float, ...] = (0.25, 1.0)
    """Shares of the hidden units; the model is built so that it takes them."""

    batch: int = 1
    """Images in a call."""

    threads: int | None = None
    """Threads of torch; None leaves its choice."""

    device: str = "cpu"
    """Where to run, as `pick_device` takes it."""

    precisions: tuple[Precision, ...] = ("auto",)
    """What all contenders compute with, each in every one of them."""

    memory: bool = True
    """Whether to measure peak memory, with a process for each case."""

    seed: int = 0
    """Decides weights, images and the order of each round."""

    effort: Effort = field(default_factory=Effort)
    """How long to measure."""

    def __post_init__(self) -> None:
        """Refuse at once what would fail after minutes."""
        if self.backbone.attention == "full":
            raise ValueError(
                f"{self.model} is a full-attention model, which every benchmark has beside VECA "
                "anyway; name a VECA model or a size."
            )
        for name in ("resolutions", "budgets", "shares", "precisions"):
            _check_listed(name, getattr(self, name))
        for resolution in self.resolutions:
            patch_grid(self.backbone, resolution, resolution)
        for budget in self.budgets:
            check_budget(self.backbone, budget)
        if any(not 0 < share <= 1 for share in self.shares):
            raise ValueError(f"FFN shares {self.shares} must lie above 0 and not above 1.")
        _ = self.resolved
        if self.batch < 1 or (self.threads is not None and self.threads < 1):
            raise ValueError(
                f"batch={self.batch} and threads={self.threads} must be whole numbers of 1 or more."
            )

    @property
    def resolved(self) -> tuple[ResolvedPrecision, ...]:
        """The precisions without 'auto'."""
        device = pick_device(self.device)
        found = (resolve_precision(precision, device) for precision in self.precisions)
        return tuple(dict.fromkeys(found))

    def setup(self, resolution: int) -> Setup:
        """What all contenders at a resolution share."""
        shares = tuple(sorted({*self.shares, *self.backbone.ffn_shares, 1.0}))
        return Setup(
            backbone=replace(self.backbone, ffn_shares=shares),
            resolution=resolution,
            batch=self.batch,
            device=str(pick_device(self.device)),
            threads=self.threads,
            seed=self.seed,
        )

    def contenders(self) -> list[Contender]:
        """Everyone in every precision; VECA with the fewest cores comes first."""
        shares = sorted(self.shares, reverse=True)
        budgets = sorted(self.budgets)
        once = [
            *(
                Contender(kind="veca", budget=budget, ffn=ffn)
                for ffn in shares
                for budget in budgets
            ),
            *(Contender(kind="plain", budget=budget) for budget in budgets),
            Contender(kind="twin"),
        ]
        return [replace(item, precision=precision) for precision in self.resolved for item in once]


def _check_listed(name: str, values: Sequence[object]) -> None:
    """Refuse lists that are empty or say a thing twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} got {values}; give at least one, and each of them once.")


OUT_OF_MEMORY_CODE = 3
KILLED = -9
"""What Linux does to a process for which there is no memory."""

PROCESS_STATUS = Path("/proc/self/status")


def peak_bytes(setup: Setup, contender: Contender) -> int | None:
    """How far one call raises memory; None if there is not enough."""
    request = json.dumps({"setup": asdict(setup), "contender": asdict(contender)})
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    answer = subprocess.run(
        [sys.executable, "-m", "veca.analysis.benchmark"],
        input=request,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    if answer.returncode in (OUT_OF_MEMORY_CODE, KILLED):
        return None
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no words"])[-1]
        raise ChildProcessError(
            f"the process that measures the memory of {contender.name} ended with code "
            f"{answer.returncode}: {last}; leave memory out to go on without it."
        )
    return int(json.loads(answer.stdout)["peak_bytes"])


def rise_of(setup: Setup, contender: Contender) -> int:
    """How far one call raises the memory of this process, which must not have run anything."""
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    encode = Lineup(setup).call(contender)
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        before = resident_peak()
    with torch.inference_mode():
        encode()
    after = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_peak()
    return max(after - before, 0)  # Linux counts in batches of pages, so nothing may be less


def resident_peak() -> int:
    """The most bytes that this process ever had in memory."""
    if PROCESS_STATUS.exists():
        for line in PROCESS_STATUS.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    if resource is None:
        raise ValueError("this system does not tell peak memory; measure without it.")
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def answer(request: str) -> str:
    """Measure what a request asks for."""
    asked = json.loads(request)
    backbone = config_from_json(asked["setup"].pop("backbone"), "the request")
    setup = Setup(backbone=backbone, **asked["setup"])
    return json.dumps({"peak_bytes": rise_of(setup, Contender(**asked["contender"]))})


def main() -> int:
    """Answer the request on the standard input."""
    try:
        sys.stdout.write(answer(sys.stdin.read()))
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        return OUT_OF_MEMORY_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())


BUSY = 0.25
"""Load of each core before the run from which on times are not to be trusted."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished benchmark, with all that its numbers must carry."""

    config: BenchConfig
    machine: Machine
    command: str
    started: str
    """When, in UTC."""

    finished: str
    load: tuple[float | None, float | None]
    """Processes that wanted to run before and after; before there should be none."""

    rows: list[Row]

    @property
    def busy(self) -> bool:
        """Whether others used the machine when the run began."""
        return self.load[0] is not None and self.load[0] > BUSY * self.machine.cores


def run_bench(config: BenchConfig, command: str, tell: Tell) -> Report:
    """Measure everything; takes minutes, or an hour with large images."""
    started, load = _now(), load_average()
    with _threads(config.threads):
        machine = this_machine(config.setup(config.resolutions[0]).device)
        rows = [
            row for resolution in config.resolutions for row in _run_at(config, resolution, tell)
        ]
    return Report(
        config=config,
        machine=machine,
        command=command,
        started=started,
        finished=_now(),
        load=(load, load_average()),
        rows=rows,
    )


def _run_at(config: BenchConfig, resolution: int, tell: Tell) -> list[Row]:
    """One interleaved run of all contenders."""
    lineup = Lineup(config.setup(resolution))
    where = f"{config.model}, {resolution} px"
    contenders = config.contenders()
    peaks: dict[Contender, int | None] = {}
    if config.memory:
        tell(f"{where}: memory of {len(contenders)} cases, a process for each")
        peaks = {item: peak_bytes(lineup.setup, item) for item in contenders}
    runnable = [item for item in contenders if item not in peaks or peaks[item] is not None]
    tell(f"{where}: time of {len(runnable)} cases in turns")
    cases = {item.name: lineup.call(item) for item in runnable}
    timings = measure(
        cases, config.effort, seed=config.seed, tell=lambda line: tell(f"{where}: {line}")
    )
    unrun = Timing((), OUT_OF_MEMORY)
    measured = [
        Measured(item, lineup.work(item), timings.get(item.name, unrun), peaks.get(item))
        for item in contenders
    ]
    return rows_of(resolution, lineup.setup.patches, config.batch, measured)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Run torch with this many threads for a while."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
