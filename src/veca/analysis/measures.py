"""What cores do, as numbers: pure functions of maps, points, states and masks.

`veca analyze` averages them over images; docs/guides/figures.md defines each one in a line, with
its range. Maps are norm-based core maps of one image, and need not sum to one: each is normalized.

Shapes: C cores, N patches in rows and columns, D width.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, Shaped, UInt8
from scipy.ndimage import label as connected_components
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

CoreMaps = Float[Tensor, "C rows columns"]


def map_area(maps: CoreMaps) -> Float[Tensor, " C"]:
    """Share of the image that each core reads: exp(entropy) / N, from 1 / N to 1."""
    shares = _shares(maps)
    entropy = -(shares * shares.clamp(min=1e-30).log()).sum(dim=1)
    return entropy.exp() / shares.shape[1]


def map_roundness(maps: CoreMaps) -> Float[Tensor, " C"]:
    """Narrowest over widest standard deviation of what each core reads, from 0 (a line) to 1.

    A patch counts as a square, so that one patch alone is round.
    """
    rows, columns = maps.shape[1:]
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    places = torch.stack((x, y), dim=-1).flatten(0, 1).double()  # (N, 2)
    shares = _shares(maps)
    centered = places - (shares @ places)[:, None]  # (C, N, 2)
    spread = torch.einsum("cn,cni,cnj->cij", shares, centered, centered) + torch.eye(2) / 12
    variances = torch.linalg.eigvalsh(spread).clamp(min=0)  # they rise
    return (variances[:, 0] / variances[:, 1]).sqrt()


def map_overlap(maps: CoreMaps) -> float:
    """Mean over pairs of cores of the sum of the smaller of two shares, from 0 to 1."""
    shares = _shares(maps)
    if len(shares) < 2:
        return 1.0
    least = torch.stack([torch.minimum(shares, one).sum(dim=1) for one in shares])
    return _mean_of_pairs(least)


def effective_rank(states: Float[Tensor, "C D"]) -> float:
    """Exp of the entropy of the normalized singular values, over C: from 1 / C to 1.

    1 means no redundancy. States have length one first. The rank is that of Roy and Vetterli, 2007.
    """
    values = torch.linalg.svdvals(F.normalize(states.double(), dim=1))
    shares = values / values.sum()
    entropy = -(shares * shares.clamp(min=1e-30).log()).sum()
    return float(entropy.exp()) / len(states)


def pair_cosine(states: Float[Tensor, "C D"]) -> float:
    """Mean cosine between the states of two cores, from -1 to 1."""
    unit = F.normalize(states.double(), dim=1)
    return _mean_of_pairs(unit @ unit.mT) if len(unit) > 1 else 1.0


class Agreement(NamedTuple):
    """How well the cores of two views of an image agree, after matching them one to one."""

    kept: float
    """Share of cores whose match is the core itself."""
    displacement: float
    """Mean distance between matched points, in image sides."""
    correlation: float
    """Mean correlation of matched maps."""
    cosine: float
    """Mean cosine of matched states."""


class View(NamedTuple):
    """The cores of one image in one layer."""

    maps: CoreMaps
    points: Float[Tensor, "C 2"]
    """In (-1, 1), x then y."""
    states: Float[Tensor, "C D"]


def agreement(one: View, other: View) -> Agreement:
    """Match cores by the greatest total correlation of their maps (Hungarian), and compare.

    `other` may have more cores, as with a larger budget. Cores of `one` whose point lies outside
    the image, as after a crop, have no displacement.
    """
    correlations = _standardized(one.maps) @ _standardized(other.maps).mT
    rows, columns = linear_sum_assignment(correlations.numpy(), maximize=True)
    inside = (one.points[rows].abs() <= 1).all(dim=1)
    moved = (one.points[rows] - other.points[columns]).norm(dim=1)[inside] / 2
    states = F.cosine_similarity(one.states[rows].double(), other.states[columns].double(), dim=1)
    return Agreement(
        kept=float((rows == columns).mean()),
        displacement=float(moved.mean()) if len(moved) else 0.0,
        correlation=float(correlations[rows, columns].mean()),
        cosine=float(states.mean()),
    )


def path_lengths(paths: Float[Tensor, "L C 2"]) -> Float[Tensor, " C"]:
    """Way of each core over the layers, in image sides."""
    return paths.diff(dim=0).norm(dim=-1).sum(dim=0) / 2


def rank_correlation(values: Float[Tensor, " n"]) -> float:
    """Spearman correlation of values with their index, from -1 to 1; 0 if they are all equal."""
    ordered = values.sort().values
    first = torch.searchsorted(ordered, values)
    last = torch.searchsorted(ordered, values, right=True)
    ranks = (first + last).double()  # ties share their mean rank
    index = torch.arange(len(values), dtype=torch.float64)
    if ranks.std() == 0:
        return 0.0
    return float(torch.corrcoef(torch.stack((index, ranks)))[0, 1])


def objects_of(
    mask: UInt8[np.ndarray, "height width"], ignore: int, min_share: float
) -> list[Bool[np.ndarray, "height width"]]:
    """Connected components of each class but the background, 0, of at least a share of pixels."""
    found = []
    for kind in np.unique(mask[(mask != ignore) & (mask != 0)]):
        parts, count = connected_components(mask == kind)
        found += [parts == number for number in range(1, count + 1)]
    return [part for part in found if part.sum() >= min_share * mask.size]


def best_overlap(
    segments: Int[np.ndarray, "height width"],
    found: list[Bool[np.ndarray, "height width"]],
    counted: Bool[np.ndarray, "height width"],
) -> list[float]:
    """The greatest IoU of a segment with each object, over the pixels that count."""
    sizes = np.bincount(segments[counted])
    overlaps = []
    for part in found:
        inside = part & counted
        common = np.bincount(segments[inside], minlength=len(sizes))
        overlaps.append(float((common / np.maximum(sizes + inside.sum() - common, 1)).max()))
    return overlaps


def matched_miou(confusion: Int64[Tensor, "clusters classes"]) -> float:
    """Mean IoU in percent of the classes that occur, clusters matched one to one (Hungarian).

    `confusion` counts pixels by cluster and true class; a class without a cluster has IoU 0.
    """
    counts = confusion.double()
    union = counts.sum(dim=1, keepdim=True) + counts.sum(dim=0, keepdim=True) - counts
    overlaps = counts / union.clamp(min=1)
    rows, columns = linear_sum_assignment(overlaps.numpy(), maximize=True)
    present = int((counts.sum(dim=0) > 0).sum())
    return 100 * float(overlaps[rows, columns].sum()) / max(present, 1)


def knn_hits(  # noqa: PLR0913
    bank: Float[Tensor, "n D"],
    labels: Int64[Tensor, " n"],
    queries: Float[Tensor, "m D"],
    own: Int64[Tensor, " m"],
    *,
    k: int = 20,
    temperature: float = 0.07,
) -> Bool[Tensor, " m"]:
    """Whether the k nearest images of the bank vote for a query's class, its own row left out.

    Votes are weighted as in DINOv2's kNN. `own` is the row of the bank that a query comes from.
    """
    similarities = F.normalize(queries.double(), dim=1) @ F.normalize(bank.double(), dim=1).mT
    similarities[torch.arange(len(own)), own] = -torch.inf
    values, rows = similarities.topk(min(k, len(bank) - 1), dim=1)
    votes = values.new_zeros(len(queries), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[rows], (values / temperature).exp())
    return votes.argmax(dim=1) == labels[own]


def _shares(maps: CoreMaps) -> Float[Tensor, "C N"]:
    """Maps as distributions over patches."""
    flat = maps.double().flatten(1)
    return flat / flat.sum(dim=1, keepdim=True).clamp(min=1e-30)


def _standardized(maps: CoreMaps) -> Float[Tensor, "C N"]:
    """Maps whose products are correlations; a constant map correlates with nothing."""
    flat = maps.double().flatten(1)
    return F.normalize(flat - flat.mean(dim=1, keepdim=True), dim=1)


def _mean_of_pairs(matrix: Shaped[Tensor, "C C"]) -> float:
    """Mean off the diagonal."""
    count = len(matrix)
    return float((matrix.sum() - matrix.diagonal().sum()) / (count * (count - 1)))
