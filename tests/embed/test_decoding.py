"""Ranks give what one process gives, and their failures are told."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.data.pictures import encoded, write_pictures
from veca.data.listing import list_images
from veca.data.transforms import prepare
from veca.embed.decoding import Decoded, Decoder, decoded_batches
from veca.embed.errors import CollectionError
from veca.embed.windows import Task


def decoder_of(paths: list[Path], **choices: Any) -> Decoder:
    table = list_images(paths).table
    return Decoder(table=table, size=32, fit="resize", patch_size=16, **choices)


def tasks_of(count: int, batch: int = 3) -> Iterator[Task]:
    for start in range(0, count, batch):
        rows = np.arange(start, min(start + batch, count))
        yield Task(0, rows + 100, rows)


def flat(batches: list[Decoded]) -> dict[int, torch.Tensor]:
    """Images by their places."""
    return {
        place: image
        for decoded in batches
        for group in decoded.groups
        for place, image in zip(group.places.tolist(), torch.as_tensor(group.images), strict=True)
    }


@pytest.mark.parametrize(("workers", "shares"), [(0, True), (2, True), (2, False)])
def test_workers_decode_what_preparing_gives_in_the_order_of_the_tasks(
    workers: int, shares: bool, tmp_path: Path
) -> None:
    paths = write_pictures(tmp_path, 10)
    decoder = decoder_of(paths, shares_memory=shares)
    before = torch.random.get_rng_state()
    batches = list(decoded_batches(decoder, tasks_of(10), workers))
    assert torch.equal(before, torch.random.get_rng_state())
    places = [sorted(flat([decoded])) for decoded in batches]
    assert places == [[100, 101, 102], [103, 104, 105], [106, 107, 108], [109]]
    for place, image in flat(batches).items():
        assert torch.equal(image, prepare(paths[place - 100], 32).pixels)


def test_pictures_whose_sides_differ_come_in_groups_with_their_original_sides(
    tmp_path: Path,
) -> None:
    decoder = decoder_of(write_pictures(tmp_path, 6))
    (task,) = tasks_of(6, batch=6)
    groups = decoder[task].groups
    assert [tuple(group.images.shape) for group in groups] == [
        (2, 3, 32, 32), (2, 3, 32, 48), (2, 3, 64, 32),
    ]  # fmt: skip
    assert groups[1].originals.tolist() == [[32, 48], [32, 48]]


def test_what_cannot_be_decoded_is_told_and_the_rest_is_decoded(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 4)
    decoder = decoder_of(paths)
    paths[1].write_bytes(encoded(1)[:-40])
    paths[2].unlink()
    (task,) = tasks_of(4, batch=4)
    found = decoder[task]
    assert sorted(flat([found])) == [100, 103]
    assert "cut short" in found.skipped[101]
    assert "does not exist" in found.skipped[102]


class Broken(Decoder):
    """A decoder with a fault of its own."""

    def __getitem__(self, task: Task) -> Decoded:
        raise RuntimeError("Caught a fault in DataLoader worker process 0.")


def test_a_fault_of_ours_is_no_users_mistake(tmp_path: Path) -> None:
    decoder = decoder_of(write_pictures(tmp_path, 1))
    broken = Broken(table=decoder.table, size=32, fit="resize", patch_size=16)
    with pytest.raises(RuntimeError, match="a fault"):
        list(decoded_batches(broken, tasks_of(1), 0))


class Deadly(Decoder):
    """A decoder whose process is ended from outside."""

    def __getitem__(self, task: Task) -> Decoded:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_a_worker_that_is_killed_is_told_in_words(tmp_path: Path) -> None:
    decoder = decoder_of(write_pictures(tmp_path, 1))
    deadly = Deadly(table=decoder.table, size=32, fit="resize", patch_size=16)
    with pytest.raises(CollectionError, match=r"ended from outside .*with fewer workers\."):
        list(decoded_batches(deadly, tasks_of(1), 1))
