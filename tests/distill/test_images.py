"""The images of a run: the split, the batches of every step, and unreadable ones."""

import dataclasses
import errno
import json
import logging
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.distill.runs import (
    ALONE,
    CPU,
    ONE,
    TINY,
    PixelTeacher,
    context_of,
    pictures,
    small_config,
)
from veca.data.augment import ViewConfig
from veca.data.images import DataError
from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.images import (
    ImageSplit,
    UnreadableImages,
    batch_specs,
    check_batch,
    find_images,
)
from veca.distill.run_folder import RunContext, RunError, RunFolder
from veca.distill.trainer import Trainer
from veca.runtime.distributed import Ranks
from veca.runtime.files import JsonlWriter
from veca.train.schedules import ResolutionPhase

LENGTH = 12


class OtherRanks(Ranks):
    """One of two ranks, the other of which finds other images."""

    def broadcast_object(self, value: Any) -> Any:
        """The value of the other one."""
        return f"other {value}"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def split_of(images: Path, out: Path, **changes: Any) -> ImageSplit:
    """The images of a run."""
    return find_images(context_of(out, config=small_config(images, **changes)))


def test_every_image_is_for_training_or_validation(images: Path, tmp_path: Path) -> None:
    split = split_of(images, tmp_path)
    assert len(split.validation) == 2  # at most a tenth
    both = np.concatenate((split.training, split.validation))
    assert sorted(both.tolist()) == list(range(24))
    again = split_of(images, tmp_path, validation_images=1000)
    assert again.validation.tolist() == split.validation.tolist()
    assert again.fingerprint == split.fingerprint
    assert (tmp_path / "index" / "training.images").is_file()


def test_separate_validation_images_leave_all_others_for_training(
    images: Path, tmp_path: Path
) -> None:
    own = pictures(tmp_path / "own", 5)
    split = split_of(images, tmp_path / "run", validation=str(own), validation_images=3)
    assert split.training.tolist() == list(range(24))
    assert len(set(split.validation.tolist())) == 3
    assert len(split.validation_index) == 5
    assert split.fingerprint.split("/")[0] == split_of(images, tmp_path).fingerprint.split("/")[0]
    assert split.fingerprint != split_of(images, tmp_path).fingerprint


def test_validation_images_among_the_training_images_are_excluded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    images = pictures(tmp_path / "images", 12)
    inner = pictures(images / "inner", 4)
    split = split_of(images, tmp_path / "run", validation=str(inner), validation_images=4)
    names = {split.index[image].name for image in split.training.tolist()}
    assert len(split.index) == 16
    assert len(names) == 12
    assert not any("inner" in name for name in names)
    assert "4 validation images are excluded" in caplog.text


@pytest.mark.parametrize(("most", "left"), [(5, 5), (22, 22), (1000, 22)])
def test_a_subset_of_the_images_is_chosen_by_name(
    images: Path, tmp_path: Path, most: int, left: int
) -> None:
    whole = split_of(images, tmp_path / "a")
    split = split_of(images, tmp_path / "b", most_images=most)
    assert len(split.training) == left
    assert split.training.tolist() == sorted(set(split.training.tolist()))
    assert set(split.training.tolist()) <= set(whole.training.tolist())
    assert split.validation.tolist() == whole.validation.tolist()
    fewer = split_of(images, tmp_path / "c", most_images=max(1, left - 1))
    assert set(fewer.training.tolist()) < set(split.training.tolist())


def test_images_in_the_run_folder_are_left_out(tmp_path: Path) -> None:
    folder = pictures(tmp_path, 5)
    pictures(folder / "run" / "pictures", 3)
    assert len(split_of(folder, folder / "run").index) == 5
    assert len(split_of(folder / "run" / "pictures", folder / "run").index) == 3


def test_too_few_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="--images is missing; give a folder"):
        find_images(context_of(tmp_path, config=DistillConfig(backbone=TINY)))
    one = pictures(tmp_path / "one", 1)
    with pytest.raises(RunError, match=r"has 1 images, of which 1 .* training and 0 for valid"):
        split_of(one, tmp_path / "run")


def test_files_without_images_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = pictures(tmp_path / "mixed", 3)
    (mixed / "torn.tar").write_bytes(b"no shard" * 100)
    with caplog.at_level(logging.WARNING, "veca"):
        split_of(mixed, tmp_path / "run")
    assert caplog.text.count("torn.tar") == 1


def test_ranks_that_find_different_images_are_refused(images: Path, tmp_path: Path) -> None:
    ranks = OtherRanks(rank=1, world_size=2, device=CPU)
    context = context_of(tmp_path, ranks, config=small_config(images))
    with pytest.raises(RunError, match="ranks found different images"):
        find_images(context)


# Batches


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> ImageSplit:
    """Ten training images, numbered 2 to 11."""
    index = ImageIndex.load_or_list(pictures(tmp_path_factory.mktemp("images"), 12))
    return ImageSplit(
        index=index, training=np.arange(2, 12), validation_index=index, validation=np.arange(2)
    )


def config_of(batch: int = 12, seed: int = 3) -> DistillConfig:
    """A run with two phases of resolutions."""
    phases = (
        ResolutionPhase(sizes=(16, 32)),
        ResolutionPhase(sizes=(24, 32, 40), from_share=0.5),
    )
    return small_config(Path("nowhere"), batch=batch, resolutions=phases, seed=seed)


def specs_of_ranks(
    training: NDArray[np.int64],
    count: int,
    parts: int,
    steps: range,
    *,
    crops: int | None = None,
    seed: int = 3,
) -> list[list[BatchSpec]]:
    """The batches of each rank."""
    config, options = config_of(seed=seed), RunOptions(accumulate=parts)
    ranks = [Ranks(rank=rank, world_size=count, device=CPU) for rank in range(count)]
    contexts = [
        RunContext(config=config, options=options, folder=RunFolder(Path()), ranks=one)
        for one in ranks
    ]
    return [list(batch_specs(context, training, steps, LENGTH, crops)) for context in contexts]


def samples(found: list[list[BatchSpec]], step: int) -> list[tuple[int, int]]:
    """Images and draws of a step over all ranks and parts."""
    return [
        pair
        for mine in found
        for spec in mine
        if spec.step == step
        for pair in zip(spec.indices.tolist(), spec.crop_ids.tolist(), strict=True)
    ]


@given(
    st.integers(1, 40),
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3), (3, 4), (4, 3), (6, 2)]),
    st.integers(0, LENGTH - 1),
)
@settings(max_examples=25)
def test_all_parts_of_all_ranks_are_the_batch_of_one_wherever_a_run_is_resumed(
    images: int, cut: tuple[int, int], start: int
) -> None:
    count, parts = cut
    training = 5 + 3 * np.arange(images)
    whole = specs_of_ranks(training, 1, 1, range(LENGTH))
    found = specs_of_ranks(training, count, parts, range(start, LENGTH))
    for step in range(start, LENGTH):
        assert samples(found, step) == samples(whole, step)
        sizes = {spec.resolution for mine in (*found, *whole) for spec in mine if spec.step == step}
        assert len(sizes) == 1
    for mine in found:
        assert [(spec.step, spec.part) for spec in mine] == [
            (step, part) for step in range(start, LENGTH) for part in range(parts)
        ]
        assert {len(spec.indices) for spec in mine} == {12 // count // parts}


def test_every_image_comes_once_in_every_epoch_and_sizes_follow_the_phases() -> None:
    training = np.arange(100, 108)
    (mine,) = specs_of_ranks(training, 1, 1, range(LENGTH))  # 144 samples of 8 images
    seen = [pair for step in range(LENGTH) for pair in samples([mine], step)]
    expected = {(image, epoch) for image in range(100, 108) for epoch in range(18)}
    assert len(seen) == len(set(seen)) == 144
    assert set(seen) == expected
    assert {spec.resolution for spec in mine[: LENGTH // 2]} <= {16, 32}
    assert {spec.resolution for spec in mine[LENGTH // 2 :]} <= {24, 32, 40}


@given(st.integers(1, 9), st.integers(0, 5), st.sampled_from([1, 2, 4]))
@settings(max_examples=15)
def test_a_cached_view_is_drawn_by_seed_epoch_and_image_alone(
    crops: int, seed: int, count: int
) -> None:
    training = np.arange(8)
    chosen: dict[tuple[int, int], int] = {}
    found = specs_of_ranks(training, count, 3, range(LENGTH), crops=crops, seed=seed)
    (ordered,) = specs_of_ranks(training, 1, 1, range(LENGTH), crops=crops, seed=seed)
    (live,) = specs_of_ranks(training, 1, 1, range(LENGTH), seed=seed)
    for step in range(LENGTH):
        assert samples(found, step) == samples([ordered], step)
    for spec, plain in zip(ordered, live, strict=True):
        assert spec.indices.tolist() == plain.indices.tolist()
        for image, crop, epoch in zip(spec.indices, spec.crop_ids, plain.crop_ids, strict=True):
            assert 0 <= crop < crops
            assert chosen.setdefault((int(image), int(epoch)), int(crop)) == crop


@pytest.mark.parametrize(("count", "parts"), [(5, 1), (1, 5), (2, 4)])
def test_a_batch_that_does_not_split_evenly_is_refused(count: int, parts: int) -> None:
    ranks, options = Ranks(world_size=count, device=CPU), RunOptions(accumulate=parts)
    context = RunContext(
        config=config_of(12), options=options, folder=RunFolder(Path()), ranks=ranks
    )
    with pytest.raises(ValueError, match=rf"batch=12 .* use a multiple of {count * parts}\."):
        check_batch(context)
    check_batch(dataclasses.replace(context, config=config_of(3 * count * parts)))


def test_only_training_images_replace_others(tmp_path: Path) -> None:
    colors = {2: (255, 0, 0)}  # all others are black
    for number in range(12):
        picture = Image.new("RGB", (32, 32), colors.get(number, (0, 0, 0)))
        picture.save(tmp_path / f"{number:04}.png")
    for number in (3, 4):
        (tmp_path / f"{number:04}.png").write_bytes(b"no picture")
    index = ImageIndex.load_or_list(tmp_path)
    split = ImageSplit(
        index=index, training=np.arange(2, 5), validation_index=index, validation=np.arange(2)
    )
    config = dataclasses.replace(
        small_config(tmp_path, batch=3), views=ViewConfig(trivial_augment=False)
    )
    context = dataclasses.replace(context_of(tmp_path / "run", config=config), options=ALONE)
    trainer = Trainer(context, split, [PixelTeacher()])
    with closing(trainer.batches()) as found:
        batch = next(found)
    assert sorted(batch.unreadable) == [3, 4]
    assert batch.images[:, 0].eq(255).all()
    assert batch.images[:, 1:].eq(0).all()


# Unreadable images


def unreadable_of(
    some: ImageSplit, path: Path, share: float = 0.5, ranks: Ranks = ONE
) -> UnreadableImages:
    """A count for these images."""
    config = dataclasses.replace(small_config(path), max_unreadable=share)
    context = RunContext(config=config, folder=RunFolder(path), ranks=ranks)
    return UnreadableImages(some.index, len(some.training), context)


def listed(path: Path) -> list[tuple[str, str]]:
    """Names and reasons in a list of unreadable images."""
    lines = (path / "unreadable.jsonl").read_text("utf-8").splitlines()
    return [(Path(row["image"]).name, row["reason"]) for row in map(json.loads, lines)]


def test_an_unreadable_image_counts_and_is_listed_once(some: ImageSplit, tmp_path: Path) -> None:
    found = unreadable_of(some, tmp_path)
    assert found.note({3: "torn", 7: "empty"}) == 2
    found.synchronize()
    assert found.note({3: "torn", 8: "odd"}) == 1
    found.synchronize()
    found.synchronize()
    assert found.count == 3
    assert found.tensor().tolist() == [3, 7, 8]
    expected = [("0003.png", "torn"), ("0007.png", "empty"), ("0008.png", "odd")]
    assert listed(tmp_path) == expected

    resumed = unreadable_of(some, tmp_path)  # from a checkpoint before the last one
    resumed.load(torch.tensor([3, 7]))
    assert resumed.note({3: "torn", 8: "odd", 9: "odd"}) == 2
    resumed.synchronize()
    assert resumed.count == 4
    assert listed(tmp_path) == [*expected, ("0009.png", "odd")]


@pytest.mark.parametrize(
    ("share", "most"), [(0.0, 0), (0.01, 1), (0.1, 1), (0.25, 2), (0.3, 3), (1.0, 10)]
)
def test_more_than_the_allowed_share_stops_the_run(
    some: ImageSplit, tmp_path: Path, share: float, most: int
) -> None:
    found = unreadable_of(some, tmp_path, share)
    numbers = [int(number) for number in some.training]
    found.note(dict.fromkeys(numbers[:most], "torn"))
    found.synchronize()
    if most < len(numbers):
        found.note({numbers[most]: "torn"})
        with pytest.raises(
            DataError, match=rf"{most + 1} images cannot be read \(torn\).*{share:g}"
        ):
            found.synchronize()
        assert len(listed(tmp_path)) == most + 1  # also the one too many


def test_a_list_that_cannot_be_written_now_is_written_later(
    some: ImageSplit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    found = unreadable_of(some, tmp_path)
    found.note({3: "torn"})
    with monkeypatch.context() as patch:
        patch.setattr(JsonlWriter, "write", full)
        found.synchronize()
    assert listed(tmp_path) == []
    found.synchronize()
    assert listed(tmp_path) == [("0003.png", "torn")]
