"""The demo and its page."""

import importlib.util
import re
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch
from PIL import Image

import veca
from tests.analysis.test_page import check_page
from veca.analysis.demo import (
    KINDS,
    SAMPLES,
    BudgetRow,
    Demo,
    PhotoViews,
    View,
    page,
    run_demo,
    sample_photos,
)
from veca.data.transforms import preprocess
from veca.runtime.timing import Effort, Quartiles


def test_every_sample_is_a_color_photograph_that_opens() -> None:
    photos = sample_photos()
    assert [photo.name for photo in photos] == list(SAMPLES)
    for photo in photos:
        with Image.open(photo) as picture:
            assert picture.mode == "RGB"
            assert min(picture.size) >= 256


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(ValueError, match=r"install veca\[samples\], or name pictures"):
        sample_photos()


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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("veca.analysis.demo.EFFORT", Effort(rounds=2, seconds=0.0))
        return run_demo(model, photos, [2, 4], 32)


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
        assert 0 < row.ms.low <= row.ms.median <= row.ms.high


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
            assert view.first.shape == view.regions.shape == view.objects.shape == (*grid, 4)
            assert view.similarity.shape == (*grid, 3)
            assert view.paths.count("<polyline") == 2 * view.budget


def view(budget: int) -> View:
    pixels = torch.zeros(2, 3, 4, dtype=torch.uint8)
    colors, drawing = pixels[..., :3], "<svg></svg>"
    return View(budget, colors, pixels, pixels, pixels, drawing, colors, drawing)


DEMO = Demo(
    pixels=(48, 32),
    precision="bf16",
    rows=[
        BudgetRow(4, Quartiles(9.0, 10.0, 12.0), 1.5, 1234, 0.0157, 0.9, 0.8),
        BudgetRow(8, Quartiles(19.0, 20.0, 22.0), 2.5, 5678, 0.0314, 1.0, 1.0),
    ],
    photos=[
        PhotoViews("<script>alert(1)</script>", Image.new("RGB", (48, 32)), [view(4), view(8)])
    ],
)


def page_text(trained: bool = False) -> str:
    """The page of the demo above."""
    command = "veca demo 'a<b>.png'"
    content = page(
        DEMO, model="a <model>", trained=trained, machine="here", command=command,
        explore="veca explore 'c<d>'",
    )  # fmt: skip
    return content.decode()


def test_the_page_is_whole_and_refers_to_nothing_outside() -> None:
    text = page_text()
    check_page(text)
    assert text.count('<img alt="" src="data:image/png;base64,') == 10


def test_a_click_enlarges_a_picture_and_another_takes_it_back_to_its_row() -> None:
    text = page_text()
    ids = set(re.findall(r' id="([^"]+)"', text))
    enlarge = re.findall(r'<a class="open" href="#([^"]+)" aria-label="Enlarge: ([^"]+)"', text)
    assert len(enlarge) == len(set(enlarge)) == 13
    assert ("p0-paths-8", "Paths, 8 cores") in enlarge
    close = re.findall(r'<a class="close" href="#([^"]+)"', text)
    assert {place for place, _ in enlarge} | set(close) == ids
    assert len(set(close)) == 6


def test_every_row_has_its_legend_beside_it_and_the_last_line_leads_to_the_page() -> None:
    text = page_text()
    for name, legend in KINDS.values():
        assert f"<b>{name}</b>{legend}</div>" in text
    last = text.partition("</body>")[0].strip().splitlines()[-1]
    assert last == (
        "<p>Try your own pictures, with a slider for the budget: <code>veca explore "
        "&#x27;c&lt;d&gt;&#x27;</code></p>"
    )


def test_similarity_is_that_with_the_patch_that_the_image_feature_reads_most(
    demo: Demo, model: veca.VECA, photos: list[Path]
) -> None:
    pixels = preprocess(photos[1], size=32)[None]
    with torch.inference_mode():
        read = model.core_maps(pixels, -1, 8)[0, 0]
        features = model(pixels, 2).patch_map[0]
    row, column = divmod(int(read.argmax()), read.shape[1])
    cosine = torch.cosine_similarity(features, features[:, row, column, None, None], dim=0)
    view = demo.photos[1].views[0]
    assert f'cx="{column + 0.5}" cy="{row + 0.5}"' in view.mark
    assert view.similarity[row, column].tolist() == [253, 231, 37]  # the light end of viridis
    greens = view.similarity[..., 1].flatten()  # rises with the cosine
    assert torch.equal(
        greens.argsort(stable=True), cosine.clamp(0, 1).flatten().argsort(stable=True)
    )


def test_names_from_outside_are_text_and_never_markup() -> None:
    text = page_text()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "a &lt;model&gt;" in text
    assert "a&lt;b&gt;.png" in text


@pytest.mark.parametrize("trained", [False, True])
def test_untrained_weights_are_called_untrained(trained: bool) -> None:
    text = page_text(trained)
    assert ("These weights are untrained" in text) is not trained


def test_the_table_shows_each_budget_with_its_numbers() -> None:
    text = page_text()
    for words in ("4 cores", "10 ms", "[9&ndash;12]", "1,234", "1.57%", "0.900", "5,678", "3.14%"):
        assert words in text
