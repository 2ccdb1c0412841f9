"""Features of whole pictures are kept as the model gave them, and shared by all who ask."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.data.corpus import photo
from tests.probe.dense_scenes import ALL, FEW, ColorModel, place_in, split_of
from veca.data.images import DataError, image_from_array
from veca.data.sets.dataset import Split
from veca.probe import shown_features
from veca.probe.dense_reading import load_picture
from veca.probe.feature_cache import StoreError
from veca.probe.features import Place
from veca.probe.models import Frozen
from veca.probe.shown_features import Kind, Showing, ShownFeatures, observe_shown

WHOLE = Showing(short=32, multiple=8)
SLIDING = replace(WHOLE, inference="slide", stride=20)
KINDS = [Kind(FEW), Kind(ALL), Kind(ALL, flipped=True)]


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return split_of(tmp_path / "pictures", "val", "masks", range(4))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return place_in(tmp_path / "kept")


@pytest.mark.parametrize("showing", [WHOLE, SLIDING])
def test_kept_features_are_the_models_to_half_precision(
    showing: Showing, split: Split, place: Place
) -> None:
    features = ShownFeatures(ColorModel(), KINDS, split, showing, place)
    for index in range(4):
        for kind in KINDS:
            found, layout = features(index, kind)
            expected, there = observe_shown(ColorModel(), load_picture(split, index), showing, kind)
            assert layout == there
            assert found.patches.shape[0] == layout.windows
            torch.testing.assert_close(found.patches, expected.patches, rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(found.image, expected.image)


def test_maps_are_kept_in_half_precision_within_its_range(split: Split, place: Place) -> None:
    class Loud(ColorModel):
        def look(self, *given: Any) -> Frozen:
            image, patches = super().look(*given)
            return Frozen(image, 1e6 * patches)

    features = ShownFeatures(Loud(), KINDS[1:2], split, WHOLE, place)
    found, _ = features(0, Kind(ALL))
    assert found.patches.max() == 65504.0
    (folder,) = place.folder.iterdir()
    kept = load_file(folder / "block-00000.safetensors")
    assert (kept["patches"].dtype, kept["image"].dtype) == (torch.float16, torch.float32)


def test_blocks_of_large_maps_have_fewer_pictures(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = 2 * 6 * 4 * 4  # half precision, channels, rows, columns of a square
    for most, blocks in ((2**24, 1), (3 * one, 2), (one, 4), (1, 4)):
        monkeypatch.setattr(shown_features, "PATCH_BLOCK_BYTES", most)
        place = place_in(tmp_path / str(most))
        ShownFeatures(ColorModel(), KINDS[:1], split, WHOLE, place)
        assert len(list(place.folder.glob("*/block-*.safetensors"))) == blocks


def test_mirrored_features_are_those_of_the_mirrored_picture(split: Split, place: Place) -> None:
    features = ShownFeatures(ColorModel(), KINDS, split, WHOLE, place)
    straight, _ = features(1, Kind(ALL))
    mirrored, _ = features(1, Kind(ALL, flipped=True))
    torch.testing.assert_close(mirrored.patches, straight.patches.flip(-1), rtol=1e-2, atol=1e-2)
    assert not torch.equal(mirrored.patches, straight.patches)


def test_each_picture_is_computed_once_for_all_who_ask(split: Split, place: Place) -> None:
    model = ColorModel()
    ShownFeatures(model, KINDS, split, WHOLE, place)
    assert model.asked == {FEW: 4, ALL: 8}
    ShownFeatures(model, KINDS[:2], split, WHOLE, place)
    assert model.asked == {FEW: 4, ALL: 8}
    ShownFeatures(model, KINDS[:1], split, replace(WHOLE, short=40), place)
    assert model.asked == {FEW: 8, ALL: 8}


def test_sizes_keep_their_proportions(split: Split, place: Place) -> None:
    features = ShownFeatures(ColorModel(), KINDS[:1], split, WHOLE, place)
    assert [features(index, Kind(FEW))[0].patches.shape[2:] for index in range(3)] == [
        (4, 6),
        (4, 4),
        (6, 4),
    ]


def test_pictures_of_kitti_are_cut_first() -> None:
    picture = image_from_array(photo(375, 1242))
    showing = Showing(short=32, multiple=8, kb_crop=True)
    _, layout = observe_shown(ColorModel(), picture, showing, Kind(ALL))
    assert layout.original == (352, 1216)
    assert showing.picture(picture).sides == (352, 1216)


@pytest.mark.parametrize("loaders", [0, 1])
def test_an_unreadable_picture_is_an_error_that_names_it(
    split: Split, tmp_path: Path, loaders: int
) -> None:
    Path(split.image(2).name).write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"masks-2\.png cannot be read"):
        ShownFeatures(
            ColorModel(), KINDS, split, WHOLE, place_in(tmp_path / "kept", loaders=loaders)
        )


class Broken(ColorModel):
    """Says what is no number of one picture."""

    def look(self, *given: object) -> Frozen:
        found = super().look(*given)  # type: ignore[arg-type]
        return found if found.patches.shape[3] != 4 else Frozen(found.image * np.nan, found.patches)


def test_features_that_are_no_numbers_are_refused(split: Split, place: Place) -> None:
    with pytest.raises(StoreError, match=r"not finite for .*masks-1\.png"):
        ShownFeatures(Broken(), KINDS, split, WHOLE, place)
