"""Benchmarks with made-up numbers, for tests of what is said about them."""

from collections.abc import Mapping

from veca.analysis.benchmark import BenchConfig, Contender, Measured, Report, Row, Work, rows_of
from veca.analysis.machine import Machine
from veca.backbone.config import BackboneConfig
from veca.runtime.timing import Timing

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

TWIN = Contender(kind="twin")


def veca(budget: int, ffn: float = 1.0) -> Contender:
    """VECA itself."""
    return Contender(kind="veca", budget=budget, ffn=ffn)


def plain(budget: int) -> Contender:
    """VECA unfolded."""
    return Contender(kind="plain", budget=budget)


def measured(
    contender: Contender,
    *samples: float,
    megabytes: float | None = 10.0,
    folded: bool = False,
    note: str = "",
) -> Measured:
    """A contender whose rounds took these milliseconds."""
    work = Work(
        gflops=1.5, pairs=100 * (contender.budget or 9), attention_share=0.25, folded=folded
    )
    peak = None if megabytes is None else round(megabytes * 1e6)
    return Measured(contender, work, Timing(samples, note), peak)


def rows(times: Mapping[Contender, float], resolution: int = 32) -> list[Row]:
    """Contenders that took these milliseconds in every round; VECA folds."""
    found = [measured(item, time, time, folded=item.kind == "veca") for item, time in times.items()]
    return rows_of(resolution, (resolution // 4) ** 2, 1, found)


def report() -> Report:
    """Two resolutions with everybody; VECA has linear time, full attention quadratic."""
    found = []
    for side in (32, 64):
        patches = (side // 4) ** 2
        times = {
            veca(2): 1.0 * patches,
            veca(4): 1.2 * patches,
            veca(2, 0.25): 0.5 * patches,
            veca(4, 0.25): 0.6 * patches,
            plain(2): 1.1 * patches,
            plain(4): 1.15 * patches,
            TWIN: 0.015 * patches**2,
        }
        found += rows(times, side)
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
