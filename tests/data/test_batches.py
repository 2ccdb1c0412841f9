"""Batches follow from the seed, the images and their draws, and from nothing else."""

import os
import random
import shutil
import signal
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.data.pictures import encoded, write_pictures, write_shard
from veca.data import loader as module
from veca.data.augment import ViewConfig, center_view, inner_view, training_view
from veca.data.images import DataError, decode
from veca.data.listing import ImageIndex, open_image
from veca.data.loader import Batch, BatchSpec, batches, sample_order

SEED = 5


def task_of(
    indices: Iterable[int], draw: int = 0, step: int = 0, resolution: int = 16
) -> BatchSpec:
    numbers = np.array(list(indices), np.int64)
    return BatchSpec(step, 0, numbers, np.full_like(numbers, draw), resolution)


def made(index: ImageIndex, tasks: Iterable[BatchSpec], **choices: Any) -> list[Batch]:
    usual: dict[str, Any] = {"seed": SEED, "config": ViewConfig(), "num_workers": 0}
    with closing(batches(index, tasks, **usual | choices)) as found:
        return list(found)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Eight images, half of them in a shard."""
    write_pictures(tmp_path / "images", 4)
    members = [(f"{number}.png", encoded(number)) for number in range(4, 8)]
    write_shard(tmp_path / "images" / "s.tar", members)
    return tmp_path / "images"


def test_a_view_is_drawn_from_the_seed_the_draw_and_the_image(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    task = BatchSpec(3, 1, np.array([2, 0, 2, 2]), np.array([0, 0, 1, 0]), 16)
    ((found, views, unreadable),) = made(index, [task])
    assert found is task
    assert unreadable == {}
    for view, image, draw in zip(views, [2, 0, 2, 2], [0, 0, 1, 0], strict=True):
        picture = decode(index[image].name)
        numbers = random.Random(f"view/{SEED}/{draw}/{image}")
        assert torch.equal(view, training_view(picture, 16, numbers, ViewConfig()))
    assert torch.equal(views[0], views[3])
    assert not torch.equal(views[0], views[2])


def tasks_of(part: int, resolution: int = 24) -> Iterator[BatchSpec]:
    """Three steps of six samples of eight images, in parts."""
    for step in range(3):
        places, epochs = sample_order(8, 6, step, SEED)
        for start in range(0, 6, part):
            taken = slice(start, start + part)
            yield BatchSpec(step, start // part, places[taken], epochs[taken], resolution)


@pytest.mark.parametrize(("workers", "part"), [(1, 6), (2, 6), (4, 6), (0, 1), (2, 2), (2, 3)])
def test_views_do_not_depend_on_workers_or_on_how_a_batch_is_split(
    workers: int, part: int, images: Path
) -> None:
    index = ImageIndex.load_or_list(images)
    expected = torch.cat([batch.images for batch in made(index, tasks_of(6))])
    found = made(index, tasks_of(part), num_workers=workers)
    assert [batch.task.part for batch in found] == list(range(6 // part)) * 3
    assert torch.equal(torch.cat([batch.images for batch in found]), expected)


def test_little_shared_memory_changes_nothing(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = ImageIndex.load_or_list(images)
    expected = made(index, tasks_of(6))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    found = made(index, tasks_of(6), num_workers=1)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.images, other.images)
        assert not one.images.is_shared()


def test_outside_training_the_middle_is_seen_whatever_the_draw(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    ((_, views, _),) = made(index, [task_of(range(4), draw=7)], training=False)
    for number, view in enumerate(views):
        assert torch.equal(view, center_view(decode(index[number].name), 16, ViewConfig()))
    other = made(index, [task_of(range(4), draw=8)], training=False, seed=1)
    assert torch.equal(views, other[0].images)


def test_resolutions_may_change_from_task_to_task_and_a_task_may_be_empty(images: Path) -> None:
    tasks = [task_of([0], resolution=16), task_of([], resolution=16), task_of([0], resolution=32)]
    shapes = [tuple(batch.images.shape) for batch in made(ImageIndex.load_or_list(images), tasks)]
    assert shapes == [(1, 3, 16, 16), (0, 3, 16, 16), (1, 3, 32, 32)]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_image_that_cannot_be_read_is_replaced_by_another_and_told(
    workers: int, training: bool, images: Path
) -> None:
    index = ImageIndex.load_or_list(images)
    (before,) = made(index, [task_of(range(8))], training=training)
    (images / "0001.png").write_bytes(encoded(1)[:-40])
    (images / "0002.png").unlink()
    kept = np.array([0, 3, 4, 5])
    tasks = [task_of(range(8)), task_of([1]), task_of([2])]
    choices = {"num_workers": workers, "training": training, "replacements": kept}
    whole, one, two = made(index, tasks, **choices)
    assert set(whole.unreadable) == {1, 2}
    assert "cut short" in whole.unreadable[1]
    assert "does not exist" in whole.unreadable[2]
    assert set(one.unreadable) == {1}
    others = [0, 3, 4, 5, 6, 7]
    assert torch.equal(whole.images[others], before.images[others])
    assert torch.equal(whole.images[1:3], torch.cat((one.images, two.images)))
    for bad, view in zip((1, 2), whole.images[1:3], strict=True):
        possible = [view_in_place(index, other, bad, training) for other in kept.tolist()]
        assert any(torch.equal(view, each) for each in possible)


def view_in_place(index: ImageIndex, other: int, image: int, training: bool) -> torch.Tensor:
    """The view of an image that stands in for another one."""
    with open_image(index[other]) as file:
        picture = decode(file)
    if not training:
        return center_view(picture, 16, ViewConfig())
    return training_view(picture, 16, random.Random(f"view/{SEED}/0/{image}"), ViewConfig())


def test_replacements_are_drawn_anew_in_each_epoch_of_training_only(images: Path) -> None:
    index = ImageIndex.load_or_list(images)
    (images / "0001.png").unlink()
    plain = ViewConfig(flip=0.0, trivial_augment=False, margin=1.0)
    tasks = [task_of([1], draw=draw) for draw in range(12)]
    kinds = {}
    for training in (True, False):
        found = made(index, tasks, training=training, config=plain)
        kinds[training] = len({batch.images.numpy().tobytes() for batch in found})
    assert kinds[True] > 3
    assert kinds[False] == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_images_of_which_none_can_be_read_stop_with_the_name_and_the_reason(
    workers: int, tmp_path: Path
) -> None:
    for path in write_pictures(tmp_path, 3):
        path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"^\S+0001\.png cannot be read \(.*check that") as raised:
        made(ImageIndex.load_or_list(tmp_path), [task_of([1])], num_workers=workers)
    assert "Traceback" not in str(raised.value)


def test_some_images_that_can_be_read_are_enough(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 6)
    for path in paths[1:]:
        path.write_bytes(b"nothing")
    (batch,) = made(ImageIndex.load_or_list(tmp_path), [task_of(range(6))])
    assert sorted(batch.unreadable) == [1, 2, 3, 4, 5]


def test_a_worker_that_is_killed_is_told_with_what_to_do(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(module, "decode", die)
    with pytest.raises(DataError, match=r"ended from outside .*--resume and fewer workers\."):
        made(ImageIndex.load_or_list(images), [task_of([0])], num_workers=1)
    with pytest.raises(DataError, match=r"memory ran out; buy some\.$"):
        made(ImageIndex.load_or_list(images), [task_of([0])], num_workers=1, what_to_do="buy some")


def in_order(steps: int, count: int, batch: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """All samples of some steps, one after the other."""
    parts = [sample_order(count, batch, step, seed) for step in range(steps)]
    return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


@given(count=st.integers(1, 40), batch=st.integers(1, 50), seed=st.integers(-3, 99))
def test_every_image_comes_once_in_an_epoch_whatever_the_batch(
    count: int, batch: int, seed: int
) -> None:
    steps = -(-3 * count // batch)
    places, epochs = in_order(steps, count, batch, seed)
    for epoch in range(3):
        assert sorted(places[epoch * count : (epoch + 1) * count].tolist()) == list(range(count))
    assert epochs.tolist() == [number // count for number in range(steps * batch)]
    singly, _ = in_order(steps * batch, count, 1, seed)
    assert np.array_equal(places, singly)


def test_epochs_and_seeds_are_shuffled_apart() -> None:
    places, _ = in_order(3, 100, 100, seed=0)
    other, _ = in_order(1, 100, 100, seed=1)
    first, second, third = places.reshape(3, 100)
    orders = (first, second, third, other, np.arange(100))
    assert len({order.tobytes() for order in orders}) == 5
    for order in orders[:4]:
        assert abs(np.corrcoef(order, np.arange(100))[0, 1]) < 0.3


def test_the_order_is_the_same_in_all_versions() -> None:
    places, epochs = sample_order(10, 12, 0, seed=42)
    assert places.tolist() == [7, 0, 3, 4, 8, 5, 9, 2, 6, 1, 1, 4]
    assert epochs.tolist() == [0] * 10 + [1] * 2


@pytest.mark.parametrize(("count", "batch", "step"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_a_batch_that_is_none_is_refused(count: int, batch: int, step: int) -> None:
    with pytest.raises(DataError, match="at least 1"):
        sample_order(count, batch, step, 0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_margin_that_is_not_given_is_cut_off_the_same_views(
    images: Path, training: bool, num_workers: int
) -> None:
    index, choices = ImageIndex.load_or_list(images), {"training": training, "margin": 6}
    outer = made(index, tasks_of(3), **choices)
    inner = made(index, tasks_of(3), **choices, give_margin=False, num_workers=num_workers)
    for whole, part in zip(outer, inner, strict=True):
        assert whole.images.shape[1:] == (3, 36, 36)
        assert torch.equal(part.images, inner_view(whole.images, 24))
    picture, draw = decode(index[0].name), random.Random(f"view/{SEED}/0/0")
    wanted = (
        training_view(picture, 24, draw, ViewConfig(), margin=6)
        if training
        else center_view(picture, 24, ViewConfig(), margin=6)
    )
    (found,) = made(index, [task_of([0], resolution=24)], **choices)
    assert torch.equal(found.images[0], wanted)
