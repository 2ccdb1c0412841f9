"""Kept views are drawn once and shared; live ones are new at every step; both fill batches."""

import itertools
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.probe.dense_scenes import (
    ALL,
    ALONE,
    AUGMENT,
    FEW,
    ColorModel,
    place_in,
    split_of,
)
from veca.data.images import DataError
from veca.data.sets.dataset import Split
from veca.probe import kept_views
from veca.probe.dense_reading import Pair
from veca.probe.feature_cache import StoreError
from veca.probe.features import Place
from veca.probe.kept_views import (
    Batches,
    KeptViews,
    Source,
    ViewRecipe,
    live_batches,
    part_of_batch,
)
from veca.probe.models import Frozen
from veca.probe.transforms import DenseCrop, segmentation_crop
from veca.runtime.distributed import Ranks

SIDE = 32
EVERY = np.arange(6)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return split_of(tmp_path / "pictures", "train", "masks", range(6))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "kept")


def view(side: int, pair: Pair, draw: random.Random) -> DenseCrop:
    return segmentation_crop(pair.picture, pair.target, side, draw, AUGMENT)  # type: ignore[arg-type]


def source_of(split: Split, place: Place, model: ColorModel | None = None) -> Source:
    recipe = ViewRecipe({"side": SIDE}, partial(view, SIDE))
    return Source(model or ColorModel(), (FEW, ALL), split, recipe, place)


def test_features_are_those_of_the_views_that_targets_are_of(split: Split, place: Place) -> None:
    model = ColorModel()
    kept = KeptViews(source_of(split, place, model), views=3)
    assert model.asked == {FEW: 32, ALL: 32}  # 18, padded to lots of 16
    batch = next(kept.batches(Batches(EVERY, 5, seed=1)))
    assert batch.targets.shape == (5, SIDE, SIDE)
    assert batch.part == slice(0, 5)
    # The red of a patch tells whether most of it is a barn.
    barn = (batch.targets == 1).float().unfold(1, 8, 8).unfold(2, 8, 8).mean((3, 4))
    reddest = batch.features[ALL].patches[:, 0].float() - batch.features[ALL].patches[:, 1].float()
    assert torch.corrcoef(torch.stack((barn.flatten(), reddest.flatten())))[0, 1] > 0.9
    assert not batch.features[FEW].patches[:, 1:].any()


def test_a_second_run_computes_nothing(split: Split, place: Place) -> None:
    first = KeptViews(source_of(split, place), views=2)
    model = ColorModel()
    again = KeptViews(source_of(split, place, model), views=2)
    assert not model.asked
    wanted = Batches(EVERY, 4, seed=0)
    for one, other, _ in zip(first.batches(wanted), again.batches(wanted), range(4), strict=False):
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.features[ALL].patches, other.features[ALL].patches)


def test_memory_or_disk_gives_the_same_batches(
    split: Split, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_memory = KeptViews(source_of(split, place), views=2)
    monkeypatch.setattr(kept_views, "MEMORY", 0)
    on_disk = KeptViews(source_of(split, place), views=2)
    wanted = Batches(EVERY, 4, seed=0)
    one, other = next(in_memory.batches(wanted)), next(on_disk.batches(wanted))
    assert torch.equal(one.targets, other.targets)
    for setting in (FEW, ALL):
        for left, right in zip(one.features[setting], other.features[setting], strict=True):
            assert torch.equal(left, right)


def test_every_view_of_the_wanted_pictures_comes_once_in_an_epoch(
    split: Split, place: Place
) -> None:
    kept = KeptViews(source_of(split, place), views=2)
    wanted = Batches(np.array([1, 4, 5]), 3, seed=0)
    first, second, third = itertools.islice(kept.batches(wanted), 3)
    seen = {target.numpy().tobytes() for batch in (first, second) for target in batch.targets}
    assert len(seen) == 6
    assert {target.numpy().tobytes() for target in third.targets} <= seen
    other = next(kept.batches(wanted._replace(seed=1)))
    assert not torch.equal(other.targets, first.targets)


def test_live_views_are_new_in_every_epoch_and_follow_from_the_seed(
    split: Split, place: Place
) -> None:
    source = source_of(split, place)
    wanted = Batches(EVERY, 6, seed=3)
    first, second = live_batches(source, wanted, 2)
    assert not torch.equal(first.targets.sort(0)[0], second.targets.sort(0)[0])
    again = next(live_batches(source, wanted, 1))
    assert torch.equal(first.targets, again.targets)
    assert torch.equal(first.features[ALL].patches, again.features[ALL].patches)
    assert len(list(live_batches(source, wanted, 3))) == 3


def test_loaders_do_not_change_live_views(split: Split, tmp_path: Path) -> None:
    here, there = (
        list(live_batches(source_of(split, place_in(tmp_path, loaders=n)), Batches(EVERY, 4, 0), 3))
        for n in (0, 2)
    )
    for one, other in zip(here, there, strict=True):
        assert torch.equal(one.targets, other.targets)
        assert torch.equal(one.features[FEW].image, other.features[FEW].image)


def test_workers_share_a_batch_without_gaps(tmp_path: Path) -> None:
    parts = [
        part_of_batch(8, place_in(tmp_path, Ranks(rank=rank, world_size=3, device=ALONE.device)))
        for rank in range(3)
    ]
    assert [number for part in parts for number in range(8)[part]] == list(range(8))
    with pytest.raises(DataError, match="start fewer"):
        part_of_batch(2, place_in(tmp_path, Ranks(rank=0, world_size=3, device=ALONE.device)))


def test_views_of_several_sizes_are_an_error(split: Split, place: Place) -> None:
    source = source_of(split, place)._replace(recipe=ViewRecipe({}, _uneven))
    with pytest.raises(DataError, match="several sizes"):
        next(live_batches(source, Batches(EVERY, 6, 0), 1))


def _uneven(pair: Pair, draw: random.Random) -> DenseCrop:
    """A view of its picture's own size."""
    del draw
    return DenseCrop(pair.picture.pixels(), torch.from_numpy(pair.target))


class Broken(ColorModel):
    """Says what is no number."""

    def look(self, *given: object) -> Frozen:
        del given
        return Frozen(torch.zeros(16, 3), torch.full((16, 6, 4, 4), torch.nan))


def test_features_that_are_no_numbers_are_refused(split: Split, place: Place) -> None:
    with pytest.raises(StoreError, match="not finite"):
        KeptViews(source_of(split, place, Broken()), views=1)
