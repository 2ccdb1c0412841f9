"""Features and cores as small arrays to look at: colors, similarities, segments, SVG.

Everything here is a pure function of `Features`, maps or paths, without drawing or models; one
pixel of a result is one patch. `Geometry.to_image` and `to_pixels` go on to the original image.

`pca_colors`, `umap_colors`: three components of many feature maps become red, green and blue. Maps
that are to be compared (budgets, layers, resolutions, photos) share one basis, so a color means the
same in all. The maps of all cores of a layer are such a map too: C values for each patch.

`cosine_map`, `similarity_colors`: how similar every patch is to one patch or to the image feature.

`regions`, `heat`, `distinct_cores`, `paths_svg`: which core reads where, and how cores move. A core
keeps its color at every budget: hue follows the direction of its starting point from the center, so
neighbors look alike.

`core_segments`, `cluster_patches`: segments without labels, by the core that a patch reads most, or
by clusters of patch features.
"""

import colorsys
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor
from torch.nn import functional as F

from veca.runtime import VecaError

CLIPPED = 0.01
"""Share of the patches at either end of a direction that may saturate a color."""

MISSING_UMAP = (
    "UMAP needs umap-learn, which is not installed; run `pip install 'veca[figures]'`, or "
    "use the projection 'pca'."
)


class Basis(NamedTuple):
    """Three directions in feature space, and the range of each that is shown."""

    mean: Float[Tensor, " D"]
    directions: Float[Tensor, "D 3"]
    low: Float[Tensor, "3"]
    high: Float[Tensor, "3"]


def common_basis(maps: Sequence[Float[Tensor, "D _ _"]]) -> Basis:
    """The three directions along which the patches of all maps differ most."""
    patches = torch.cat([_unit_patches(item) for item in maps])
    mean = patches.mean(dim=0)
    _, vectors = torch.linalg.eigh((patches - mean).mT @ (patches - mean))  # values rise
    count = min(3, vectors.shape[1])
    directions = vectors.flip(1)[:, :count]
    strongest = directions.abs().argmax(dim=0, keepdim=True)
    directions = directions * directions.gather(0, strongest).sign()  # a sign is arbitrary: fix it
    directions = F.pad(directions, (0, 3 - count))
    shown = (patches - mean) @ directions
    low, high = shown.quantile(CLIPPED, dim=0), shown.quantile(1 - CLIPPED, dim=0)
    return Basis(mean, directions, low, high)


def pca_colors(
    patch_map: Float[Tensor, "D rows columns"], basis: Basis
) -> UInt8[Tensor, "rows columns 3"]:
    """One map in the colors of a basis."""
    shown = (_unit_patches(patch_map) - basis.mean) @ basis.directions
    scaled = (shown - basis.low) / (basis.high - basis.low).clamp(min=1e-9)
    colors = (scaled.clamp(0, 1) * 255).round().to(torch.uint8)
    return colors.unflatten(0, tuple(patch_map.shape[1:]))


def umap_colors(
    maps: Sequence[Float[Tensor, "D _ _"]], seed: int = 0
) -> list[UInt8[Tensor, "_ _ 3"]]:
    """All maps in the three components of one UMAP, as in the paper's figures (A.9).

    Needs umap-learn. One UMAP of ten thousand patches takes about ten seconds.
    """
    shown = umap_components(torch.cat([_unit_patches(item) for item in maps]), 3, seed)
    low, high = shown.amin(dim=0), shown.amax(dim=0)
    colors = ((shown - low) / (high - low).clamp(min=1e-9) * 255).round().to(torch.uint8)
    sizes = [item.shape[1] * item.shape[2] for item in maps]
    parts = zip(colors.split(sizes), maps, strict=True)
    return [part.unflatten(0, tuple(item.shape[1:])) for part, item in parts]


def umap_components(
    vectors: Float[Tensor, "n D"], count: int, seed: int = 0
) -> Float[Tensor, "n {count}"]:
    """UMAP of vectors by cosine, with the paper's settings; the same on every run."""
    try:
        from umap import UMAP  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise VecaError(MISSING_UMAP) from error
    reducer = UMAP(
        n_components=count,
        n_neighbors=min(15, len(vectors) - 1),
        min_dist=0.1,
        metric="cosine",
        random_state=seed,
        n_jobs=1,  # what a seed makes of it anyway
    )
    return torch.from_numpy(reducer.fit_transform(vectors.float().numpy()))


def cosine_map(
    patch_map: Float[Tensor, "D rows columns"], feature: Float[Tensor, " D"]
) -> Float[Tensor, "rows columns"]:
    """Cosine of every patch with a feature, such as `patch_map[:, row, column]` of any image."""
    similarity = _unit_patches(patch_map) @ F.normalize(feature.detach().double(), dim=0)
    return similarity.float().unflatten(0, tuple(patch_map.shape[1:]))


VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five colors of matplotlib's `viridis`, which color-blind readers can tell apart."""


def similarity_colors(cosine: Float[Tensor, "rows columns"]) -> UInt8[Tensor, "rows columns 3"]:
    """A cosine map in colors, from dark at 0 or below to light at 1."""
    place = cosine.clamp(0, 1).unsqueeze(-1) * (len(VIRIDIS) - 1)
    anchors = torch.tensor(VIRIDIS, dtype=cosine.dtype)
    low = place.floor().long().clamp(max=len(VIRIDIS) - 2).squeeze(-1)
    mixed = torch.lerp(anchors[low], anchors[low + 1], place - low.unsqueeze(-1))
    return mixed.round().to(torch.uint8)


def core_segments(
    patch_maps: Float[Tensor, "C rows columns"],
) -> Int64[Tensor, "rows columns"]:
    """Label every patch with the core that it reads most."""
    return patch_maps.argmax(dim=0)


def segment_colors(
    labels: Int64[Tensor, "rows columns"], colors: UInt8[Tensor, "C 3"]
) -> UInt8[Tensor, "rows columns 4"]:
    """Each patch in the color of its label, with the photograph showing through."""
    alpha = torch.full((*labels.shape, 1), round(255 * STRONGEST), dtype=torch.uint8)
    return torch.cat((colors[labels], alpha), dim=-1)


def cluster_patches(
    maps: Sequence[Float[Tensor, "D _ _"]], count: int, rounds: int = 20
) -> list[Int64[Tensor, "_ _"]]:
    """Label the patches of all maps by `count` common clusters, the largest cluster first.

    K-means of unit vectors. It starts with the patch nearest to the mean, then always with the
    patch that is least similar to those before, so nothing is random.
    """
    patches = torch.cat([_unit_patches(item) for item in maps]).float()
    nearest = patches @ F.normalize(patches.mean(dim=0), dim=0)
    chosen = [int(nearest.argmax())]
    closest = patches @ patches[chosen[0]]
    while len(chosen) < min(count, len(patches)):
        chosen.append(int(closest.argmin()))
        closest = torch.maximum(closest, patches @ patches[chosen[-1]])
    centers = patches[chosen]
    for _ in range(rounds):
        labels = (patches @ centers.mT).argmax(dim=1)
        sums = torch.zeros_like(centers).index_add_(0, labels, patches)
        # A cluster that lost all its patches keeps its center.
        centers = torch.where(sums.norm(dim=1, keepdim=True) > 0, F.normalize(sums, dim=1), centers)
    labels = (patches @ centers.mT).argmax(dim=1)
    rank = labels.bincount(minlength=len(centers)).argsort(descending=True, stable=True).argsort()
    sizes = [item.shape[1] * item.shape[2] for item in maps]
    parts = zip(rank[labels].split(sizes), maps, strict=True)
    return [part.unflatten(0, tuple(item.shape[1:])) for part, item in parts]


def distinct_cores(core_maps: Float[Tensor, "C rows columns"], count: int) -> list[int]:
    """The cores whose maps differ most: the first core, then always the one farthest from these.

    Maps are compared by the overlap of what they read, the sum of the smaller of two shares.
    """
    shares = core_maps.flatten(1)
    shares = shares / shares.sum(dim=1, keepdim=True).clamp(min=1e-12)
    chosen = [0]
    overlap = torch.minimum(shares, shares[:1]).sum(dim=1)
    while len(chosen) < min(count, len(shares)):
        overlap[chosen] = 2.0
        chosen.append(int(overlap.argmin()))
        overlap = torch.maximum(overlap, torch.minimum(shares, shares[chosen[-1:]]).sum(dim=1))
    return chosen


def _unit_patches(patch_map: Float[Tensor, "D rows columns"]) -> Float[Tensor, "N D"]:
    """Patches with norm one: similarity of direction is what features are compared by."""
    return F.normalize(patch_map.detach().double().flatten(1).mT, dim=1)


STRONGEST = 0.72
"""Opacity where a core reads most; weaker readings let more of the photograph through."""


def core_colors(starts: Float[Tensor, "C 2"]) -> UInt8[Tensor, "C 3"]:
    """A color for each core by the place where it starts; the center is the palest."""
    colors = []
    for x, y in starts.tolist():
        hue = math.atan2(y, x) / math.tau % 1
        saturation = 0.25 + 0.65 * min(math.hypot(x, y), 1)
        colors.append(colorsys.hsv_to_rgb(hue, saturation, 0.95))
    return (torch.tensor(colors) * 255).round().to(torch.uint8)


def strongest_cores(
    core_maps: Float[Tensor, "C rows columns"],
) -> tuple[Float[Tensor, "rows columns"], Int64[Tensor, "rows columns"]]:
    """How much above its own mean the core reads each patch that reads it most, and which it is."""
    relative = core_maps / core_maps.mean(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    strength, winner = relative.max(dim=0)
    return strength, winner


def regions(
    core_maps: Float[Tensor, "C rows columns"], colors: UInt8[Tensor, "C 3"]
) -> UInt8[Tensor, "rows columns 4"]:
    """Each patch in the color of the core that reads it most, more opaque the clearer it is.

    Maps are first scaled to a mean of one over the image, so that a core which reads patches at
    all, rather than other cores, does not win everywhere.
    """
    strength, winner = strongest_cores(core_maps)
    low, high = strength.min(), strength.quantile(0.98)
    opacity = ((strength - low) / (high - low).clamp(min=1e-9)).clamp(0, 1)
    alpha = (255 * STRONGEST * (0.35 + 0.65 * opacity)).round().to(torch.uint8)
    return torch.cat((colors[winner], alpha.unsqueeze(-1)), dim=-1)


def heat(core_map: Float[Tensor, "rows columns"]) -> UInt8[Tensor, "rows columns 4"]:
    """One core's map as a veil: dark where it reads little, clear where it reads much."""
    low, high = core_map.quantile(0.02), core_map.quantile(0.98)
    share = ((core_map - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    veil = torch.tensor([12, 16, 38], dtype=torch.uint8).expand(*core_map.shape, 3)
    alpha = (255 * 0.88 * (1 - share)).round().to(torch.uint8)
    return torch.cat((veil, alpha.unsqueeze(-1)), dim=-1)


def paths_svg(
    paths: Float[Tensor, "L C 2"], colors: UInt8[Tensor, "C 3"], size: tuple[int, int]
) -> str:
    """The ways of the cores over an image of (width, height): lines from start to end.

    The start is a ring, the end a disc; the first core, the image feature, has a larger one.
    """
    width, height = size
    unit = math.hypot(width, height) / 400
    shapes = []
    for core, color in enumerate(colors.tolist()):
        places = [((x + 1) / 2 * width, (y + 1) / 2 * height) for x, y in paths[:, core].tolist()]
        shapes.append(_path(places, "#{:02x}{:02x}{:02x}".format(*color), unit, core == 0))
    return (
        f'<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">'
        + "".join(shapes)
        + "</svg>"
    )


def _path(places: Sequence[tuple[float, float]], color: str, unit: float, first: bool) -> str:
    """One core's way: white below, its color above, so that it shows on any photograph."""
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    (x0, y0), (x1, y1) = places[0], places[-1]
    radius = unit * (7 if first else 4.2)
    return (
        f'<polyline points="{line}" fill="none" stroke="#fff" stroke-width="{unit * 3.6:.1f}"/>'
        f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="{unit * 2:.1f}"/>'
        f'<circle cx="{x0:.1f}" cy="{y0:.1f}" r="{radius * 0.7:.1f}" fill="none" '
        f'stroke="#fff" stroke-width="{unit * 1.2:.1f}"/>'
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="{radius:.1f}" fill="{color}" '
        f'stroke="#fff" stroke-width="{unit * 1.4:.1f}"/>'
    )


def mark_svg(place: tuple[int, int], grid: tuple[int, int]) -> str:
    """A circle around the patch in a row and column of a grid."""
    (row, column), (rows, columns) = place, grid
    circle = f'<circle cx="{column + 0.5}" cy="{row + 0.5}" r="1.3" fill="none" '
    return (
        f'<svg viewBox="0 0 {columns} {rows}" preserveAspectRatio="none" aria-hidden="true">'
        f'{circle}stroke="#000" stroke-width=".5"/>{circle}stroke="#fff" stroke-width=".25"/></svg>'
    )
