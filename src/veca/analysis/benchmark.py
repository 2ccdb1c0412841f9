"""Time, memory and FLOPs of VECA beside full attention.

All models are built untrained from one configuration: time, memory and FLOPs depend on sizes, not
on what the weights have learned. At each resolution all cases run in turns within one process
(`runtime/timing.py`). Peak memory is measured before that, in a new process for each case: how far
one call raises memory above that of the loaded model. On a CPU this is resident memory, so it
includes some megabytes of threads and libraries that start with the first call; on a GPU it is what
torch allocates.
"""

import datetime
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import torch

from veca.analysis.machine import Machine, load_average, this_machine
from veca.backbone.attention import CorePeripheryAttention, Form
from veca.backbone.config import PAPER_BUDGETS, BackboneConfig
from veca.backbone.cost import folded_flops
from veca.backbone.model import VECA, Features, check_budget, patch_grid
from veca.runtime.device import (
    Precision,
    ResolvedPrecision,
    autocast,
    peak_memory,
    pick_device,
    ran_out_of_memory,
    resolve_precision,
)
from veca.runtime.logging import logger
from veca.runtime.timing import (
    OUT_OF_MEMORY,
    Effort,
    Quartiles,
    Speedup,
    Timing,
    measure,
    quartiles,
    speedup,
)

Kind = Literal["veca", "plain", "baseline"]
"""'plain' is VECA with attention unfolded, 'baseline' full attention."""

Reference = Literal["baseline", "plain", "whole", "fp32"]
"""What a case is compared with: full attention, VECA unfolded, VECA with the most cores and all
hidden units, all in the same precision; and the same case in fp32."""

REFERENCES: tuple[Reference, ...] = get_args(Reference)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One model in one mode."""

    kind: Kind

    budget: int | None = None
    """Cores; None for the baseline, which has none."""

    ffn: float = 1.0
    """Share of the hidden units."""

    precision: ResolvedPrecision = "fp32"
    """Precision of the computation; weights are fp32 in any case."""

    @property
    def form(self) -> Form:
        """How attention is computed."""
        return "plain" if self.kind == "plain" else "auto"

    @property
    def name(self) -> str:
        """Its name in tables."""
        end = "" if self.precision == "fp32" else f", {self.precision}"
        if self.kind == "baseline":
            return f"full attention{end}"
        form = "plain form" if self.kind == "plain" else "VECA"
        share = "" if self.ffn == 1 else f", FFN {self.ffn:g}"
        return f"{form}, {self.budget} core{'' if self.budget == 1 else 's'}{share}{end}"


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The settings of one run."""

    model: str
    """Name for the report."""

    backbone: BackboneConfig
    """Configuration of the VECA model; the baseline follows from it."""

    weights_sha256: str | None = None
    """Hash of the stored model whose configuration this is, for the report."""

    resolutions: tuple[int, ...] = (256, 512, 1024)
    """Sides of the square images in pixels."""

    budgets: tuple[int, ...] = (8, 16, 32, 64)
    """Numbers of cores."""

    shares: tuple[float, ...] = (0.25, 1.0)
    """Shares of the hidden units; the model is built with these."""

    batch: int = 1
    """Images per call."""

    threads: int | None = None
    """Threads of torch; None for torch's default."""

    device: str = "cpu"
    """As `pick_device` takes it."""

    precisions: tuple[Precision, ...] = ("auto",)
    """All cases run in each of these."""

    memory: bool = True
    """Whether to measure peak memory, in a process for each case."""

    seed: int = 0
    """Of weights, images and the order within a round."""

    effort: Effort = field(default_factory=Effort)
    """How long to measure."""

    def __post_init__(self) -> None:
        """Refuse at once what would fail after minutes."""
        if self.backbone.attention == "full":
            raise ValueError(
                f"{self.model} is a full-attention model, which every benchmark measures as the "
                "baseline; name a VECA model or a size."
            )
        for name in ("resolutions", "budgets", "shares", "precisions"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name} got {values}; give at least one, and each of them once.")
        for resolution in self.resolutions:
            patch_grid(self.backbone, resolution, resolution)
        for budget in self.budgets:
            check_budget(self.backbone, budget)
        if any(not 0 < share <= 1 for share in self.shares):
            raise ValueError(f"FFN shares {self.shares} must lie above 0 and not above 1.")
        _ = self.resolved
        if self.batch < 1 or (self.threads is not None and self.threads < 1):
            raise ValueError(f"batch={self.batch} and threads={self.threads} must be >= 1.")

    @property
    def resolved(self) -> tuple[ResolvedPrecision, ...]:
        """The precisions without 'auto'."""
        device = pick_device(self.device)
        found = (resolve_precision(precision, device) for precision in self.precisions)
        return tuple(dict.fromkeys(found))

    def cases(self) -> list[Case]:
        """Every case in every precision; VECA with the fewest cores comes first."""
        budgets = sorted(self.budgets)
        shares = sorted(self.shares, reverse=True)
        return [
            case
            for precision in self.resolved
            for case in (
                *(
                    Case(kind="veca", budget=budget, ffn=ffn, precision=precision)
                    for ffn in shares
                    for budget in budgets
                ),
                *(Case(kind="plain", budget=budget, precision=precision) for budget in budgets),
                Case(kind="baseline", precision=precision),
            )
        ]


class Models:
    """The models of a run, each built when it is first needed, and images of one size."""

    def __init__(self, config: BenchConfig, resolution: int) -> None:
        self.config, self.resolution = config, resolution
        self.device = pick_device(config.device)

    @cached_property
    def images(self) -> torch.Tensor:
        """Normally distributed pixels."""
        config, side = self.config, self.resolution
        generator = torch.Generator().manual_seed(config.seed)
        shape = (config.batch, config.backbone.in_channels, side, side)
        return torch.randn(shape, generator=generator).to(self.device)

    @cached_property
    def veca(self) -> VECA:
        """The model itself, with the shares of this run."""
        backbone = self.config.backbone
        shares = tuple(sorted({*self.config.shares, *backbone.ffn_shares, 1.0}))
        return self._build(replace(backbone, ffn_shares=shares))

    @cached_property
    def baseline(self) -> VECA:
        """The same blocks with full attention and one class token."""
        config = replace(
            self.config.backbone, attention="full", budgets=PAPER_BUDGETS, ffn_shares=(1.0,)
        )
        return self._build(config)

    def call(self, case: Case) -> Callable[[], Features]:
        """A function that encodes the images and returns when the result is there."""
        model, images = self._model(case), self.images

        def encode() -> Features:
            model.set_attention_form(case.form)  # at each call, since cases share a model
            with autocast(images.device, case.precision):
                features = model(images, case.budget, case.ffn)
            if images.device.type != "cpu":
                torch.accelerator.synchronize(images.device)
            return features

        return encode

    def work(self, case: Case) -> dict[str, Any]:
        """What the case computes for one image, by formula: fields of its `Row`."""
        model, side = self._model(case), self.resolution
        model.set_attention_form(case.form)
        cost, cores = (
            model.cost(side, side, case.budget, case.ffn),
            model.chosen_budget(case.budget),
        )
        patches = math.prod(patch_grid(model.config, side, side))
        attention = model.block_of(0).attention
        folded = isinstance(attention, CorePeripheryAttention) and attention.is_folded(cores)
        attention_flops = cost.attention_flops
        if folded:
            attention_flops = folded_flops(model.config, patches, cores)
        return {
            "patches": patches,
            "gflops": cost.flops / 1e9,
            "pairs": cost.pairs,
            "attention_share": model.config.layers * attention_flops / cost.flops,
            "folded": folded,
        }

    def _model(self, case: Case) -> VECA:
        return self.baseline if case.kind == "baseline" else self.veca

    def _build(self, config: BackboneConfig) -> VECA:
        """An untrained model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.config.seed)
            model = VECA(config)
        return model.eval().to(self.device)


class Row(NamedTuple):
    """One case at one resolution."""

    resolution: int
    patches: int
    case: Case

    ms: Quartiles | None
    """Milliseconds per image; None if it could not run."""

    rounds: int

    peak_mb: float | None
    """Of one call, above the loaded model; None if it was not measured."""

    gflops: float
    """Of one image."""

    pairs: int
    """Query-key pairs of a block."""

    attention_share: float
    """Of the FLOPs, projections included."""

    folded: bool
    """Whether attention is computed in the folded form."""

    speedup: Mapping[Reference, Speedup | None]
    """Times as fast as a reference, over rounds; None if there is no such case."""

    note: str
    """What differs from the requested measurement."""

    def as_json(self) -> dict[str, Any]:
        """Plain values; `budget` is null for the baseline."""
        fields = self._asdict() | {
            "ms": self.ms and self.ms._asdict(),
            "speedup": {name: item and item._asdict() for name, item in self.speedup.items()},
        }
        del fields["case"]
        return {"name": self.case.name, **vars(self.case), **fields}


def reference_case(case: Case, reference: Reference, among: Sequence[Case]) -> Case | None:
    """The case that another one is compared with, if it ran."""
    if reference == "fp32":
        wanted = replace(case, precision="fp32")
    elif reference == "baseline":
        wanted = Case(kind="baseline", precision=case.precision)
    elif case.kind != "veca":
        return None
    elif reference == "plain":
        wanted = replace(case, kind="plain")
    else:
        most = max(other.budget or 0 for other in among if other.kind == "veca")
        wanted = replace(case, budget=most, ffn=1.0)
    return wanted if wanted != case and wanted in among else None


def speedups(case: Case, timings: Mapping[Case, Timing]) -> dict[Reference, Speedup | None]:
    """How a case compares with its references, among the cases that ran."""
    others = {name: reference_case(case, name, list(timings)) for name in REFERENCES}
    return {
        name: speedup(timings[case], timings[other]) if other and case in timings else None
        for name, other in others.items()
    }


def peak_bytes(config: BenchConfig, resolution: int, case: Case) -> int | None:
    """How far one call raises memory, in a new process; None if there is not enough."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn) as pool:
        try:
            return pool.submit(memory_rise, config, resolution, case).result()
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, BrokenProcessPool) or ran_out_of_memory(error):
                return None  # in the first case, the kernel killed the process
            raise


def memory_rise(config: BenchConfig, resolution: int, case: Case) -> int:
    """How far one call raises the memory of this process, which must not have run anything."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    models = Models(config, resolution)
    encode, device = models.call(case), models.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    before = peak_memory(device)
    if not before:
        raise ValueError("this system does not report peak memory; measure with --no-memory.")
    with torch.inference_mode():
        encode()
    # Linux counts in batches of pages, so the peak may seem to sink.
    return max(peak_memory(device) - before, 0)


@dataclass(frozen=True, kw_only=True)
class Report:
    """A finished benchmark, with everything its numbers must carry."""

    config: BenchConfig
    machine: Machine
    command: str
    started: str
    """In UTC."""

    finished: str
    load: tuple[float | None, float | None]
    """Load average before and after; before it should be near 0."""

    rows: list[Row]


def run_bench(config: BenchConfig, command: str) -> Report:
    """Measure everything; takes minutes, or an hour with large images."""
    started, load, threads = _now(), load_average(), torch.get_num_threads()
    torch.set_num_threads(config.threads or threads)
    try:
        machine = this_machine(str(pick_device(config.device)))
        rows = [row for side in config.resolutions for row in _run_at(config, side)]
    finally:
        torch.set_num_threads(threads)
    return Report(
        config=config,
        machine=machine,
        command=command,
        started=started,
        finished=_now(),
        load=(load, load_average()),
        rows=rows,
    )


def _run_at(config: BenchConfig, resolution: int) -> list[Row]:
    """One interleaved run of all cases."""
    models = Models(config, resolution)
    where = f"{config.model}, {resolution} px"
    cases = config.cases()
    peaks: dict[Case, int | None] = {}
    if config.memory:
        logger.info("%s: memory of %d cases, a process for each", where, len(cases))
        peaks = {case: peak_bytes(config, resolution, case) for case in cases}
    runnable = [case for case in cases if case not in peaks or peaks[case] is not None]
    logger.info("%s: time of %d cases in turns", where, len(runnable))
    calls = {case.name: models.call(case) for case in runnable}
    timings = measure(calls, config.effort, seed=config.seed)
    timing = {case: timings.get(case.name, Timing((), OUT_OF_MEMORY)) for case in cases}
    return rows_of(models, timing, peaks)


def rows_of(
    models: Models, timings: Mapping[Case, Timing], peaks: Mapping[Case, int | None]
) -> list[Row]:
    """The rows of one interleaved run."""
    ran = {case: timing for case, timing in timings.items() if timing.samples}
    batch = models.config.batch
    return [
        Row(
            resolution=models.resolution,
            case=case,
            ms=quartiles([ms / batch for ms in timing.samples]) if timing.samples else None,
            rounds=len(timing.samples),
            peak_mb=None if (peak := peaks.get(case)) is None else peak / 1e6,
            speedup=speedups(case, ran),
            note=timing.note,
            **models.work(case),
        )
        for case, timing in timings.items()
    ]


def _now() -> str:
    """The time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
