"""Features are those of the views, each picture once, whatever was kept or killed before."""

import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.data.pictures import saved_model
from tests.probe.small_features import (
    CENTER,
    CPU,
    SETTINGS,
    SIDE,
    CellModel,
    place_in,
    split_of,
)
from veca.data import loader as batches
from veca.data.augment import ViewConfig, center_view, training_view
from veca.data.images import DataError, decode
from veca.data.sets.dataset import Split
from veca.probe import features
from veca.probe.feature_cache import StoreError
from veca.probe.features import Place, ViewPlan, image_features
from veca.probe.models import Frozen, find_probe_model
from veca.probe.rows import Setting

RANDOM = ViewPlan(resolution=SIDE, views=3, area=(0.3, 0.8), seed=5)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IMAGE_BLOCK", 4)


@pytest.fixture
def split(tmp_path: Path) -> Split:
    return split_of(tmp_path / "pictures")


def center(split: Split, index: int, margin: float = 1.125) -> Tensor:
    """The view from the middle, made without haste."""
    return center_view(decode(split.image(index).name), SIDE, ViewConfig(margin=margin))


def one_by_one(views: list[Tensor], setting: Setting) -> Frozen:
    """What a model says of views, asked about each one alone."""
    found = [CellModel().observe(view[None], setting) for view in views]
    return Frozen(
        torch.cat([one.image for one in found]), torch.cat([one.patches for one in found])
    )


def test_vectors_are_those_of_the_center_views_at_each_setting(
    split: Split, tmp_path: Path
) -> None:
    found = image_features(CellModel(), SETTINGS, split, CENTER, place_in(tmp_path))
    assert found.settings == SETTINGS
    for setting in SETTINGS:
        vectors = found[setting]
        wanted = one_by_one([center(split, index) for index in range(len(split))], setting)
        torch.testing.assert_close(vectors.image, wanted.image)
        torch.testing.assert_close(vectors.patch_mean, wanted.patches.mean((2, 3)))


def test_vectors_of_random_views_stand_view_by_view(split: Split, tmp_path: Path) -> None:
    setting = SETTINGS[0]
    found = image_features(CellModel(), [setting], split, RANDOM, place_in(tmp_path))[setting]
    config = ViewConfig(crop="random-resized", area=(0.3, 0.8), trivial_augment=False)
    views = [
        training_view(
            decode(split.image(index).name), SIDE, random.Random(f"view/5/{view}/{index}"), config
        )
        for view in range(3)
        for index in range(len(split))
    ]
    wanted = one_by_one(views, setting)
    torch.testing.assert_close(found.image, wanted.image)
    torch.testing.assert_close(found.patch_mean, wanted.patches.mean((2, 3)))


def test_vectors_are_read_when_they_are_asked_for_and_are_as_large_as_told(
    split: Split, tmp_path: Path
) -> None:
    setting, both = SETTINGS[0], ("image", "patch_mean")
    found = image_features(CellModel(), SETTINGS, split, RANDOM, place_in(tmp_path / "kept"))
    wanted = found[setting]
    vectors = found.side_by_side(setting, both)
    assert torch.equal(vectors, torch.cat(wanted, dim=1))
    assert found.num_bytes(setting, both) == vectors.nbytes
    assert found.num_bytes(setting, both[:1]) == wanted.image.nbytes
    (tmp_path / "kept").rename(tmp_path / "gone")
    with pytest.raises(StoreError, match=r"block-00000.* cannot be read any more"):
        found.side_by_side(setting, both)


def test_a_killed_loader_is_told_with_what_to_do_when_probing(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(batches, "decode", die)
    with pytest.raises(DataError, match="again with fewer workers"):
        image_features(CellModel(), SETTINGS, split, CENTER, place_in(tmp_path, loaders=1))


def test_each_picture_is_decoded_once_for_all_settings_and_goes_once_through_each(
    split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []

    def counting(source: Any, **choices: Any) -> Any:
        decoded.append(source)
        return decode(source, **choices)

    monkeypatch.setattr(batches, "decode", counting)
    model, eight = CellModel(), split_of(tmp_path / "pictures", 8)
    image_features(model, SETTINGS, eight, CENTER, place_in(tmp_path))
    assert sorted(decoded) == [eight.image(index).name for index in range(8)]
    assert model.asked == dict.fromkeys(SETTINGS, 8)


def test_what_is_kept_is_used_again_and_a_new_setting_alone_is_computed(
    split: Split, tmp_path: Path
) -> None:
    model = CellModel()
    kept = image_features(model, SETTINGS[:2], split, CENTER, place_in(tmp_path))
    before = {setting: kept[setting] for setting in SETTINGS[:2]}
    model.asked.clear()
    again = image_features(model, [*SETTINGS, SETTINGS[0]], split, CENTER, place_in(tmp_path))
    assert set(model.asked) == {SETTINGS[2]}
    for setting, wanted in before.items():
        for found, part in zip(again[setting], wanted, strict=True):
            assert torch.equal(found, part)
    assert again.settings == SETTINGS


@pytest.mark.parametrize(
    ("plan", "shared"),
    [
        (replace(CENTER, seed=9, area=(0.5, 0.6)), True),
        (replace(CENTER, resolution=SIDE + 3), True),
        (replace(CENTER, margin=1), False),
        (replace(CENTER, resolution=SIDE + 4), False),
        (replace(CENTER, views=1), False),
    ],
)
def test_features_are_shared_where_the_views_are_the_same_and_only_there(
    split: Split, tmp_path: Path, plan: ViewPlan, shared: bool
) -> None:
    model = CellModel()
    image_features(model, SETTINGS[:1], split, CENTER, place_in(tmp_path))
    model.asked.clear()
    image_features(model, SETTINGS[:1], split, plan, place_in(tmp_path))
    assert (not model.asked) == shared


def test_seeds_give_other_random_views(split: Split, tmp_path: Path) -> None:
    one, other = (
        image_features(CellModel(), SETTINGS[:1], split, plan, place_in(tmp_path))[SETTINGS[0]]
        for plan in (RANDOM, replace(RANDOM, seed=6))
    )
    assert not torch.equal(one.image, other.image)


@pytest.mark.parametrize(("batch", "lots"), [(1, {1}), (3, {2}), (4, {4}), (99, {4})])
@pytest.mark.parametrize("loaders", [0, 2])
def test_features_depend_on_neither_batch_nor_loaders(
    split: Split, tmp_path: Path, batch: int, lots: set[int], loaders: int
) -> None:
    model = CellModel()
    wanted = image_features(CellModel(), SETTINGS, split, CENTER, place_in(tmp_path / "one"))
    place = place_in(tmp_path / "two", batch=batch, loaders=loaders)
    found = image_features(model, SETTINGS, split, CENTER, place)
    for setting in SETTINGS:
        torch.testing.assert_close(found[setting], wanted[setting], atol=1e-6, rtol=0)
    assert model.lots == lots  # always as many, so that the last pictures are no exception


@pytest.mark.parametrize(("batch", "lot"), [(1, 1), (2, 2), (3, 3), (7, 6), (99, 12)])
def test_random_views_go_through_the_model_in_equal_lots(
    split: Split, tmp_path: Path, batch: int, lot: int
) -> None:
    model, setting = CellModel(), SETTINGS[0]
    wanted = image_features(CellModel(), [setting], split, RANDOM, place_in(tmp_path / "one"))
    place = place_in(tmp_path / "two", batch=batch)
    found = image_features(model, [setting], split, RANDOM, place)
    torch.testing.assert_close(found[setting], wanted[setting], atol=1e-6, rtol=0)
    assert max(model.lots) == lot
    assert len(model.lots) == 1


def test_a_small_veca_gives_the_same_features_in_any_batches(split: Split, tmp_path: Path) -> None:
    model = find_probe_model(str(saved_model(tmp_path / "model")), CPU)
    settings, plan = model.settings((2, 4), (0.5, 1.0)), ViewPlan(resolution=40)
    one, other = (
        image_features(model, settings, split, plan, place_in(tmp_path / str(batch), batch=batch))
        for batch in (2, 4)
    )
    assert one.settings == settings
    assert len(settings) == 4
    for setting in settings:
        torch.testing.assert_close(one[setting], other[setting], atol=1e-5, rtol=1e-4)
        views = [
            center_view(decode(split.image(index).name), 32, ViewConfig()) for index in range(11)
        ]
        wanted = model.observe(torch.stack(views), setting)
        torch.testing.assert_close(one[setting].image, wanted.image, atol=1e-5, rtol=1e-4)


def test_a_picture_that_cannot_be_read_is_an_error_that_names_it(
    split: Split, tmp_path: Path
) -> None:
    damaged = Path(split.image(6).name)
    damaged.write_bytes(damaged.read_bytes()[:60])
    with pytest.raises(DataError, match=r"0006.png cannot be read .*take it out of the set"):
        image_features(CellModel(), SETTINGS, split, CENTER, place_in(tmp_path))


def test_features_that_are_not_finite_are_an_error_that_names_the_picture(
    split: Split, tmp_path: Path
) -> None:
    class Ill(CellModel):
        def look(self, images: Tensor, grid: tuple[int, int], setting: Setting) -> Frozen:
            found = super().look(images, grid, setting)
            if self.calls == 2:
                found.patches[1, 0, 0, 0] = torch.nan
            return found

    with pytest.raises(StoreError, match=r"cells gives numbers that are not finite for .*0005.png"):
        image_features(Ill(), SETTINGS[:1], split, CENTER, place_in(tmp_path))


@pytest.mark.parametrize("wrong", [{"resolution": 0}, {"views": -1}, {"margin": 0.5}])
def test_a_plan_that_is_none_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="use "):
        ViewPlan(**{"resolution": SIDE} | wrong)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"loaders": -1}])
def test_a_place_without_a_batch_or_with_less_than_no_loaders_is_refused(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(StoreError, match="a batch of 1 or more"):
        place_in(tmp_path, **wrong)


def test_a_place_is_told_of_damage(split: Split, tmp_path: Path) -> None:
    said: list[str] = []
    place: Place = place_in(tmp_path / "kept", tell=said.append)
    image_features(CellModel(), SETTINGS[:1], split, CENTER, place)
    (block,) = (tmp_path / "kept").glob("*/block-00001.safetensors")
    whole = block.read_bytes()
    block.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    image_features(CellModel(), SETTINGS[:1], split, CENTER, place)
    assert said == [f"{block} was changed after it was written; it is computed again."]
    assert block.read_bytes() == whole
