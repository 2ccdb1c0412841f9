"""Facts tell models and pictures apart, and nothing else."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.data.pictures import encoded, write_shard
from tests.probe.small_features import CellModel, split_of
from veca.data.images import DataError
from veca.data.listing import RAW_SUFFIX, TableBuilder
from veca.data.sets.dataset import Split
from veca.probe.feature_cache import (
    SAMPLED_PICTURES,
    StoreError,
    model_facts,
    picture_facts,
    unreadable,
)


def moved(split: Split, old: Path, new: Path) -> Split:
    """The same split with its pictures in another folder."""
    table = TableBuilder()
    for key, size in zip(split.keys, split.images.sizes.tolist(), strict=True):
        table.add_file(str(new / key), size)
    shutil.copytree(old, new)
    return dataclasses.replace(split, images=table.table())


def test_a_model_is_known_by_its_digest_and_not_by_its_name() -> None:
    one, other = CellModel(), CellModel()
    other.name = "another path to the same"
    assert model_facts(one) == model_facts(other)
    assert model_facts(one) != model_facts(CellModel(digest="others"))


def test_features_in_another_precision_are_other_features_and_old_ones_stay_known() -> None:
    whole, half = CellModel(), CellModel()
    half.precision = "bf16"
    assert model_facts(half) == {**model_facts(whole), "precision": "bf16"}
    assert "precision" not in model_facts(whole)  # as in stores of before there was a choice


def test_a_model_without_a_digest_is_refused() -> None:
    with pytest.raises(StoreError, match="features of cells cannot be kept, since it has no dig"):
        model_facts(CellModel(digest=None))


def test_pictures_are_known_wherever_they_lie(tmp_path: Path) -> None:
    split = split_of(tmp_path / "here")
    assert picture_facts(moved(split, tmp_path / "here", tmp_path / "there")) == picture_facts(
        split
    )


def test_fewer_pictures_or_another_order_are_other_pictures(tmp_path: Path) -> None:
    found = [picture_facts(split_of(tmp_path, count)) for count in (3, 4)]
    turned = dataclasses.replace(split_of(tmp_path, 4), keys=("b", "a", "c", "d"))
    assert len({str(facts) for facts in (*found, picture_facts(turned))}) == 3


def test_pictures_of_the_same_names_and_sizes_are_told_apart(tmp_path: Path) -> None:
    split = split_of(tmp_path / "here", SAMPLED_PICTURES)
    other = moved(split, tmp_path / "here", tmp_path / "there")
    for key in other.keys:
        path = tmp_path / "there" / key
        path.write_bytes(path.read_bytes()[::-1])
    assert other.fingerprint() == split.fingerprint()
    assert picture_facts(other) != picture_facts(split)


def test_pictures_in_a_shard_are_looked_into_as_well(tmp_path: Path) -> None:
    def split(number: int) -> Split:
        content = encoded(number, (32, 32))
        shard = write_shard(tmp_path / "s.tar", [("a.png", content)])
        table = TableBuilder()
        table.add_member(str(shard), "a.png", 500, 512)
        return Split(name="test", images=table.table(), keys=("a.png",))

    assert picture_facts(split(0)) == picture_facts(split(0))
    assert picture_facts(split(0)) != picture_facts(split(1))


def test_a_record_that_was_cut_short_is_named(tmp_path: Path) -> None:
    table, path = TableBuilder(), tmp_path / "batch.bin"
    path.write_bytes(bytes(3072))
    table.add_member(str(path), f"0{RAW_SUFFIX}", 3072, 1)
    with pytest.raises(DataError, match=r"batch.bin#0.* cannot be read .*cut short"):
        picture_facts(Split(name="test", images=table.table(), keys=("0",)))


def test_a_picture_that_is_not_there_is_named(tmp_path: Path) -> None:
    split = split_of(tmp_path, 3)
    Path(split.image(2).name).unlink()
    with pytest.raises(DataError, match=r"0002.png cannot be read .*No such file"):
        picture_facts(split)
    assert "get the picture again" in str(unreadable(split.image(0), "damaged"))
