"""The study of `veca analyze`: what it measures of models, and its table and plots."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import encoded, small_model
from tests.rules import ROOT
from veca.analysis import study as studies
from veca.analysis.perturb import SHIFTS, Shift
from veca.analysis.study import (
    MEASURES,
    StudyConfig,
    StudyRow,
    patch_classes,
    read_picture,
    reordered,
    study,
)
from veca.analysis.study_report import ModelStudy, analysis_figure, table_rows
from veca.data.images import ImageError
from veca.data.transforms import IMAGENET

CONFIG = StudyConfig(budgets=(2, 4, 99), size=32, resolutions=(32, 64), robust=2, drift=1)

SAME = Shift(lambda pixels, _: pixels, lambda maps: maps, lambda points: points)


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Masks of two classes and an ignored border, as wide as the images."""
    folder = tmp_path_factory.mktemp("masks")
    for number in range(3):
        mask = np.zeros((32, 48), np.uint8)
        mask[8:28, 10:30], mask[8, 10:30] = 1 + number % 2, 255
        Image.fromarray(mask).save(folder / f"{number}.png")
    return [folder / f"{number}.png" for number in range(3)]


def pictures(masks: list[Path]) -> list[studies.Picture]:
    return [
        read_picture(encoded(number, (48, 32)), CONFIG, 16, mask, None)
        for number, mask in enumerate(masks)
    ]


@pytest.fixture(scope="module")
def rows(masks: list[Path]) -> list[StudyRow]:
    """What is measured of a small model, with a change that changes nothing among the others."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(studies, "SHIFTS", {**SHIFTS, "same": SAME})
        return study(small_model(), pictures(masks), CONFIG)


def means(rows: list[StudyRow], measure: str, **wanted: Any) -> list[float]:
    return [
        row.mean
        for row in rows
        if row.measure == measure
        and all(getattr(row, name) == value for name, value in wanted.items())
    ]


def test_every_measure_is_taken_and_lies_within_its_range(rows: list[StudyRow]) -> None:
    assert {row.measure for row in rows} == set(MEASURES)
    shares = ("area", "roundness", "object_iou", "effective_rank", "map_overlap", "kept")
    for row in rows:
        assert np.isfinite([row.mean, row.std]).all(), row
        if row.measure in shares:
            assert 0 <= row.mean <= 1 + 1e-9, row
        if row.measure in {"knn", "core_miou", "patch_miou"}:
            assert 0 <= row.mean <= 100, row
        if row.measure.endswith("cosine") or row.measure in {"correlation", "order"}:
            assert -1 - 1e-6 <= row.mean <= 1 + 1e-6, row
    assert {row.budget for row in rows if row.measure == "area"} == {2, 4}  # 99 does not exist


def test_what_does_not_change_is_perfectly_stable(rows: list[StudyRow]) -> None:
    for measure, expected in (
        ("kept", 1), ("displacement", 0), ("correlation", 1), ("state_cosine", 1),
        ("image_cosine", 1), ("patch_cosine", 1),
    ):  # fmt: skip
        assert means(rows, measure, setting="same") == pytest.approx([expected], abs=1e-6)
    for measure in ("image_cosine", "patch_cosine"):
        assert means(rows, measure, setting="clean") == pytest.approx([1], abs=1e-6)
    assert means(rows, "jump", setting="clean") == [0]


def test_budgets_shifts_subsets_resolutions_and_corruptions_are_settings(
    rows: list[StudyRow],
) -> None:
    settings = {(row.measure, row.setting) for row in rows}
    for expected in (
        ("kept", "flip"), ("correlation", "2 to 4"), ("image_cosine", "last cores"),
        ("knn", "random cores"), ("patch_cosine", "64 px"), ("knn", "jpeg 5"), ("jump", "blur 1"),
        ("image_cosine", "fgsm 4/255"), ("knn", "pgd 1/255"),
    ):  # fmt: skip
        assert expected in settings


def test_the_first_cores_are_the_smaller_budget(masks: list[Path], rows: list[StudyRow]) -> None:
    model, cosines = small_model(), []
    with torch.no_grad():
        for picture in pictures(masks):
            pixels = IMAGENET.normalize(picture.pixels[None])
            few, most = model(pixels, 2).image, model(pixels, 4).image
            cosines.append(float(torch.cosine_similarity(few, most)))
    found = means(rows, "image_cosine", setting="first cores", budget=2)
    assert found == pytest.approx([np.mean(cosines)], abs=1e-6)


def test_a_reordered_model_begins_with_the_cores_that_are_named() -> None:
    model, pixels = small_model(), torch.randn(1, 3, 32, 32)
    tokens = torch.cat(list(model.core_bank.tokens))
    found = reordered(model, [0, 3])
    assert torch.equal(found.core_bank(1, 4)[0][0], tokens[[0, 3, 1, 2]])
    assert torch.equal(model.core_bank(1, 4)[0][0], tokens)
    same = reordered(model, [0, 1, 2, 3])
    with torch.no_grad():
        assert torch.equal(same(pixels, 2).image, model(pixels, 2).image)
        # The order of cores does not matter to a patch that reads all of them.
        torch.testing.assert_close(found(pixels, 4).patches, model(pixels, 4).patches)


def test_a_study_can_be_repeated(masks: list[Path]) -> None:
    first, second = (study(small_model(), pictures(masks)[:2], CONFIG) for _ in range(2))
    assert first == second


def test_full_attention_is_asked_only_what_it_can_answer(masks: list[Path]) -> None:
    full = veca.build("tiny", layers=1, width=32, heads=2, attention="full").eval()
    rows = study(full, pictures(masks), CONFIG)
    assert {row.measure for row in rows} == {"image_cosine", "patch_cosine", "knn"}
    assert {row.budget for row in rows} == {None}


def test_the_class_of_a_patch_is_that_of_most_of_its_pixels(masks: list[Path]) -> None:
    picture = pictures(masks)[0]
    assert picture.mask is not None
    cropped = picture.mask[:, 8:40]  # the central square of 48 x 32 pixels
    for row in range(2):
        for column in range(2):
            part = cropped[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
            values, counts = np.unique(part[part != 255], return_counts=True)
            assert patch_classes(picture)[row, column] == values[counts.argmax()]
    assert [picture.label for picture in pictures(masks)] == ["1", "2", "1"]


def test_a_mask_of_another_size_is_refused(masks: list[Path]) -> None:
    with pytest.raises(ImageError, match="48 x 32 pixels, but its image 64 x 64"):
        read_picture(encoded(0, (64, 64)), CONFIG, 16, masks[0], None)


def test_segments_that_are_the_classes_have_an_miou_of_one_hundred(
    masks: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = pictures(masks)
    truth = [torch.from_numpy(patch_classes(picture)).long() for picture in seen]
    shuffled = [(labels + 1) % 3 for labels in truth]  # names of clusters are arbitrary

    def cluster(maps: list[torch.Tensor], _: int) -> list[torch.Tensor]:
        is_patches = maps[0].shape[1:] == (2, 2)
        return shuffled if is_patches else [torch.zeros(4, 1, dtype=torch.int64)] * len(maps)

    monkeypatch.setattr(studies, "cluster_patches", cluster)
    rows = study(small_model(), seen, CONFIG)
    assert set(means(rows, "patch_miou")) == {100.0}
    assert max(means(rows, "core_miou")) < 100


def test_the_table_has_a_column_for_each_model_and_the_page_a_panel_for_each_plot(
    rows: list[StudyRow],
) -> None:
    full = [row for row in rows if row.measure in {"image_cosine", "patch_cosine", "knn"}]
    shown = [ModelStudy("mine", rows), ModelStudy("$full$", full)]
    table = {text: cells for text, *cells in table_rows(shown)}
    deep = means(rows, "area", budget=2, layer=0)
    assert table["area read by a core, fewest cores"] == [f"{deep[0]:.3f}", "-"]
    assert table["20-NN %, corruptions of strength 3"][1] != "-"
    figure = analysis_figure(shown, "a title")
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert len(panels) == 16
    assert all(axes.lines or axes.patches for axes in panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["mine", "$full$"]
    alone = analysis_figure(shown[1:], "a title")
    empty = [axes for axes in alone.axes if not axes.lines and not axes.patches]
    assert len(empty) == 10
    assert all(axes.texts[0].get_text() == "not measured" for axes in empty)


def test_the_guide_defines_every_measure() -> None:
    text = (ROOT / "docs" / "guides" / "figures.md").read_text("utf-8")
    for measure in MEASURES:
        assert f"| `{measure}` |" in text
