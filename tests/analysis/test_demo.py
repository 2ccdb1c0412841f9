"""What the demo measures and shows."""

from pathlib import Path

import pytest
import torch
from PIL import Image

import veca
from veca.analysis.demo import Demo, Told, run_demo
from veca.data.transforms import preprocess


@pytest.fixture(scope="module")
def model() -> veca.VECA:
    torch.manual_seed(0)
    return veca.build("tiny", layers=2, width=32, heads=2, budgets=(2, 4, 8)).eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    torch.manual_seed(1)
    paths = []
    for name, (height, width) in (("wide_one", (40, 60)), ("tall", (70, 32))):
        pixels = (torch.rand(height, width, 3) * 255).byte().numpy()
        Image.fromarray(pixels).save(folder / f"{name}.png")
        paths.append(folder / f"{name}.png")
    return paths


@pytest.fixture(scope="module")
def demo(model: veca.VECA, photos: list[Path]) -> Demo:
    return run_demo(model, photos, [2, 4], 32, Told("small thing", False, "here", "command"))


def test_the_whole_bank_is_always_shown_and_resembles_itself(demo: Demo) -> None:
    assert [row.budget for row in demo.rows] == [2, 4, 8]
    assert demo.rows[-1].image_similarity == pytest.approx(1)
    assert demo.rows[-1].patch_similarity == pytest.approx(1)
    assert demo.rows[0].patch_similarity < 1


def test_costs_are_those_of_the_first_photo(demo: Demo, model: veca.VECA) -> None:
    width, height = demo.pixels
    assert (width, height) == (48, 32)
    for row in demo.rows:
        cost = model.cost(height, width, row.budget)
        assert (row.gflops, row.pairs) == (cost.flops / 1e9, cost.pairs)
        assert row.pairs_share == pytest.approx(cost.pairs / 6**2)
        assert 0 < row.quartiles[0] <= row.milliseconds <= row.quartiles[1]


def test_similarity_is_the_cosine_with_the_whole_bank_over_all_photos(
    demo: Demo, model: veca.VECA, photos: list[Path]
) -> None:
    cosines = []
    for photo in photos:
        pixels = preprocess(photo, size=32)[None]
        some, whole = model(pixels, 2), model(pixels)
        cosines.append(torch.cosine_similarity(some.image, whole.image).item())
    assert demo.rows[0].image_similarity == pytest.approx(sum(cosines) / 2, abs=1e-5)


def test_every_photo_has_a_view_for_every_budget_with_a_pixel_for_each_patch(demo: Demo) -> None:
    assert [photo.name for photo in demo.photos] == ["wide one", "tall"]
    for photo, grid in zip(demo.photos, ((2, 3), (4, 2)), strict=True):
        assert photo.picture.size == (grid[1] * 16, grid[0] * 16)
        assert [view.budget for view in photo.views] == [2, 4, 8]
        for view in photo.views:
            assert view.colors.shape == (*grid, 3)
            assert view.first.shape == view.regions.shape == (*grid, 4)
            assert view.paths.count("<polyline") == 2 * view.budget
