"""Figures of images: what stands in their panels, and where."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import encoded, small_model
from veca.analysis import image_figures
from veca.analysis.figures import ShownFigure, to_bytes
from veca.analysis.image_figures import FigureError
from veca.analysis.visualize import (
    cluster_patches,
    common_basis,
    core_segments,
    cosine_map,
    pca_colors,
)
from veca.backbone.cores import CoreStep
from veca.probe.models import PixelModel, VecaModel

PICTURE = encoded(1, (96, 64))  # wider than high


@pytest.fixture(scope="module")
def model() -> veca.VECA:
    """A small model with several layers, whose cores move visibly."""
    torch.manual_seed(0)
    built = veca.build("tiny", layers=3, width=32, heads=2, budgets=(2, 4)).eval()
    for step in built.core_steps:
        assert isinstance(step, CoreStep)
        torch.nn.init.normal_(step.head.weight, std=0.5)
        torch.nn.init.ones_(step.scale)
    return built


def images_of(axes: Any) -> list[np.ndarray]:
    """The arrays that a panel shows."""
    return [np.asarray(item.get_array()) for item in axes.images]


def panels(figure: Any) -> list[Any]:
    """Panels that are shown, without color bars."""
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def titles(figure: Any) -> list[str]:
    """The labels above the panels."""
    return [axes.get_title() for axes in panels(figure)]


def test_features_have_one_basis_over_resolutions_and_a_row_for_each_model(
    model: veca.VECA,
) -> None:
    other = PixelModel(torch.device("cpu"))
    figure = image_figures.features(
        model, PICTURE, resolutions=(32, 64), others=[other], name="$mine$"
    )
    shown = panels(figure)
    assert titles(figure)[:3] == ["image", "32 px", "64 px"]
    assert [axes.get_ylabel() for axes in shown] == ["", "$mine$", "", "pixels", ""]
    with torch.inference_mode():
        maps = [model(veca.preprocess(PICTURE, size)[None]).patch_map[0] for size in (32, 64)]
    basis = common_basis(maps)
    for axes, patch_map in zip(shown[1:3], maps, strict=True):
        assert np.array_equal(images_of(axes)[0], pca_colors(patch_map, basis).numpy())
        assert axes.images[0].get_extent() == [0, 96, 64, 0]  # pixels of the original
        assert axes.get_aspect() == 1
    assert images_of(shown[0])[0].shape == (64, 96, 3)


def test_similarity_shows_the_cosines_with_the_marked_patch(model: veca.VECA) -> None:
    figure = image_figures.similarity(model, PICTURE, [(50, 10)], size=64)
    with torch.inference_mode():
        found = model(veca.preprocess(PICTURE, 64)[None])
    patch_map = found.patch_map[0]
    _, with_image, with_patch = panels(figure)
    expected = cosine_map(patch_map, patch_map[:, 0, 3])
    np.testing.assert_allclose(images_of(with_patch)[0], expected, atol=1e-6)
    expected = cosine_map(patch_map, found.image[0])
    np.testing.assert_allclose(images_of(with_image)[0], expected, atol=1e-6)


def test_without_points_three_places_are_compared_with_every_model(model: veca.VECA) -> None:
    beside = VecaModel(small_model(), torch.device("cpu"), name="beside", digest=None)
    pixels = PixelModel(torch.device("cpu"))  # whose image feature is wider than its patches
    figure = image_figures.similarity(model, PICTURE, size=64, others=[beside, pixels])
    assert len(panels(figure)) == 15
    assert titles(figure)[:5] == [
        "marked patches", "with the image feature", "with patch 1", "with patch 2", "with patch 3",
    ]  # fmt: skip


def test_a_point_outside_the_image_is_refused(model: veca.VECA) -> None:
    with pytest.raises(FigureError, match=r"point 96,0.*outside the original image"):
        image_figures.similarity(model, PICTURE, [(96, 0)], size=64)


def test_cores_are_shown_over_layers_and_budgets_and_the_most_different_ones_alone(
    model: veca.VECA,
) -> None:
    figure = image_figures.cores(model, PICTURE, budgets=[2, 4], size=64, distinct=3)
    found = titles(figure)
    assert found[:4] == ["layer 1", "layer 2", "", ""]
    assert next(title for title in found if title.startswith("core ")) == "core 0"
    assert len(panels(figure)) == 2 * 2 * 2 + 2 * 3


def test_long_paths_are_drawn_as_they_are_and_short_ones_magnified(model: veca.VECA) -> None:
    figure = image_figures.paths(model, PICTURE, budgets=[4], size=64)
    assert "magnified" not in figure.get_suptitle()
    (axes,) = panels(figure)
    with torch.inference_mode():
        steps = model.core_paths(veca.preprocess(PICTURE, 64)[None], 4)[:, 0]
    ends = (steps[-1] + 1) / 2 * torch.tensor([96.0, 64.0])
    discs = [line for line in axes.lines if len(line.get_xdata()) == 1][1::2]
    drawn = [[float(line.get_xdata()[0]), float(line.get_ydata()[0])] for line in discs]
    np.testing.assert_allclose(drawn[::-1], ends, rtol=1e-5)  # the first core comes last, on top
    still = image_figures.paths(small_model(), PICTURE, size=64)
    assert "magnified 50 times" in still.get_suptitle()


def test_objects_are_the_cores_read_most_and_common_clusters(model: veca.VECA) -> None:
    figure = image_figures.objects(model, PICTURE, budgets=[2, 4], layer=1, size=64, clusters=3)
    pixels = veca.preprocess(PICTURE, 64)[None]
    with torch.inference_mode():
        maps = [model.layer_maps(pixels, (1, 2), budget) for budget in (2, 4)]
    by_core = [core_segments(found[0].patch_maps[0]) for found in maps]
    by_feature = cluster_patches([found[1].features.patch_map[0] for found in maps], 3)
    for axes, labels in zip(panels(figure), [*by_core, *by_feature], strict=True):
        colors = images_of(axes)[1][..., :3].reshape(-1, 3)
        kinds = labels.flatten().numpy()
        for kind in np.unique(kinds):
            assert len(np.unique(colors[kinds == kind], axis=0)) == 1
        assert len(np.unique(colors, axis=0)) == len(np.unique(kinds))
    assert len(panels(figure)[0].collections[0].get_segments()) == sum(
        int((by_core[0].diff(dim=dim) != 0).sum()) for dim in (0, 1)
    )


def test_evolution_shows_every_image_and_every_core_in_each_layer(model: veca.VECA) -> None:
    sources = [encoded(number) for number in range(9)]
    labels = ["cat"] * 5 + ["dog"] * 4
    figure = image_figures.evolution(model, sources, labels, size=32, budget=4, projection="pca")
    shown = panels(figure)
    assert titles(figure)[:3] == ["layer 0", "layer 1", "layer 2"]
    assert [len(item.get_offsets()) for item in shown[0].collections] == [5, 4]
    assert len(shown[3].collections[0].get_offsets()) == 9 * 4
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["cat", "dog"]
    with pytest.raises(FigureError, match="evolution needs at least 8 images, not 7"):
        image_figures.evolution(model, sources[:7])


def test_full_attention_has_no_cores_to_draw(model: veca.VECA) -> None:
    full = veca.build("tiny", layers=1, width=32, heads=2, attention="full").eval()
    for draw in (image_figures.cores, image_figures.paths, image_figures.objects):
        with pytest.raises(FigureError, match="no cores to draw; use the figures features and"):
            draw(full, PICTURE)
    assert len(panels(image_figures.features(full, PICTURE, resolutions=(32,)))) == 2


@pytest.mark.parametrize("sides", [(16, 400), (400, 16), (7, 5)])
def test_images_of_any_shape_and_kind_give_a_figure_of_sensible_size(
    model: veca.VECA, sides: tuple[int, int]
) -> None:
    gray = Image.effect_noise(sides, 40)  # one channel
    figure = image_figures.objects(model, gray, size=32)
    width, height = Image.open(io.BytesIO(to_bytes(figure, "png"))).size
    assert 100 < width < 2500
    assert 100 < height < 2500


def test_a_notebook_shows_a_figure_and_files_have_the_format_asked_for(model: veca.VECA) -> None:
    figure = veca.figures.features(model, PICTURE, resolutions=(32,))
    assert isinstance(figure, ShownFigure)
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert to_bytes(figure, "pdf").startswith(b"%PDF")
    assert b"<svg" in to_bytes(figure, "svg")[:1000]
    with pytest.raises(FigureError, match="projection='tsne' is unknown; use 'pca' or 'umap'"):
        veca.figures.features(model, PICTURE, resolutions=(32,), projection="tsne")
    assert "figures" in dir(veca)
