"""Photographs through several budgets of one model: what it costs, and what is seen.

`run_demo` gives numbers and small pictures; `demo_page` puts them on a page.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from veca.analysis.core_pictures import core_colours, heat, paths_svg, regions
from veca.analysis.feature_colours import Basis, common_basis, feature_colours
from veca.analysis.timing import Effort, measure
from veca.backbone.features import Features
from veca.backbone.model import VECA
from veca.data.normalisation import IMAGENET
from veca.data.prepare import prepare

FEWEST_ROUNDS = 5


class BudgetRow(NamedTuple):
    """What one budget costs and how close it comes to the whole bank."""

    budget: int
    milliseconds: float
    quartiles: tuple[float, float]
    gflops: float
    pairs: int
    pairs_share: float
    """Pairs against those of full attention among the patches, N squared."""
    image_similarity: float
    patch_similarity: float


class View(NamedTuple):
    """One photo at one budget, as small pictures of one pixel for each patch."""

    budget: int
    colours: UInt8[Tensor, "rows columns 3"]
    first: UInt8[Tensor, "rows columns 4"]
    regions: UInt8[Tensor, "rows columns 4"]
    paths: str
    """Drawn as SVG."""


class PhotoViews(NamedTuple):
    """One photo as the model saw it, and its views."""

    name: str
    picture: Image.Image
    views: list[View]


class Told(NamedTuple):
    """What the report says about how it was made."""

    model: str
    trained: bool
    machine: str
    command: str


class Demo(NamedTuple):
    """All that the report shows."""

    told: Told
    pixels: tuple[int, int]
    """Width and height of the image that was timed."""
    precision: str
    """What the model computed with."""
    rows: list[BudgetRow]
    photos: list[PhotoViews]


class _Seen(NamedTuple):
    """A photo and what the model answered at each budget, the largest last."""

    name: str
    pixels: Float[Tensor, "1 3 height width"]
    features: list[Features]


def run_demo(
    model: VECA,
    photos: Sequence[Path],
    budgets: Sequence[int],
    size: int,
    told: Told,
) -> Demo:
    """Encode photos at every budget; the last budget is what the others are compared with."""
    budgets = sorted({*budgets, model.config.cores})
    with torch.inference_mode():
        seen = [_look(model, photo, budgets, size) for photo in photos]
        basis = common_basis([item.patch_map[0] for one in seen for item in one.features])
        views = [_views(model, one, budgets, basis) for one in seen]
    rows = _rows(model, seen, budgets)
    height, width = seen[0].pixels.shape[2:]
    return Demo(told, (width, height), model.precision, rows, views)


def _look(model: VECA, photo: Path, budgets: Sequence[int], size: int) -> _Seen:
    """Encode one photo at every budget."""
    pixels = prepare(photo, size=size, patch_size=model.config.patch_size).pixels.unsqueeze(0)
    return _Seen(photo.stem.replace("_", " "), pixels, [model(pixels, b) for b in budgets])


def _views(model: VECA, seen: _Seen, budgets: Sequence[int], basis: Basis) -> PhotoViews:
    """The pictures of one photo."""
    colours = IMAGENET.denormalise(seen.pixels[0]).clamp(0, 1) * 255
    picture = Image.fromarray(colours.round().byte().permute(1, 2, 0).numpy())
    starts = model.core_bank(1, budgets[-1])[1][0].tanh()
    colours = core_colours(starts)
    last = model.config.layers - 1
    views = []
    for budget, features in zip(budgets, seen.features, strict=True):
        maps = model.core_maps(seen.pixels, last, budget)[0]
        paths = model.core_paths(seen.pixels, budget)[:, 0]
        views.append(
            View(
                budget,
                feature_colours(features.patch_map[0], basis),
                heat(maps[0]),
                regions(maps, colours[:budget]),
                paths_svg(paths, colours[:budget], picture.size),
            )
        )
    return PhotoViews(seen.name, picture, views)


def _rows(model: VECA, seen: Sequence[_Seen], budgets: Sequence[int]) -> list[BudgetRow]:
    """Cost of the first photo at every budget, similarity over all photos."""
    pixels = seen[0].pixels
    height, width = pixels.shape[2:]
    cases = {str(budget): lambda budget=budget: model(pixels, budget) for budget in budgets}
    timings = measure(cases, Effort(rounds=FEWEST_ROUNDS, seconds=1.0, most_seconds=8.0))
    patches = seen[0].features[0].patches.shape[1]
    rows = []
    for number, budget in enumerate(budgets):
        cost = model.cost(height, width, budget)
        time = timings[str(budget)].milliseconds
        similar = [_similarity(one.features[number], one.features[-1]) for one in seen]
        rows.append(
            BudgetRow(
                budget,
                time.median,
                (time.low, time.high),
                cost.flops / 1e9,
                cost.pairs,
                cost.pairs / patches**2,
                sum(image for image, _ in similar) / len(similar),
                sum(patch for _, patch in similar) / len(similar),
            )
        )
    return rows


def _similarity(some: Features, whole: Features) -> tuple[float, float]:
    """Cosine of the image features, and mean cosine of the patches."""
    image = F.cosine_similarity(some.image, whole.image, dim=-1).mean()
    patches = F.cosine_similarity(some.patches, whole.patches, dim=-1).mean()
    return image.item(), patches.item()
