"""Cached outputs are the teacher's for the views of training, whatever happened meanwhile."""

import dataclasses
import logging
import shutil
import signal
from collections import namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from tests.data.pictures import write_pictures
from tests.distill.runs import ALONE, rows, small_config
from tests.distill.runs import pictures as photos
from tests.runtime.ranks import run_ranks
from veca.data.augment import ViewConfig
from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec, batches
from veca.distill import teacher_cache
from veca.distill.config import CacheConfig, DistillConfig, Surroundings
from veca.distill.images import ImageSplit
from veca.distill.run import TrainResult, distill
from veca.distill.run_folder import RunContext, RunError, RunFolder
from veca.distill.targets import TeacherCache, find_margin
from veca.distill.teacher_cache import (
    HEADROOM,
    MAX_HALF,
    OutputStore,
    int8_scales,
    open_teacher_cache,
    pack,
)
from veca.runtime.distributed import Ranks
from veca.runtime.signals import StoppedError
from veca.teacher.teacher import Targets, Teacher, cut
from veca.train.schedules import ResolutionPhase

CPU = torch.device("cpu")
SIZE = 32
PATCH_SIZE = 8
NO_FOLDER = RunFolder(Path("unused"))
HALF = CacheConfig(crops=2, dtype="float16")
OPTIONS = dataclasses.replace(ALONE, teacher_batch=1)
"""With which 64 views of 32 pixels fit into a batch, of which a CPU takes 16."""


class CellTeacher(Teacher):
    """Features of the pixels of each cell, through random weights; counts what it is asked."""

    def __init__(self, name: str = "cells", seed: int = 0, image_width: int = 5) -> None:
        super().__init__()
        self.name = name
        self.licence = None
        self.image_width = image_width
        self.patch_width = 16
        self.stride = 1
        draw = torch.Generator().manual_seed(seed)
        self.register_buffer("weight", torch.randn(12, 16, generator=draw))
        self.register_buffer("offset", 3 * torch.rand(16, generator=draw))
        self.asked = 0
        """Images that it was asked about."""
        self.before_answer: Callable[[], None] = lambda: None

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """Four points of every cell, mixed and bent; with a margin blurred, to depend on it."""
        self.asked += len(images)
        self.before_answer()
        rows, columns = (side + 2 * margin for side in grid)
        points = F.adaptive_avg_pool2d(images.float() / 255, (2 * rows, 2 * columns))
        if margin:
            points = cut(F.avg_pool2d(points, 5, stride=1, padding=2), 2 * margin)
        cells = F.unfold(points, kernel_size=2, stride=2).transpose(1, 2)
        patches = torch.tanh((cells - 0.5) @ self.get_buffer("weight")) + self.get_buffer("offset")
        return Targets(patches.mean(1)[:, : self.image_width], patches)


def pictures(folder: Path, count: int = 6) -> ImageIndex:
    """The index of some pictures."""
    write_pictures(folder, count)
    return ImageIndex.load_or_list(folder)


def run_config(cache: CacheConfig = HALF, **changes: Any) -> DistillConfig:
    """A run at 32 pixels, with plain views."""
    wanted = {"resolution": SIZE, "views": ViewConfig(trivial_augment=False), **changes}
    return small_config(Path("unused"), cache=cache, **wanted)


def opened(
    folder: Path,
    index: ImageIndex,
    teachers: Sequence[Teacher] | None = None,
    cache: CacheConfig = HALF,
    *,
    ranks: Ranks | None = None,
    stop: Callable[[], bool] = lambda: False,
    count: int | None = None,
    **changes: Any,
) -> TeacherCache:
    """The cache of a small run on the first images, filled as far as it is not."""
    images = split_of(index, np.arange(len(index) if count is None else count))
    context = RunContext(
        config=run_config(cache, **changes), options=OPTIONS, folder=NO_FOLDER,
        ranks=ranks or Ranks(device=CPU), stop=stop,
    )  # fmt: skip
    teachers = [CellTeacher()] if teachers is None else teachers
    return open_teacher_cache(folder, context, images=images, teachers=teachers)


def split_of(index: ImageIndex, training: NDArray[np.int64]) -> ImageSplit:
    """Images to train on, and none for validation."""
    return ImageSplit(
        index=index, training=training, validation_index=index, validation=training[:0]
    )


def store_of(
    index: ImageIndex,
    root: Path = NO_FOLDER.path,
    *,
    teacher: Teacher | None = None,
    resolution: int = SIZE,
    images: NDArray[np.int64] | None = None,
    **changes: Any,
) -> OutputStore:
    """The outputs of the small teacher at one resolution."""
    split = split_of(index, np.arange(len(index)) if images is None else images)
    precision = changes.pop("precision", "fp32")
    given: dict[str, Any] = {
        "config": run_config(), "options": OPTIONS, "ranks": Ranks(device=CPU), **changes,
    }  # fmt: skip
    context = RunContext(folder=NO_FOLDER, **given)
    return OutputStore(root, teacher or CellTeacher(), resolution, context, split, precision)


def task_of(images: Sequence[int], crops: Sequence[int], size: int = SIZE) -> BatchSpec:
    """The batch of a training step."""
    return BatchSpec(0, 0, np.array(images), np.array(crops), size)


def live_targets(task: BatchSpec, index: ImageIndex, config: DistillConfig) -> Targets:
    """What the small teacher answers to exactly the views that training would load."""
    teacher = CellTeacher()
    margin = find_margin(config, [teacher])
    (batch,) = batches(
        index,
        [task],
        seed=config.cache.seed,
        config=config.views,
        num_workers=0,
        replacements=np.arange(len(index)),
        margin=margin.loaded,
    )
    side = task.resolution // PATCH_SIZE
    return margin.ask(teacher, batch.images, (side, side))


def chunk_files(folder: Path) -> list[Path]:
    """All chunks below a folder."""
    return sorted(folder.rglob("chunk-*.safetensors"))


EVERY = task_of(sorted([*range(6), *range(6)]), [0, 1] * 6)
INT8 = dataclasses.replace(HALF, dtype="int8")


@pytest.fixture(name="index")
def fixture_index(tmp_path: Path) -> ImageIndex:
    """Six pictures."""
    return pictures(tmp_path / "images")


@pytest.fixture(name="small_chunks")
def fixture_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images, so four views, to a chunk."""
    monkeypatch.setattr(teacher_cache, "CHUNK_IMAGES", 2)


def assert_close(found: Targets, wanted: Targets) -> None:
    """Equal to the three digits of half precision."""
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def cosine(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Mean cosine of vectors."""
    return float(torch.nn.functional.cosine_similarity(found, wanted, dim=-1).mean())


def contents(folder: Path) -> list[bytes]:
    """What the chunks below a folder hold."""
    return [path.read_bytes() for path in chunk_files(folder)]


# What is cached.


@pytest.mark.parametrize("seed", [0, 5])
def test_half_precision_is_what_the_teacher_answers_to_three_digits(
    index: ImageIndex, tmp_path: Path, seed: int
) -> None:
    config = dataclasses.replace(HALF, seed=seed)
    (found,) = opened(tmp_path / "cache", index, cache=config).lookup(EVERY, CPU)
    assert_close(found, live_targets(EVERY, index, run_config(config)))
    assert found.image.dtype == found.patches.dtype == torch.float32


@pytest.mark.parametrize("surroundings", ["reflected", "contextual"])
def test_outputs_within_a_margin_are_cached_as_the_teacher_gives_them(
    index: ImageIndex, tmp_path: Path, surroundings: Surroundings
) -> None:
    margin: dict[str, Any] = {"teacher_margin": 2, "teacher_surroundings": surroundings}
    (found,) = opened(tmp_path / "cache", index, **margin).lookup(EVERY, CPU)
    assert_close(found, live_targets(EVERY, index, run_config(**margin)))
    without = live_targets(EVERY, index, run_config())
    assert not torch.allclose(found.patches, without.patches, atol=0.05)


def test_int8_points_where_the_teacher_points_and_takes_half_the_room(
    index: ImageIndex, tmp_path: Path
) -> None:
    opened(tmp_path / "half", index)
    (found,) = opened(tmp_path / "byte", index, cache=INT8).lookup(EVERY, CPU)
    wanted = live_targets(EVERY, index, run_config(INT8))
    assert cosine(found.patches, wanted.patches) > 0.999
    assert cosine(found.image, wanted.image) > 0.99999
    half, byte = (store_of(index, config=run_config(cache)).view_bytes for cache in (HALF, INT8))
    assert (half, byte) == (2 * 5 + 2 * 16 * 16, 2 * 5 + 16 * 16)
    assert sum(map(len, contents(tmp_path / "byte"))) < sum(map(len, contents(tmp_path / "half")))


def test_a_view_of_an_unreadable_image_is_that_of_its_replacement(
    index: ImageIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "images" / "0002.png").write_bytes(b"no picture")
    index = ImageIndex.load_or_list(tmp_path / "images")
    (found,) = opened(tmp_path / "cache", index).lookup(EVERY, CPU)
    assert_close(found, live_targets(EVERY, index, run_config()))
    assert caplog.messages[-1] == "1 images could not be read and were replaced by others."


def test_every_teacher_answers_at_every_resolution_whatever_else_is_asked(
    index: ImageIndex, tmp_path: Path
) -> None:
    cache = opened(
        tmp_path / "cache",
        index,
        [CellTeacher(), CellTeacher("other", seed=1, image_width=7)],
        INT8,
        resolution=None,
        resolutions=(ResolutionPhase(sizes=(16, 32)),),
    )
    images, crops = [5, 1, 2, 2, 5], [1, 0, 0, 1, 0]
    for size, patches in ((16, 4), (32, 16)):
        together = cache.lookup(task_of(images, crops, size), CPU)
        assert [targets.image.shape for targets in together] == [(5, 5), (5, 7)]
        assert [targets.patches.shape for targets in together] == [(5, patches, 16)] * 2
        for place, (image, crop) in enumerate(zip(images, crops, strict=True)):
            (_, alone) = cache.lookup(task_of([image], [crop], size), CPU)
            assert torch.equal(alone.image[0], together[1].image[place])
            assert torch.equal(alone.patches[0], together[1].patches[place])


def test_nothing_can_be_cached_of_no_views_or_of_a_teacher_without_digest(
    index: ImageIndex, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"crops=0 caches nothing; use 1 or more"):
        opened(tmp_path / "cache", index, cache=dataclasses.replace(HALF, crops=0))
    teacher = CellTeacher()
    teacher.__dict__["digest"] = None
    with pytest.raises(RunError, match="the teacher cells has no digest"):
        opened(tmp_path / "cache", index, [teacher])


def test_a_teacher_that_gives_no_numbers_is_refused_with_the_image(
    index: ImageIndex, tmp_path: Path
) -> None:
    teacher = CellTeacher()
    teacher.get_buffer("weight").fill_(torch.inf)
    with pytest.raises(RunError, match=r"cells returns values .* not finite .*0000.png; remove"):
        opened(tmp_path / "cache", index, [teacher])


# What int8 and half precision lose.


def outputs(seed: int = 0) -> Targets:
    """Outputs whose channels have very different sizes."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([100.0, 10.0, 1.0, 0.5, 0.2])
    patches = torch.randn(40, 2, 5, generator=draw) * sizes
    return Targets(torch.randn(40, 3, generator=draw), patches)


@given(seed=st.integers(0, 2**31), factor=st.floats(0.1, HEADROOM))
def test_int8_errs_by_half_a_step_within_its_range(seed: int, factor: float) -> None:
    scales = int8_scales(outputs(seed).patches.abs().amax((0, 1)))
    patches = outputs(seed).patches * factor
    found = pack(Targets(outputs(seed).image, patches), scales)["patches"] * scales
    assert ((found - patches).abs() <= 0.501 * scales).all()


def test_values_out_of_range_are_clipped_and_constant_channels_have_a_scale() -> None:
    largest = outputs().patches.abs().amax((0, 1))
    far = Targets(torch.full((1, 3), 1e6), torch.full((1, 2, 5), -1e9))
    byte, half = pack(far, int8_scales(largest)), pack(far, None)
    torch.testing.assert_close(byte["patches"][0, 0] * int8_scales(largest), -HEADROOM * largest)
    assert half["image"].unique().tolist() == [MAX_HALF]
    assert half["patches"].unique().tolist() == [-MAX_HALF]
    largest[4] = 0
    assert int8_scales(largest)[4] == pytest.approx(float(int8_scales(largest).max()) / 1000)
    assert torch.equal(int8_scales(torch.zeros(5)), torch.ones(5))


# The key.


@pytest.mark.parametrize(
    "changes",
    [
        {"teacher": CellTeacher(name="other")},
        {"teacher": CellTeacher(seed=1)},
        {"teacher": CellTeacher(image_width=4)},
        {"images": np.arange(1, 6)},
        {"config": run_config(dataclasses.replace(HALF, seed=1))},
        {"config": run_config(dataclasses.replace(HALF, crops=3))},
        {"config": run_config(INT8)},
        {"config": run_config(views=ViewConfig(trivial_augment=False, flip=0.25))},
        {"config": run_config(teacher_margin=1)},
        {"config": run_config(teacher_margin=2)},
        {"config": run_config(teacher_margin=1, teacher_surroundings="contextual")},
        {"resolution": 16},
        {"precision": "bf16"},
    ],
    ids=str,
)
def test_whatever_outputs_depend_on_has_a_folder_of_its_own(
    index: ImageIndex, tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = store_of(index).folder
    assert folder == store_of(index, teacher=CellTeacher()).folder
    assert folder != store_of(index, **changes).folder
    assert folder.name.startswith("cells-32px-")


def test_another_image_or_an_image_of_another_size_changes_the_folder(
    index: ImageIndex, tmp_path: Path
) -> None:
    def folder() -> Path:
        return store_of(ImageIndex.load_or_list(tmp_path / "images"), images=np.arange(5)).folder

    before = folder()
    pictures(tmp_path / "images", 7)
    assert folder() != before
    (tmp_path / "images" / "0006.png").unlink()
    assert folder() == before
    (tmp_path / "images" / "0000.png").write_bytes(b"something else")
    assert folder() != before


# Batches and chunks.


def test_chunks_hold_whole_images_and_are_neither_too_large_nor_too_many(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def images_per_chunk() -> float:
        store = store_of(index)
        assert store.count == 12
        return store.chunk_size / 2

    image_bytes = 2 * store_of(index).view_bytes
    assert images_per_chunk() == teacher_cache.CHUNK_IMAGES
    monkeypatch.setattr(teacher_cache, "CHUNK_BYTES", 4 * image_bytes - 1)
    assert images_per_chunk() == 3
    monkeypatch.setattr(teacher_cache, "CHUNK_BYTES", 1)
    assert images_per_chunk() == 1


def test_higher_resolutions_and_margins_go_through_the_teacher_in_smaller_batches(
    index: ImageIndex,
) -> None:
    def sizes(resolution: int, teacher_batch: int, **changes: Any) -> set[int]:
        options = dataclasses.replace(ALONE, teacher_batch=teacher_batch)
        store = store_of(index, resolution=resolution, options=options, **changes)
        found = store.batched(np.arange(320))
        assert np.array_equal(np.concatenate(found), np.arange(320))
        return {len(batch) for batch in found}

    gpu = Ranks(device=torch.device("cuda"))
    assert sizes(256, 2) == {2}
    assert sizes(1024, 2) == {1}
    assert sizes(16, 2) == {16}
    assert sizes(16, 2, ranks=gpu) == {320}
    assert sizes(256, 8) == {8}
    assert sizes(256, 8, config=run_config(teacher_margin=16)) == {2}


# Stops, kills and ranks.


def test_a_stop_leaves_whole_chunks_and_the_next_run_computes_the_rest(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_chunks: None
) -> None:
    opened(tmp_path / "alone", index, cache=INT8)
    monkeypatch.setattr(teacher_cache, "MAX_CPU_BATCH", 2)
    teacher = CellTeacher()
    with pytest.raises(StoppedError):  # 12 views are sampled, 4 are in each of three chunks
        opened(tmp_path / "cache", index, [teacher], INT8, stop=lambda: teacher.asked >= 12 + 4 + 2)
    assert len(chunk_files(tmp_path / "cache")) == 1
    teacher = CellTeacher()
    opened(tmp_path / "cache", index, [teacher], INT8)
    assert teacher.asked == 4 + 8  # all of the finished chunk are compared
    assert contents(tmp_path / "cache") == contents(tmp_path / "alone")


@pytest.mark.workers
def test_two_ranks_share_the_work_and_write_and_read_what_one_would(
    index: ImageIndex, tmp_path: Path, small_chunks: None
) -> None:
    (wanted,) = opened(tmp_path / "alone", index, cache=INT8).lookup(EVERY, CPU)

    def work(ranks: Ranks) -> None:
        teacher = CellTeacher()
        cache = opened(tmp_path / "cache", index, [teacher], INT8, ranks=ranks)
        assert torch.equal(cache.lookup(EVERY, CPU)[0].patches, wanted.patches)
        # Both sample 12 views; the first rank also compares 8.
        assert teacher.asked == (12 + 8 + 8 if ranks.is_main else 12 + 4)

    run_ranks(work, tmp_path)
    assert contents(tmp_path / "cache") == contents(tmp_path / "alone")


def test_outputs_that_do_not_fit_on_the_disk_are_refused_before_any_work(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2000))
    with pytest.raises(RunError, match=r"need 0.00 GB, but .*cache has 0.00 GB free; free disk"):
        opened(tmp_path / "cache", index)
    assert not (tmp_path / "cache").exists()


# What is not trusted blindly.


class Inconstant(CellTeacher):
    """Has the same weights and answers something else."""

    def forward(self, images: torch.Tensor, grid: tuple[int, int], margin: int = 0) -> Targets:
        """Everything upside down."""
        found = super().forward(images.flip(2), grid, margin)
        return found._replace(image=-found.image)


Inconstant.__qualname__, Inconstant.__module__ = CellTeacher.__qualname__, CellTeacher.__module__


def test_a_complete_cache_is_compared_with_the_teacher_and_not_computed(
    index: ImageIndex, tmp_path: Path, caplog: pytest.LogCaptureFixture, small_chunks: None
) -> None:
    opened(tmp_path / "cache", index)
    before = {path: path.stat().st_mtime_ns for path in chunk_files(tmp_path)}
    teacher = CellTeacher()
    with caplog.at_level(logging.INFO, "veca"):
        opened(tmp_path / "cache", index, [teacher])
    assert teacher.asked == teacher_cache.COMPARED_VIEWS
    assert {path: path.stat().st_mtime_ns for path in chunk_files(tmp_path)} == before
    assert caplog.messages == [
        "Cached outputs of cells at 32 px: 12 views as float16; mean cosine with live outputs "
        "1.0000 (image), 1.0000 (patches)."
    ]


def test_a_change_behind_the_name_of_a_teacher_or_an_image_is_refused(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "cache", index)
    with pytest.raises(RunError, match=r"differs from the outputs .* cells .*; delete this"):
        opened(tmp_path / "cache", index, [Inconstant()])
    monkeypatch.setattr(teacher_cache, "COMPARED_VIEWS", 100)
    picture, other = (tmp_path / "images" / f"000{number}.png" for number in (0, 3))
    picture.write_bytes(other.read_bytes())
    with pytest.raises(RunError, match="differs from the outputs"):
        opened(tmp_path / "cache", index)


@pytest.mark.parametrize(("cache", "compared"), [(HALF, 1), (INT8, 8)])
def test_a_chunk_with_a_changed_byte_is_computed_again_when_it_is_first_read(  # noqa: PLR0917
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture, small_chunks: None, cache: CacheConfig, compared: int,
) -> None:  # fmt: skip
    wanted = opened(tmp_path / "cache", index, cache=cache).lookup(EVERY, CPU)
    whole = contents(tmp_path)
    victim = chunk_files(tmp_path)[1]
    victim.write_bytes(whole[1][:-7] + bytes([whole[1][-7] ^ 16]) + whole[1][-6:])
    monkeypatch.setattr(teacher_cache, "COMPARED_VIEWS", compared)  # 1 is of the first chunk
    found = opened(tmp_path / "cache", index, cache=cache).lookup(EVERY, CPU)
    assert all(torch.equal(one, other) for one, other in zip(found[0], wanted[0], strict=True))
    assert contents(tmp_path) == whole
    (warning,) = caplog.messages
    assert warning == f"{victim} is computed again: its tensors do not match their SHA-256."


# Caching without training: many processes can do that before one trains.


@pytest.fixture(name="images", scope="module")
def fixture_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return photos(tmp_path_factory.mktemp("images"))


def run(images: Path, out: Path, teacher: CellTeacher, **changes: Any) -> TrainResult:
    """The small run, its cache beside it."""
    config = small_config(images, cache=CacheConfig(crops=2, dtype="float16"))
    changes = {"cache_teacher": out.parent / "cache", **changes}
    return distill(config, out, ALONE, teachers=[teacher], show_progress=False, **changes)


def test_cache_only_trains_nothing_and_changes_no_later_training(
    images: Path, tmp_path: Path
) -> None:
    teacher, out = CellTeacher(), tmp_path / "before" / "run"
    assert run(images, out, teacher, cache_only=True) == TrainResult(True, 0, None, out)
    assert teacher.asked >= 22 * 2  # 24 pictures, of which 2 are for validation
    assert {path.name for path in out.iterdir()} <= {"index", ".lock"}
    late, alone = CellTeacher(), CellTeacher()
    assert run(images, out, late).finished
    assert run(images, tmp_path / "alone" / "run", alone).finished
    assert rows(out) == rows(tmp_path / "alone" / "run")
    assert late.asked < alone.asked - 20 * 2


def test_a_stop_while_caching_is_reported_and_leaves_the_folder_free(
    images: Path, tmp_path: Path
) -> None:
    teacher, out = CellTeacher(), tmp_path / "run"
    teacher.before_answer = lambda: signal.raise_signal(signal.SIGTERM)
    assert run(images, out, teacher, cache_only=True) == TrainResult(False, 0, signal.SIGTERM, out)
    assert run(images, out, CellTeacher(), cache_only=True).finished


def test_cache_only_needs_a_folder(images: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"add --cache-teacher DIR\."):
        run(images, tmp_path / "run", CellTeacher(), cache_only=True, cache_teacher=None)
    assert not (tmp_path / "run").exists()
