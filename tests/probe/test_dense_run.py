"""Fitting, choosing and judging: what is chosen on what, and one process or two."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.probe.dense_scenes import (
    ALL,
    ALONE,
    FEW,
    SMALL,
    SMALL_DEPTH,
    ColorModel,
    context_in,
    farm,
    ramps,
    split_of,
)
from veca.data.images import DataError
from veca.data.sets.dataset import LabeledDataset
from veca.probe.dense_run import DenseRun, showing_of, training_split
from veca.probe.depth import run_depth
from veca.probe.feature_cache import RunContext
from veca.probe.knn import run_dense_knn
from veca.probe.protocols import DenseKnnProtocol, SegmentationProtocol
from veca.probe.segmentation import SegmentationTask, run_segmentation
from veca.runtime.distributed import VARIABLES, Ranks

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path: Path) -> LabeledDataset:
    return farm(tmp_path / "pictures")


@pytest.fixture
def ctx(tmp_path: Path) -> RunContext:
    return context_in(tmp_path / "kept")


class Liked(SegmentationTask):
    """Takes a fancy to one of the heads, by the order in which they are judged."""

    def __init__(self, data: LabeledDataset, protocol: SegmentationProtocol, favorite: int) -> None:
        super().__init__(data, protocol)
        self.favorite = favorite
        self.judged: list[tuple[str, int]] = []
        """Splits that heads were judged on, and how many."""

    def judge(self, heads, split, features, ctx):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        self.judged.append((split.name, len(heads)))
        found = super().judge(heads, split, features, ctx)
        for number, judged in enumerate(found):
            judged.number = number  # type: ignore[attr-defined]
        return found

    def goodness(self, judged: object) -> float:
        return float(judged.number % 4 == self.favorite)  # type: ignore[attr-defined]


GRID = replace(SMALL, steps=6, rates=(0.01, 0.1), checks=2, selection="held-out")


@pytest.mark.parametrize(
    ("favorite", "rate", "step"), [(0, 0.01, 3), (1, 0.1, 3), (2, 0.01, 6), (3, 0.1, 6)]
)
def test_the_paper_chooses_the_step_on_the_pictures_that_it_reports(
    favorite: int, rate: float, step: int, data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(GRID, selection="test-best-step")
    task = Liked(data, protocol, favorite)
    run = DenseRun(task, ColorModel(), data, protocol, ctx)
    found = run.results((ALL,), (0,))[ALL, 0]
    assert task.judged == [("val", 4)]
    assert (found.candidate.rate, found.candidate.step) == (rate, step)
    assert found.trained_on == 9


def test_rates_are_chosen_on_training_pictures_that_the_head_never_sees(
    data: LabeledDataset, ctx: RunContext
) -> None:
    protocol = replace(GRID, selection="held-out", held_out=0.3)
    task = Liked(data, protocol, 3)
    found = DenseRun(task, ColorModel(), data, protocol, ctx).results((ALL,), (0,))[ALL, 0]
    assert task.judged == [("held out of train", 4), ("val", 1)]
    assert (found.candidate.rate, found.candidate.step) == (0.1, 6)
    assert found.trained_on == 6


def test_the_makers_own_part_is_chosen_on_where_there_is_one(
    data: LabeledDataset, ctx: RunContext, tmp_path: Path
) -> None:
    own = split_of(tmp_path / "pictures", "dev", "masks", range(80, 83))
    protocol = replace(GRID, selection="held-out")
    task = Liked(data, protocol, 0)
    run = DenseRun(task, ColorModel(), replace(data, val=own), protocol, ctx)
    assert run.results((ALL,), (0,))[ALL, 0].trained_on == 9
    assert task.judged == [("dev", 4), ("val", 1)]


def test_nothing_is_chosen_where_nothing_should_be(data: LabeledDataset, ctx: RunContext) -> None:
    protocol = replace(SMALL, steps=6, checks=2)
    task = Liked(data, protocol, 0)
    found = DenseRun(task, ColorModel(), data, protocol, ctx).results((ALL,), (0, 1))
    assert task.judged == [("val", 1), ("val", 1)]
    assert {one.candidate.step for one in found.values()} == {6}


def test_sets_of_another_kind_or_without_a_training_part_are_refused(
    data: LabeledDataset,
) -> None:
    with pytest.raises(DataError, match="farm has masks and a training part, but depth"):
        training_split(data, "depth")
    with pytest.raises(DataError, match="no training part"):
        training_split(replace(data, train=None), "masks")


def test_pictures_are_shown_at_whole_patches() -> None:
    slide = replace(SMALL, inference="slide", resolution=45)
    showing = showing_of(ColorModel(), slide)
    assert (showing.short_side, showing.window_stride) == (40, 27)
    assert showing_of(ColorModel(), replace(slide, inference="whole")).window_stride == 0


TWO = """
import os, sys
from pathlib import Path

from tests.probe.test_dense_run import numbers_of
from veca.runtime.distributed import init_distributed

with init_distributed("cpu") as workers:
    words = " ".join(map(str, ["rank", workers.rank, *numbers_of(Path(sys.argv[1]), workers)]))
    os.write(1, f"\\n{words}\\n".encode())  # at once: the other process writes too
os._exit(0)  # the threads of torch's groups abort at times while Python ends
"""


def numbers_of(folder: Path, workers: Ranks) -> list[float]:
    """Pixels that were counted, and a metric of each task."""
    if workers.is_main:
        farm(folder / "farm")
        ramps(folder / "ramps")
    workers.barrier()
    ctx, model = context_in(folder / "kept", workers), ColorModel()
    fields, slopes = farm(folder / "farm"), ramps(folder / "ramps")
    live = replace(SMALL, views=None, steps=20, dropout=0.1)
    near = DenseKnnProtocol(name="near", resolution=32, neighbors=(3,), bank=60)
    kept = run_segmentation(model, (ALL,), fields, SMALL, (0,), ctx)[ALL, 0]
    drawn = run_segmentation(model, (ALL,), fields, live, (0,), ctx)[ALL, 0]
    depth = run_depth(model, (ALL,), slopes, SMALL_DEPTH, (0,), ctx)[ALL, 0]
    voted = run_dense_knn(model, (ALL,), fields, near, (0,), ctx)[ALL, 0]
    ious = [found.metrics["miou"] for found in (kept, drawn, voted)]
    return [float(kept.confusion.sum()), *ious, depth.metrics["rmse"]]


@pytest.mark.workers
def test_two_processes_count_each_picture_once_and_say_what_one_says(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(TWO, "utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", str(script), str(tmp_path / "two")),
        ],
        env=clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    first, second = ([float(word) for word in line.split()[2:]] for line in lines)
    assert first == second
    alone = numbers_of(tmp_path / "one", ALONE)
    assert first[0] == alone[0]  # every pixel once
    np.testing.assert_allclose(first[1:], alone[1:], rtol=2e-3)


def test_settings_do_not_change_each_other(data: LabeledDataset, ctx: RunContext) -> None:
    both = run_segmentation(ColorModel(), (FEW, ALL, ALL), data, SMALL, (0,), ctx)
    alone = run_segmentation(ColorModel(), (ALL,), data, SMALL, (0,), ctx)
    assert set(both) == {(FEW, 0), (ALL, 0)}
    assert both[ALL, 0].metrics == alone[ALL, 0].metrics
