"""The images of every step."""

import dataclasses
import errno
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from tests.distill.built import CPU
from tests.distill.runs import pictures, small_config
from veca.data.augment import ViewConfig
from veca.data.images import DataError
from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec
from veca.distill.config import DistillConfig, Efficiency
from veca.distill.feed import Pictures, Unreadable, check_batch, tasks, training_batches
from veca.runtime.distributed import Ranks
from veca.runtime.files import JsonlWriter
from veca.train.schedules import ResolutionPhase

LENGTH = 12


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Pictures:
    """Ten pictures to train on, numbered 2 to 11."""
    index = ImageIndex.load_or_list(pictures(tmp_path_factory.mktemp("images"), 12))
    return Pictures(
        index=index, training=np.arange(2, 12), validation_index=index, validation=np.arange(2)
    )


def config_of(batch: int = 12, seed: int = 3) -> DistillConfig:
    """A run with two phases of resolutions."""
    phases = (
        ResolutionPhase(sizes=(16, 32)),
        ResolutionPhase(sizes=(24, 32, 40), from_share=0.5),
    )
    return small_config(Path("nowhere"), batch=batch, resolutions=phases, seed=seed)


def dealt(
    training: NDArray[np.int64],
    count: int,
    parts: int,
    steps: range,
    *,
    crops: int | None = None,
    seed: int = 3,
) -> list[list[BatchSpec]]:
    """The tasks of each process."""
    efficiency = Efficiency(accumulate=parts)
    return [
        list(tasks(config_of(seed=seed), efficiency, training, Ranks(rank=rank, world_size=count,
                   device=CPU), steps=steps, length=LENGTH, crops=crops))
        for rank in range(count)
    ]  # fmt: skip


def samples(found: list[list[BatchSpec]], step: int) -> list[tuple[int, int]]:
    """Images and draws of a step over all processes and parts."""
    return [
        pair
        for mine in found
        for task in mine
        if task.step == step
        for pair in zip(task.indices.tolist(), task.crop_ids.tolist(), strict=True)
    ]


@given(
    st.integers(1, 40),
    st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3), (3, 4), (4, 3), (6, 2)]),
    st.integers(0, LENGTH - 1),
)
@settings(max_examples=25)
def test_all_parts_of_all_processes_are_the_batch_of_one_wherever_a_run_is_resumed(
    images: int, cut: tuple[int, int], start: int
) -> None:
    count, parts = cut
    training = 5 + 3 * np.arange(images)
    whole = dealt(training, 1, 1, range(LENGTH))
    found = dealt(training, count, parts, range(start, LENGTH))
    for step in range(start, LENGTH):
        assert samples(found, step) == samples(whole, step)
        sizes = {task.resolution for mine in (*found, *whole) for task in mine if task.step == step}
        assert len(sizes) == 1
    for mine in found:
        assert [(task.step, task.part) for task in mine] == [
            (step, part) for step in range(start, LENGTH) for part in range(parts)
        ]
        assert {len(task.indices) for task in mine} == {12 // count // parts}


def test_every_image_comes_once_in_every_epoch() -> None:
    training = np.arange(100, 108)
    (mine,) = dealt(training, 1, 1, range(LENGTH))  # 144 samples of 8 images
    seen = [pair for step in range(LENGTH) for pair in samples([mine], step)]
    wanted = {(image, epoch) for image in range(100, 108) for epoch in range(18)}
    assert len(seen) == len(set(seen)) == 144
    assert set(seen) == wanted


def test_resolutions_come_from_the_phase_of_the_step() -> None:
    (mine,) = dealt(np.arange(9), 1, 1, range(LENGTH))
    assert {task.resolution for task in mine[: LENGTH // 2]} <= {16, 32}
    assert {task.resolution for task in mine[LENGTH // 2 :]} <= {24, 32, 40}


@given(st.integers(1, 9), st.integers(0, 5), st.sampled_from([1, 2, 4]))
@settings(max_examples=15)
def test_a_kept_view_is_drawn_by_seed_epoch_and_image_alone(
    crops: int, seed: int, count: int
) -> None:
    training = np.arange(8)
    chosen: dict[tuple[int, int], int] = {}
    found = dealt(training, count, 3, range(LENGTH), crops=crops, seed=seed)
    ordered = dealt(training, 1, 1, range(LENGTH), crops=crops, seed=seed)
    for step in range(LENGTH):
        assert samples(found, step) == samples(ordered, step)
    for task, plain in zip(ordered[0], dealt(training, 1, 1, range(LENGTH), seed=seed)[0],
                           strict=True):  # fmt: skip
        assert task.indices.tolist() == plain.indices.tolist()
        for image, crop, epoch in zip(task.indices, task.crop_ids, plain.crop_ids, strict=True):
            assert 0 <= crop < crops
            assert chosen.setdefault((int(image), int(epoch)), int(crop)) == crop


def test_every_kept_view_is_used() -> None:
    (mine,) = dealt(np.arange(8), 1, 1, range(LENGTH), crops=4)
    drawn = np.concatenate([task.crop_ids for task in mine])
    assert np.bincount(drawn, minlength=4).min() > 20  # of 36 that would be even


@pytest.mark.parametrize(("count", "parts"), [(5, 1), (1, 5), (2, 4)])
def test_a_batch_that_cannot_be_cut_evenly_is_refused_with_what_can(count: int, parts: int) -> None:
    workers = Ranks(world_size=count, device=CPU)
    with pytest.raises(ValueError, match=rf"batch=12 .* use a multiple of {count * parts}\."):
        check_batch(config_of(12), Efficiency(accumulate=parts), workers)
    check_batch(config_of(3 * count * parts), Efficiency(accumulate=parts), workers)


def test_only_training_images_stand_in_for_others(tmp_path: Path) -> None:
    colors = {2: (255, 0, 0)}  # all others are black
    for number in range(12):
        picture = Image.new("RGB", (32, 32), colors.get(number, (0, 0, 0)))
        picture.save(tmp_path / f"{number:04}.png")
    for number in (3, 4):
        (tmp_path / f"{number:04}.png").write_bytes(b"no picture")
    index = ImageIndex.load_or_list(tmp_path)
    some = Pictures(
        index=index, training=np.arange(2, 5), validation_index=index, validation=np.arange(2)
    )
    config = dataclasses.replace(config_of(), views=ViewConfig(trivial_augment=False))
    task = BatchSpec(0, 0, np.array([2, 3, 4]), np.array([0, 0, 0]), 16)
    (batch,) = training_batches(some, iter([task]), config, Efficiency(workers=0), seed=1)
    assert sorted(batch.unreadable) == [3, 4]
    assert batch.images.shape == (3, 3, 16, 16)
    assert batch.images[:, 0].eq(255).all()
    assert batch.images[:, 1:].eq(0).all()


def test_the_fingerprint_tells_both_sets_of_images(some: Pictures, tmp_path: Path) -> None:
    other = Pictures(
        index=some.index,
        training=some.training,
        validation_index=ImageIndex.load_or_list(pictures(tmp_path, 2)),
        validation=np.arange(2),
    )
    assert some.fingerprint != other.fingerprint
    assert some.fingerprint.split("/")[0] == other.fingerprint.split("/")[0]


def listed(path: Path) -> list[dict[str, str]]:
    """The rows of a list of unreadable images."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_an_unreadable_image_counts_and_is_listed_once(some: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "unreadable.jsonl"
    found = Unreadable(some.index, len(some.training), 0.5, Ranks(device=CPU), path)
    assert found.note({3: "torn", 7: "empty"}) == 2
    found.agree()
    assert found.note({3: "torn", 8: "odd"}) == 1
    found.agree()
    found.agree()
    assert found.count == 3
    assert found.tensor().tolist() == [3, 7, 8]
    assert [(Path(row["image"]).name, row["reason"]) for row in listed(path)] == [
        ("0003.png", "torn"), ("0007.png", "empty"), ("0008.png", "odd"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "most"), [(0.0, 0), (0.01, 1), (0.1, 1), (0.25, 2), (0.3, 3), (1.0, 10)]
)
def test_more_than_the_allowed_share_stops_the_run(
    some: Pictures, tmp_path: Path, share: float, most: int
) -> None:
    path = tmp_path / "unreadable.jsonl"
    found = Unreadable(some.index, len(some.training), share, Ranks(device=CPU), path)
    numbers = [int(number) for number in some.training]
    found.note(dict.fromkeys(numbers[:most], "torn"))
    found.agree()
    if most < len(numbers):
        found.note({numbers[most]: "torn"})
        with pytest.raises(
            DataError, match=rf"{most + 1} images cannot be read \(torn\).*{share:g}"
        ):
            found.agree()
        assert len(listed(path)) == most + 1  # also the one too many


def test_those_of_a_checkpoint_count_but_are_not_listed_again(
    some: Pictures, tmp_path: Path
) -> None:
    path = tmp_path / "unreadable.jsonl"
    found = Unreadable(some.index, len(some.training), 0.5, Ranks(device=CPU), path)
    found.load(torch.tensor([4, 5]))
    assert found.note({4: "torn", 6: "torn"}) == 1
    found.agree()
    assert found.count == 3
    assert [Path(row["image"]).name for row in listed(path)] == ["0006.png"]


def test_what_a_killed_run_has_listed_is_not_listed_again(some: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "unreadable.jsonl"
    for _ in range(2):  # the second one resumes from before the first image was met
        found = Unreadable(some.index, len(some.training), 0.5, Ranks(device=CPU), path)
        found.note({3: "torn"})
        found.agree()
    assert len(listed(path)) == 1


def test_a_list_that_cannot_be_written_now_is_written_later(
    some: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "unreadable.jsonl"
    found = Unreadable(some.index, len(some.training), 0.5, Ranks(device=CPU), path)
    found.note({3: "torn"})
    with monkeypatch.context() as patch:
        patch.setattr(JsonlWriter, "write", raise_full_disk)
        found.agree()
    assert listed(path) == []
    found.agree()
    assert [row["reason"] for row in listed(path)] == ["torn"]


def raise_full_disk(*_: object) -> None:
    """As a disk without room."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_only_the_first_process_writes_the_list(some: Pictures, tmp_path: Path) -> None:
    path = tmp_path / "unreadable.jsonl"
    found = Unreadable(
        some.index, len(some.training), 0.5, Ranks(rank=1, world_size=2, device=CPU), path
    )
    found.note({3: "torn"})
    found.agree()
    assert found.count == 1
    assert not path.exists()
