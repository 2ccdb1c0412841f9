"""A set is known by its pictures and by what is told of them, not by where it lies."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.probe.small_sets import color_set, split_of, write_classes, write_dense
from veca.data.sets.registry import read_set
from veca.probe import run as set_hashes
from veca.probe.run import data_hash, said_of


def hashes(folder: Path) -> str:
    """The hash of a set on disk."""
    return data_hash(read_set(str(folder)))


def test_a_set_that_moved_is_the_same(tmp_path: Path) -> None:
    before = hashes(write_classes(tmp_path / "a", train=2, val=1))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert hashes(tmp_path / "b") == before


def test_a_picture_more_in_any_part_is_another_set(tmp_path: Path) -> None:
    found = [hashes(write_classes(tmp_path / "first", train=2, val=1, test=1))]
    for part in ("train", "val", "test"):
        folder = tmp_path / part
        shutil.copytree(tmp_path / "first", folder)
        shutil.copy(folder / "val" / "red" / "0.png", folder / part / "red" / "more.png")
        found.append(hashes(folder))
    assert len(set(found)) == 4


def test_other_labels_of_the_same_pictures_are_noticed(tmp_path: Path) -> None:
    plain = color_set(tmp_path)
    changed = color_set(tmp_path, test=split_of(tmp_path, "test", np.arange(9) % 3))
    assert data_hash(plain) == data_hash(changed)
    assert changed.test.labels is not None
    changed.test.labels[4] = 0
    assert data_hash(plain) != data_hash(changed)
    assert data_hash(plain) != data_hash(color_set(tmp_path, classes=("r", "g", "b")))


def test_a_mask_of_another_size_on_disk_is_noticed(tmp_path: Path) -> None:
    before = hashes(write_dense(tmp_path / "farm", "masks"))
    mask = tmp_path / "farm" / "masks" / "50.png"
    noise = np.random.default_rng(0).integers(0, 3, np.array(Image.open(mask)).shape, np.uint8)
    Image.fromarray(noise).save(mask)
    assert hashes(tmp_path / "farm") != before


def test_a_mask_that_was_corrected_at_equal_size_is_noticed(tmp_path: Path) -> None:
    before = hashes(write_dense(tmp_path / "farm", "masks"))
    mask = tmp_path / "farm" / "masks" / "50.png"
    content = bytearray(mask.read_bytes())
    content[-20] ^= 1
    mask.write_bytes(content)
    assert hashes(tmp_path / "farm") != before


def test_of_many_masks_a_sample_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_hashes, "MOST_READ_BYTES", 10)
    monkeypatch.setattr(set_hashes, "SAMPLED", 3)
    folder = write_dense(tmp_path / "farm", "masks")
    data = read_set(str(folder))
    before = data_hash(data)
    first = Path(data.test.targets[0])
    content = bytearray(first.read_bytes())
    content[-20] ^= 1
    first.write_bytes(content)
    assert data_hash(data) != before


def test_what_is_scored_belongs_to_the_labels_and_is_said(tmp_path: Path) -> None:
    data = read_set(str(write_dense(tmp_path / "farm", "masks")))
    some = replace(data, eval_classes=(0, 2), facts={"list": "first"})
    assert data_hash(some) != data_hash(data)
    assert said_of(data) == data.facts
    assert said_of(some) == {"list": "first", "scored": [data.classes[0], data.classes[2]]}
