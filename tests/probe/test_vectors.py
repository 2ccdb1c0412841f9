"""Heads see the vectors that are kept, of which few are in memory at a time."""

import gc
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.probe.small_features import CENTER, SETTINGS, CellModel, place_in, split_of
from veca.probe.features import (
    PARTS,
    ImageFeatures,
    KeptFeatures,
    Vectors,
    image_features,
    side_by_side,
)
from veca.probe.protocols import Feature
from veca.probe.rows import Setting


@pytest.fixture
def kept(tmp_path: Path) -> KeptFeatures:
    split = split_of(tmp_path / "pictures")
    return image_features(CellModel(), SETTINGS, split, CENTER, place_in(tmp_path / "kept"))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list["weakref.ref[Tensor]"]:
    """What was read from the disk."""
    found: list[weakref.ref[Tensor]] = []
    before = KeptFeatures.side_by_side

    def watched(self: KeptFeatures, setting: Setting, names: Sequence[str]) -> Tensor:
        vectors = before(self, setting, names)
        found.append(weakref.ref(vectors))
        return vectors

    monkeypatch.setattr(KeptFeatures, "side_by_side", watched)
    return found


def living(read: list["weakref.ref[Tensor]"]) -> int:
    """How many of them are still in memory."""
    gc.collect()
    return sum(each() is not None for each in read)


def test_features_go_side_by_side() -> None:
    features = ImageFeatures(torch.ones(2, 3), torch.zeros(2, 4))
    assert side_by_side(features, "image").shape == (2, 3)
    assert side_by_side(features, "patch-mean").shape == (2, 4)
    assert side_by_side(features, "image+patch-mean").tolist() == [[1.0] * 3 + [0.0] * 4] * 2


@pytest.mark.parametrize("feature", PARTS)
def test_vectors_from_the_disk_are_the_features_side_by_side(
    feature: Feature, kept: KeptFeatures
) -> None:
    vectors = Vectors(kept, feature)
    for setting in SETTINGS:
        assert torch.equal(vectors[setting], side_by_side(kept[setting], feature))


def test_only_what_was_asked_for_last_is_in_memory(
    kept: KeptFeatures, read: list["weakref.ref[Tensor]"]
) -> None:
    vectors = Vectors(kept, "image")
    assert not read  # nobody has asked yet
    for count, setting in enumerate(SETTINGS, start=1):
        assert vectors[setting].shape == (11, 5)
        assert (len(read), living(read)) == (count, 1)
    assert set(vectors.together(SETTINGS[:2])) == set(SETTINGS[:2])
    assert living(read) == 2
    assert torch.equal(vectors[SETTINGS[1]], kept[SETTINGS[1]].image)


def test_what_is_in_memory_is_not_read_again(
    kept: KeptFeatures, read: list["weakref.ref[Tensor]"]
) -> None:
    vectors = Vectors(kept, "image+patch-mean")
    first = vectors.together(SETTINGS)
    for setting in SETTINGS:
        assert vectors[setting] is first[setting]
    vectors.together(SETTINGS[1:])
    assert len(read) == len(SETTINGS)


ONE = 11 * (5 + 6) * 4
"""Bytes of both features of all pictures at one setting."""


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(0, [1, 1, 1]), (2 * ONE - 1, [1, 1, 1]), (2 * ONE, [2, 1]), (3 * ONE, [3])],
)
def test_groups_are_as_large_as_may_be_and_hold_one_setting_at_least(
    most: int, sizes: list[int], kept: KeptFeatures
) -> None:
    groups = Vectors(kept, "image+patch-mean").groups(most)
    assert [len(group) for group in groups] == sizes
    assert [setting for group in groups for setting in group] == list(SETTINGS)
