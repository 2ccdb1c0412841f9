"""Benchmarks with made-up numbers, for tests of their reports."""

from collections.abc import Mapping, Sequence

from veca.analysis.benchmark import BenchConfig, Case, Report, Row, speedups
from veca.analysis.machine import Machine
from veca.backbone.config import BackboneConfig
from veca.runtime.timing import Timing, quartiles

TINY = BackboneConfig(layers=2, width=16, heads=1, patch_size=4, budgets=(2, 4))

MACHINE = Machine(
    processor="Made-up 3000",
    cores=2,
    threads=2,
    accelerator=None,
    memory_gb=8.0,
    system="Linux x86_64",
    python="3.11.0",
    torch="2.13.0",
    instructions="AVX2",
)

BASELINE = Case(kind="baseline")


def veca(budget: int, ffn: float = 1.0) -> Case:
    """VECA itself."""
    return Case(kind="veca", budget=budget, ffn=ffn)


def plain(budget: int) -> Case:
    """VECA unfolded."""
    return Case(kind="plain", budget=budget)


CASES = [veca(2), veca(4), veca(2, 0.25), veca(4, 0.25), plain(2), plain(4), BASELINE]


def rows(samples: Mapping[Case, Sequence[float]], resolution: int = 32) -> list[Row]:
    """Cases whose rounds took these milliseconds; one without rounds ran out of memory."""
    timings = {case: Timing(tuple(times)) for case, times in samples.items()}
    ran = {case: timing for case, timing in timings.items() if timing.samples}
    return [
        Row(
            resolution=resolution,
            patches=(resolution // 4) ** 2,
            case=case,
            ms=quartiles(timing.samples) if timing.samples else None,
            rounds=len(timing.samples),
            peak_mb=10.0 if timing.samples else None,
            gflops=1.5,
            pairs=100 * (case.budget or 9),
            attention_share=0.25,
            folded=case.kind == "veca",
            speedup=speedups(case, ran),
            note="" if timing.samples else "out of memory",
        )
        for case, timing in timings.items()
    ]


def report() -> Report:
    """Two resolutions with all cases; VECA has linear time, full attention quadratic."""
    found = []
    for side in (32, 64):
        patches = (side // 4) ** 2
        factors = (1.0, 1.2, 0.5, 0.6, 1.1, 1.15, 0.015 * patches)
        found += rows({c: [f * patches] for c, f in zip(CASES, factors, strict=True)}, side)
    return Report(
        config=BenchConfig(
            model="made-up",
            backbone=TINY,
            resolutions=(32, 64),
            budgets=(2, 4),
            shares=(0.25, 1.0),
            precisions=("fp32",),
        ),
        machine=MACHINE,
        command="veca bench --model made-up",
        started="2026-05-12T10:00:00+00:00",
        finished="2026-05-12T10:05:00+00:00",
        load=(0.1, 2.0),
        rows=found,
    )
