"""Pictures and targets are read in order, in processes or here, and failures name the file."""

import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.probe.dense_scenes import farm, read_array, scene, split_of
from veca.data.images import DataError
from veca.data.listing import TableBuilder, members
from veca.data.sets.dataset import Split
from veca.probe.dense_reading import (
    load_pair,
    load_picture,
    load_target,
    part_of,
    read_all,
    target_facts,
)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return split_of(tmp_path, "train", "masks", range(4))


def tripled(number: int) -> int:
    if number == 7:
        raise ValueError("seven is no number to triple")
    return 3 * number


@pytest.mark.parametrize("loaders", [0, 2])
def test_answers_come_in_order_and_failures_in_their_own_words(loaders: int) -> None:
    assert list(read_all(tripled, [1, 2, 3, 4], loaders)) == [3, 6, 9, 12]
    with pytest.raises(DataError, match=r"^seven is no number to triple$"):
        list(read_all(tripled, [1, 7], loaders))


def test_a_pair_is_a_picture_and_its_target(split: Split) -> None:
    pixels, mask = scene(2)
    picture, target = load_pair(split, 2)
    np.testing.assert_array_equal(picture.pixels().permute(1, 2, 0).numpy(), pixels)
    np.testing.assert_array_equal(target, mask)


def test_a_target_of_another_size_is_refused(split: Split) -> None:
    np.save(split.targets[1], np.zeros((3, 4), np.uint8))
    with pytest.raises(DataError, match=r"masks-1\.npy has 3 x 4 pixels, but its picture has 48"):
        load_pair(split, 1)


def test_what_cannot_be_read_is_named(split: Split) -> None:
    Path(split.image(0).name).write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"masks-0\.png cannot be read"):
        load_picture(split, 0)
    Path(split.targets[0]).unlink()
    with pytest.raises(DataError, match=r"masks-0\.npy cannot be read"):
        load_target(split, 0)


def test_facts_change_with_what_targets_say(split: Split, tmp_path: Path) -> None:
    facts = target_facts(split)
    assert facts == target_facts(split)
    copy = split_of(tmp_path / "elsewhere", "train", "masks", range(4))
    assert facts == target_facts(copy)
    assert facts != target_facts(part_of(split, np.array([0, 1]), "part"))
    assert facts != target_facts(replace(split, read_target=_other))


def _other(path: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """The same files read as other classes."""
    found = read_array(path)
    return np.where(found == 1, 2, found).astype(np.uint8)


def test_a_part_of_a_split_has_those_pictures(split: Split) -> None:
    part = part_of(split, np.array([3, 1]), "two")
    assert (part.name, len(part)) == ("two", 2)
    assert part.keys == (split.keys[3], split.keys[1])
    assert part.image(0) == split.image(3)
    np.testing.assert_array_equal(part.target(1), split.target(1))


def test_a_part_may_lie_in_a_tar_shard(tmp_path: Path) -> None:
    shard = tmp_path / "shard.tar"
    with tarfile.open(shard, "w") as tar:
        for number in range(3):
            path = tmp_path / f"{number}.png"
            Image.fromarray(scene(number)[0]).save(path)
            tar.add(path, path.name)
    table = TableBuilder()
    for member in members(str(shard)):
        table.add_member(str(shard), member.name, member.num_bytes, member.start)
    whole = Split(name="val", images=table.table(), keys=("0", "1", "2"), targets=("", "", ""))
    part = part_of(whole, np.array([2]), "one")
    assert part.image(0) == whole.image(2)
    assert load_picture(part, 0).sides == scene(2)[1].shape


def test_the_small_set_of_these_tests_is_what_it_seems(tmp_path: Path) -> None:
    data = farm(tmp_path)
    assert data.train is not None
    assert {load_picture(data.train, index).sides for index in range(3)} == {
        (40, 56),
        (48, 48),
        (64, 40),
    }
