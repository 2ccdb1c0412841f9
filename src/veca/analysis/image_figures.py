"""Figures of what a model sees in an image: features, similarities, cores, paths, objects.

Each public function draws one figure with matplotlib from the arrays of `visualize.py` and returns
it, so that a notebook shows it; `veca figures` writes them to files, and `veca.figures` is where
users find them. matplotlib is an extra, so import this module where a figure is drawn.

All panels are in pixels of the original image, whatever resolution the model saw, so that aspect
ratios hold and points mean the same everywhere. Layers count from 0.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray
from torch import Tensor

from veca.analysis.figures import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    LITERAL,
    MARKERS,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    ShownFigure,
)
from veca.analysis.visualize import (
    cluster_patches,
    common_basis,
    core_colors,
    core_segments,
    cosine_map,
    distinct_cores,
    heat,
    pca_colors,
    regions,
    umap_colors,
    umap_components,
)
from veca.backbone.model import VECA, LayerMaps
from veca.data.images import Source, decode
from veca.data.transforms import Geometry, check_result, fitted, prepare, resampled
from veca.probe.models import FrozenModel, resolution_for
from veca.runtime import VecaError

RESOLUTIONS = (256, 512, 768, 1024)
BUDGETS = (8, 16, 64)
"""Drawn by default, as far as the model has them."""

LARGEST_PHOTO = 900
"""Pixels of the long side of a photograph in a figure."""

CLUSTERS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#F0E442", BLACK)
"""Okabe and Ito's colors, which color-blind readers can tell apart."""

VISIBLE_PATH = 0.04
"""Paths whose mean length is below this share of the image are drawn magnified."""

OUTLINE = withStroke(linewidth=2.5, foreground="white")


class FigureError(VecaError, ValueError):
    """A figure that cannot be drawn: what was got, and what to do."""


class _Photo(NamedTuple):
    """An image as figures show it."""

    pixels: NDArray[np.uint8]
    height: int
    width: int
    """Of the original, which may be larger than `pixels`."""

    @property
    def extent(self) -> tuple[float, float, float, float]:
        """Left, right, bottom, top of the axes, in original pixels."""
        return 0.0, float(self.width), float(self.height), 0.0


@rc_context(LITERAL)
@torch.inference_mode()
def features(  # noqa: PLR0913 - the choices of the figure
    model: VECA,
    image: Source,
    *,
    resolutions: Sequence[int] = RESOLUTIONS,
    budget: int | None = None,
    others: Sequence[FrozenModel] = (),
    projection: str = "pca",
    name: str = "VECA",
) -> Figure:
    """Dense features in false colors at several resolutions, with one basis per model.

    Equal colors in a row are equal features. `others` are teachers or baselines, as from
    `veca.probe.models.find_model`, with a row each.
    """
    photo = _photo(image)
    rows: list[tuple[str, VECA | FrozenModel]] = [(name, model)]
    rows += [(other.name, other) for other in others]
    figure, grid = _panels(photo, len(rows), 1 + len(resolutions))
    _finish(figure, f"Features of {name}: {_described(projection)} of the patches")
    for row, (row_name, row_model) in enumerate(rows):
        line = grid[row]
        seen = [_dense(row_model, image, size, budget) for size in resolutions]
        maps = [found.patch_map for found in seen]
        for axes, size, colors, found in zip(
            line[1:], resolutions, _colors(maps, projection), seen, strict=True
        ):
            _show(axes, photo, colors.numpy(), found.geometry)
            _title(axes, "" if row else f"{size} px")
        line[1].set_ylabel(row_name, fontsize=10, color=BLACK)
        _show(line[0], photo)
        _title(line[0], "image")
        line[0].set_visible(row == 0)
    return figure


@rc_context(LITERAL)
@torch.inference_mode()
def similarity(  # noqa: PLR0913 - the choices of the figure
    model: VECA,
    image: Source,
    points: Sequence[tuple[int, int]] = (),
    *,
    size: int = 512,
    budget: int | None = None,
    others: Sequence[FrozenModel] = (),
    name: str = "VECA",
) -> Figure:
    """Cosine of every patch with the image feature and with the patches at `points`.

    Points are x and y in pixels of the original image; without any, the centers of three clusters
    of features are used.
    """
    photo = _photo(image)
    own = _dense(model, image, size, budget)
    places = [(float(x), float(y)) for x, y in points] or _typical_points(own)
    rows = [(name, own), *((item.name, _dense(item, image, size, None)) for item in others)]
    figure, grid = _panels(photo, len(rows), 2 + len(places))
    _finish(figure, f"Cosine similarity of patches, {name} at {size} px")
    for line, (row_name, found) in zip(grid, rows, strict=True):
        _show(line[0], photo)
        line[0].set_ylabel(row_name, fontsize=10, color=BLACK)
        for number, place in enumerate(places):
            _mark(line[0], place, str(number + 1))
        _cosine_panels(figure, line[1:], photo, found, places)
    names = [f"with patch {number + 1}" for number in range(len(places))]
    for axes, text in zip(
        grid[0], ["marked patches", "with the image feature", *names], strict=True
    ):
        _title(axes, text)
    return figure


@rc_context(LITERAL)
@torch.inference_mode()
def cores(  # noqa: PLR0913 - the choices of the figure
    model: VECA,
    image: Source,
    *,
    budgets: Sequence[int] | None = None,
    layers: Sequence[int] | None = None,
    size: int = 512,
    projection: str = "pca",
    distinct: int = 6,
    name: str = "VECA",
) -> Figure:
    """What cores read over layers and budgets (norm-based maps, paper, A.9).

    Above, the maps of all cores as colors with one basis per budget; in the middle, each patch in
    the color of the core that reads it most; below, the `distinct` cores that differ most.
    """
    budgets, layers = _budgets(model, budgets), layers or _spread(model)
    photo, prepared = _photo(image), _prepared(model, image, size)
    maps = [model.layer_maps(prepared.pixels, layers, budget) for budget in budgets]
    height, width = _cell(photo, len(layers))
    figure = _figure(width * len(layers), height * (2 * len(budgets) + 3))
    parts: Any = figure.subfigures(
        3, 1, height_ratios=[len(budgets), len(budgets), 3 * len(layers) / distinct]
    )
    upper, middle, lower = parts
    _finish(upper, f"Core attention of {name}: {_described(projection)} of all core maps")
    _finish(middle, "The core that reads a patch most, in its color; opaque where it is clear")
    _finish(lower, f"The {distinct} most different of {budgets[-1]} cores, and what they read")

    palette = _palette(model)
    top = upper.subplots(len(budgets), len(layers), squeeze=False)
    center = middle.subplots(len(budgets), len(layers), squeeze=False)
    for row, (budget, found) in enumerate(zip(budgets, maps, strict=True)):
        core_maps = [item.core_maps[0].float().cpu() for item in found]
        colored = _colors(core_maps, projection)
        for column, layer in enumerate(layers):
            _show(top[row, column], photo, colored[column].numpy(), prepared.geometry)
            _show(center[row, column], photo, gray=True)
            veil = regions(core_maps[column], palette[:budget]).numpy()
            _overlay(center[row, column], veil, prepared.geometry)
            for axes in (top[row, column], center[row, column]):
                _title(axes, f"layer {layer}" if row == 0 else "")
        for axes in (top[row, 0], center[row, 0]):
            axes.set_ylabel(f"{budget} cores", fontsize=10, color=BLACK)
    _distinct_panels(lower, photo, prepared.geometry, maps[-1], layers, distinct)
    return figure


@rc_context(LITERAL)
@torch.inference_mode()
def paths(
    model: VECA,
    image: Source,
    *,
    budgets: Sequence[int] | None = None,
    size: int = 512,
    name: str = "VECA",
) -> Figure:
    """The path of every core over the layers: a ring where it starts, a disc where it ends.

    Paths too short to be seen are drawn magnified around their start, which the title says.
    """
    budgets = _budgets(model, budgets)
    photo, prepared = _photo(image), _prepared(model, image, size)
    found = [model.core_paths(prepared.pixels, budget)[:, 0].float().cpu() for budget in budgets]
    factor = _magnification(found)
    figure, grid = _panels(photo, 1, len(budgets))
    magnified = "" if factor == 1 else f", magnified {factor} times around the start"
    _finish(figure, f"Paths of the cores of {name} over {len(found[0])} layers{magnified}")
    colors = _palette(model).numpy() / 255
    for axes, budget, steps in zip(grid[0], budgets, found, strict=True):
        _show(axes, photo, gray=True)
        drawn = prepared.geometry.to_pixels(steps[:1] + factor * (steps - steps[:1])).numpy()
        for core in reversed(range(budget)):
            x, y = drawn[:, core].T
            width, color = 2.6 if core == 0 else 1.6, colors[core]
            axes.plot(x, y, color="white", linewidth=width + 1.4, solid_capstyle="round")
            axes.plot(x, y, color=color, linewidth=width, solid_capstyle="round")
            axes.plot(x[0], y[0], "o", ms=4, mfc="none", mec="white", mew=1.2)
            end = 8 if core == 0 else 4.5
            axes.plot(x[-1], y[-1], "o", ms=end, color=color, mec="white", mew=1.0)
        axes.set(xlim=(0, photo.width), ylim=(photo.height, 0))
        _title(axes, f"{budget} cores, mean path {_mean_length(steps):.1%} of the image")
    return figure


@rc_context(LITERAL)
@torch.inference_mode()
def objects(  # noqa: PLR0913 - the choices of the figure
    model: VECA,
    image: Source,
    *,
    budgets: Sequence[int] | None = None,
    layer: int | None = None,
    size: int = 512,
    clusters: int = 6,
    name: str = "VECA",
) -> Figure:
    """Segments without labels at several budgets.

    Above, each patch in the color of the core that it reads most in `layer`, by default at two
    thirds of the depth; below, clusters of the final patch features, common to all budgets.
    """
    budgets = _budgets(model, budgets)
    layer = round(2 / 3 * (model.config.layers - 1)) if layer is None else layer
    photo, prepared = _photo(image), _prepared(model, image, size)
    last = model.config.layers - 1
    maps = [model.layer_maps(prepared.pixels, (layer, last), budget) for budget in budgets]
    clustered = cluster_patches(
        [found[1].features.patch_map[0].float().cpu() for found in maps], clusters
    )
    figure, grid = _panels(photo, 2, len(budgets))
    _finish(figure, f"Segments without labels, {name} at {size} px")
    colors, cluster_colors = _palette(model).numpy(), _rgb(CLUSTERS, clusters)
    for column, budget in enumerate(budgets):
        read = core_segments(maps[column][0].patch_maps[0].float().cpu())
        _segments(grid[0, column], photo, read, colors, prepared.geometry)
        _segments(grid[1, column], photo, clustered[column], cluster_colors, prepared.geometry)
        _title(grid[0, column], f"{budget} cores")
    grid[0, 0].set_ylabel(f"core read most, layer {layer}", fontsize=10, color=BLACK)
    grid[1, 0].set_ylabel(f"{clusters} clusters of features", fontsize=10, color=BLACK)
    return figure


@rc_context(LITERAL)
@torch.inference_mode()
def evolution(  # noqa: PLR0913 - the choices of the figure
    model: VECA,
    images: Sequence[Source],
    labels: Sequence[str] | None = None,
    *,
    budget: int | None = None,
    layers: Sequence[int] | None = None,
    size: int = 256,
    projection: str = "umap",
    name: str = "VECA",
) -> Figure:
    """Core states of many images, layer by layer: from isotropic to clustered, as the paper says.

    Above, the first core of each image, which is its image feature, in the color of its class;
    below, all cores of the budget, 8 by default, in the colors of the cores.
    """
    if len(images) < 8:
        raise FigureError(f"evolution needs at least 8 images, not {len(images)}; give more.")
    layers = layers or sorted({0, *_spread(model)})
    budget = _budgets(model, None if budget is None else [budget])[0]
    states = _core_states(model, images, layers, budget, size)  # (L, n, C, D)
    figure = _figure(2.3 * len(layers), 5.2)
    of = _described(projection)
    _finish(figure, f"Core states of {len(images)} images by layer, {name}: {of}, normalized")
    grid = figure.subplots(2, len(layers), squeeze=False)
    classes = sorted(set(labels or ()))
    kinds = [classes.index(label) for label in labels or ()]
    palette = _palette(model).numpy()[:budget] / 255
    for column, layer in enumerate(layers):
        first, every = states[column][:, 0], states[column].flatten(0, 1)
        for axes, vectors in ((grid[0, column], first), (grid[1, column], every)):
            places = _flat(vectors, projection).numpy()
            axes.set(xticks=[], yticks=[])
            if vectors is every:
                colors: Any = np.tile(palette, (len(images), 1))
                axes.scatter(places[:, 0], places[:, 1], c=colors, s=7, linewidths=0)
            elif kinds:
                _scatter_classes(axes, places, kinds, classes)
            else:
                axes.scatter(places[:, 0], places[:, 1], c=BLUE, s=16, linewidths=0)
        _title(grid[0, column], f"layer {layer}")
    grid[0, 0].set_ylabel("image feature" + (", by class" if classes else ""), fontsize=10)
    grid[1, 0].set_ylabel(f"{budget} cores, by core", fontsize=10)
    if classes:
        handles, names = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside right upper", frameon=False, fontsize=9)
    return figure


class _Dense(NamedTuple):
    """Features of an image at one resolution."""

    image: Float[Tensor, " DI"]
    patch_map: Float[Tensor, "DP rows columns"]
    geometry: Geometry


class _Input(NamedTuple):
    """An image as a VECA takes it, on its device."""

    pixels: Float[Tensor, "1 3 height width"]
    geometry: Geometry


def _photo(image: Source) -> _Photo:
    """An image, upright and opaque, small enough for a figure."""
    decoded = decode(image)
    height, width = decoded.sides
    scale = min(1.0, LARGEST_PHOTO / max(height, width))
    sides = max(1, round(height * scale)), max(1, round(width * scale))
    pixels = decoded.resampled(sides, (0.0, 0.0, float(width), float(height))).pixels()
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().byte()
    return _Photo(pixels.permute(1, 2, 0).numpy(), height, width)


def _prepared(model: VECA, image: Source, size: int) -> _Input:
    """An image as the model takes it."""
    found = prepare(image, size, patch_size=model.config.patch_size)
    return _Input(found.pixels[None].to(model.final_norm.weight.device), found.geometry)


def _dense(model: VECA | FrozenModel, image: Source, size: int, budget: int | None) -> _Dense:
    """Features at one resolution, which a teacher reads at its own stride."""
    if isinstance(model, VECA):
        pixels, geometry = _prepared(model, image, size)
        found = model(pixels, budget)
        return _Dense(found.image[0].float().cpu(), found.patch_map[0].float().cpu(), geometry)
    decoded = decode(image)
    geometry = fitted(decoded.sides, resolution_for(size, model.stride), "resize", model.stride)
    check_result(geometry)
    pixels = resampled(decoded, geometry)
    if pixels.is_floating_point():
        pixels = (255 * pixels).round().byte()
    frozen = model.extract(pixels[None], model.settings(None, None)[-1])
    return _Dense(frozen.image[0].cpu(), frozen.patches[0].cpu(), geometry)


def _budgets(model: VECA, budgets: Sequence[int] | None) -> Sequence[int]:
    """The budgets of a figure; a model without cores is refused."""
    if model.config.attention == "full":
        raise FigureError(
            "this model has full attention and no cores to draw; use the figures features and "
            "similarity, or another model."
        )
    if budgets is None:
        return [budget for budget in BUDGETS if budget < model.config.cores] + [model.config.cores]
    return [model.chosen_budget(budget) for budget in budgets]


def _spread(model: VECA) -> list[int]:
    """Five layers over the depth; like the paper without the first."""
    last = model.config.layers - 1
    return sorted({round(1 + step * (last - 1) / 4) for step in range(5)} & {*range(last + 1)})


def _palette(model: VECA) -> Tensor:
    """The color of every core of the bank."""
    return core_colors(model.core_bank(1, model.config.cores)[1][0].tanh().cpu())


def _rgb(colors: Sequence[str], count: int) -> NDArray[np.uint8]:
    """Hexadecimal colors as rows of bytes; beyond their number they repeat."""
    values = [[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors]
    return np.array([values[number % len(values)] for number in range(count)], np.uint8)


def _colors(maps: Sequence[Tensor], projection: str) -> Sequence[Tensor]:
    """Maps in the colors of one common projection."""
    if projection == "umap":
        return umap_colors(maps)
    basis = common_basis(maps)
    return [pca_colors(item, basis) for item in maps]


def _described(projection: str) -> str:
    """A projection in a title; an unknown one is refused."""
    if projection not in {"pca", "umap"}:
        raise FigureError(f"projection={projection!r} is unknown; use 'pca' or 'umap'.")
    return "principal components" if projection == "pca" else "UMAP"


def _flat(vectors: Float[Tensor, "n D"], projection: str) -> Float[Tensor, "n 2"]:
    """Vectors in two dimensions."""
    unit = torch.nn.functional.normalize(vectors.double(), dim=1)
    if projection == "umap":
        return umap_components(unit, 2)
    centered = unit - unit.mean(dim=0)
    left, values, _ = torch.linalg.svd(centered, full_matrices=False)
    return left[:, :2] * values[:2]


def _core_states(
    model: VECA, images: Sequence[Source], layers: Sequence[int], budget: int, size: int
) -> Float[Tensor, "L n C D"]:
    """Normalized core states of images, which are cropped to squares."""
    found = []
    for image in images:
        prepared = prepare(image, size, "crop", patch_size=model.config.patch_size)
        pixels = prepared.pixels[None].to(model.final_norm.weight.device)
        steps = model.intermediates(pixels, layers, budget)
        found.append(torch.stack([step.cores[0].float().cpu() for step in steps]))
    return torch.stack(found, dim=1)


def _typical_points(found: _Dense) -> list[tuple[float, float]]:
    """The patch of each of three clusters that is most like the mean of its cluster."""
    (labels,) = cluster_patches([found.patch_map], 3)
    places = []
    for label in labels.unique().tolist():
        inside = labels == label
        mean = torch.nn.functional.normalize(found.patch_map, dim=0)[:, inside].mean(dim=1)
        closeness = cosine_map(found.patch_map, mean).masked_fill(~inside, -2)
        row, column = divmod(int(closeness.argmax()), closeness.shape[1])
        rows, columns = found.geometry.grid
        center = torch.tensor([2 * (column + 0.5) / columns - 1, 2 * (row + 0.5) / rows - 1])
        x, y = found.geometry.to_pixels(center).tolist()
        places.append((x, y))
    return places


def _magnification(paths: Sequence[Float[Tensor, "L C 2"]]) -> int:
    """A round factor that makes the mean path visible; 1 if it is already."""
    mean = min(map(_mean_length, paths))
    return next((factor for factor in (1, 2, 5, 10, 20) if factor * mean >= VISIBLE_PATH), 50)


def _mean_length(path: Float[Tensor, "L C 2"]) -> float:
    """Mean length of the paths of the cores, in image sides."""
    return float(path.diff(dim=0).norm(dim=-1).sum(dim=0).mean()) / 2


def _cell(photo: _Photo, columns: int) -> tuple[float, float]:
    """Height and width of a panel in inches, so that a figure is about a page wide."""
    width = min(3.2, 14 / columns)
    height = width * photo.height / photo.width
    if height > 4:  # a tall picture
        width, height = 4 * photo.width / photo.height, 4.0
    return max(height, 0.7), max(width, 0.9)


def _figure(width: float, height: float) -> Figure:
    """An empty figure of about this size in inches."""
    return ShownFigure(figsize=(width + 0.6, height + 0.7), dpi=110, layout="constrained")


def _panels(photo: _Photo, rows: int, columns: int) -> tuple[Figure, NDArray[Any]]:
    """A figure with a grid of panels for one image."""
    height, width = _cell(photo, columns)
    figure = _figure(columns * width, rows * (height + 0.2))
    figure.set_layout_engine("compressed")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _finish(figure: Figure | SubFigure, title: str) -> None:
    """The title of a figure or of a part of it."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=BLACK)


def _title(axes: Axes, text: str) -> None:
    """The label above a panel."""
    axes.set_title(text, fontsize=10, color=BLACK)


def _show(
    axes: Axes,
    photo: _Photo,
    values: NDArray[Any] | None = None,
    geometry: Geometry | None = None,
    gray: bool = False,
    **looks: Any,  # noqa: ANN401 - of matplotlib
) -> Any:  # noqa: ANN401 - of matplotlib
    """A photograph, pale and gray if colors are to be drawn on it, or a map of patches instead."""
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    if values is None or geometry is None:
        shown = photo.pixels
        if gray:
            shown = np.repeat(shown.mean(axis=2, keepdims=True) * 0.65 + 85, 3, axis=2).astype(
                np.uint8
            )
        return axes.imshow(shown, extent=photo.extent, interpolation="antialiased")
    axes.set(xlim=(0, photo.width), ylim=(photo.height, 0), aspect="equal")
    return _overlay(axes, values, geometry, **looks)


def _overlay(
    axes: Axes,
    values: NDArray[Any],
    geometry: Geometry,
    **looks: Any,  # noqa: ANN401 - of matplotlib
) -> Any:  # noqa: ANN401 - of matplotlib
    """A map of patches where they lie on the original image."""
    return axes.imshow(values, extent=_extent(geometry), interpolation="nearest", **looks)


def _extent(geometry: Geometry) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of the patches, in original pixels."""
    (left, top), (right, bottom) = geometry.to_pixels(
        torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    ).tolist()
    return left, right, bottom, top


def _mark(axes: Axes, place: tuple[float, float], text: str) -> None:
    """A numbered mark on an image."""
    axes.plot(*place, "o", ms=7, mfc="none", mec="white", mew=3.2)
    axes.plot(*place, "o", ms=7, mfc="none", mec=BLACK, mew=1.6)
    axes.annotate(
        text, place, (6, 5), textcoords="offset points", fontsize=10, fontweight="bold",
        color=BLACK, path_effects=[OUTLINE],
    )  # fmt: skip


def _cosine_panels(
    figure: Figure,
    line: NDArray[Any],
    photo: _Photo,
    found: _Dense,
    places: Sequence[tuple[float, float]],
) -> None:
    """Cosines with the image feature and with the patches at `places`, and their scales."""
    if len(found.image) == len(found.patch_map):
        shown = cosine_map(found.patch_map, found.image)
        drawn = _show(line[0], photo, shown.numpy(), found.geometry, cmap="viridis")
        figure.colorbar(drawn, ax=line[0], shrink=0.7, pad=0.02).ax.tick_params(labelsize=8)
    else:
        line[0].set_axis_off()
        line[0].text(0.5, 0.5, "other width\nthan patches", ha="center", va="center", color=GRAY)
    maps = []
    for x, y in places:
        try:
            patch = found.geometry.patch_of(int(x), int(y))
        except ValueError as error:
            raise FigureError(f"point {x:.0f},{y:.0f}: {error}") from error
        row, column = patch or (0, 0)  # nothing is cropped here
        maps.append(cosine_map(found.patch_map, found.patch_map[:, row, column]))
    low = float(torch.stack(maps).quantile(0.01))
    for axes, place, values in zip(line[1:], places, maps, strict=True):
        _show(axes, photo, values.numpy(), found.geometry, cmap="viridis", vmin=low, vmax=1)
        _mark(axes, place, "")
    scale = ScalarMappable(Normalize(low, 1), "viridis")
    bar = figure.colorbar(scale, ax=line[-1], shrink=0.7, pad=0.02)
    bar.ax.tick_params(labelsize=8)


def _distinct_panels(  # noqa: PLR0913, PLR0917
    figure: SubFigure,
    photo: _Photo,
    geometry: Geometry,
    maps: Sequence[LayerMaps],
    layers: Sequence[int],
    count: int,
) -> None:
    """The cores that differ most in the last of the layers, and their maps in three of them."""
    last = maps[-1].core_maps[0].float().cpu()
    chosen = distinct_cores(last, count)
    shown = sorted({0, len(layers) // 2, len(layers) - 1})
    grid = figure.subplots(len(shown), count, squeeze=False)
    for line, at in zip(grid, shown, strict=True):
        for axes, core in zip(line, chosen, strict=False):
            _show(axes, photo)
            _overlay(axes, heat(maps[at].core_maps[0, core].float().cpu()).numpy(), geometry)
            _title(axes, f"core {core}" if at == shown[0] else "")
        for axes in line[len(chosen) :]:
            axes.set_axis_off()
        line[0].set_ylabel(f"layer {layers[at]}", fontsize=10, color=BLACK)


def _segments(
    axes: Axes,
    photo: _Photo,
    labels: Int64[Tensor, "rows columns"],
    palette: NDArray[np.uint8],
    geometry: Geometry,
) -> None:
    """Segments as colors on the photograph, with borders between them."""
    _show(axes, photo, gray=True)
    alpha = np.full((*labels.shape, 1), 150, np.uint8)
    _overlay(axes, np.concatenate((palette[labels.numpy()], alpha), axis=2), geometry)
    left, right, bottom, top = _extent(geometry)
    rows, columns = labels.shape
    size = np.array([(right - left) / columns, (bottom - top) / rows])
    lines = _borders(labels) * size + np.array([left, top])
    axes.add_collection(LineCollection(list(lines), colors="white", linewidths=0.8))
    axes.set(xlim=(0, photo.width), ylim=(photo.height, 0))


def _borders(labels: Int64[Tensor, "rows columns"]) -> NDArray[np.float64]:
    """Lines (n, start or end, x and y) between patches of different labels, in patches."""
    rows, columns = np.nonzero((labels.diff(dim=1) != 0).numpy())
    upright = np.stack((columns + 1, rows, columns + 1, rows + 1), axis=1)
    rows, columns = np.nonzero((labels.diff(dim=0) != 0).numpy())
    level = np.stack((columns, rows + 1, columns + 1, rows + 1), axis=1)
    return np.concatenate((upright, level)).reshape(-1, 2, 2).astype(float)


def _scatter_classes(
    axes: Axes, places: NDArray[Any], kinds: Sequence[int], classes: Sequence[str]
) -> None:
    """Points by class: a color each, and another marker when the colors repeat."""
    colors = _rgb(CLUSTERS, len(classes)) / 255
    for kind, label in enumerate(classes):
        own = places[[number for number, found in enumerate(kinds) if found == kind]]
        marker = MARKERS[kind // len(CLUSTERS) % len(MARKERS)]
        axes.scatter(
            own[:, 0], own[:, 1], color=colors[kind], marker=marker, s=18, linewidths=0, label=label
        )
