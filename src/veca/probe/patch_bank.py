"""Labelled patches: features of training patches, and the shares of the classes in each.

A patch counts if one of its pixels does. Where there are more than a bank should hold, some are
drawn by the seed. Under torchrun each worker reads a part of the pictures, and all get all of it.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from veca.data.errors import DataError
from veca.data.labelled import IGNORED, Split
from veca.probe.dense_heads import Observed
from veca.probe.dense_reading import load_target
from veca.probe.features import Place
from veca.probe.shown_features import Kind, ShownFeatures
from veca.probe.windows import Layout
from veca.runtime.randomness import step_seed

CELLS_AT_ONCE = 512
"""Patches that look for their neighbours together, which bounds memory."""


class PatchBank(NamedTuple):
    """M labelled patches."""

    features: Float[Tensor, "M D"]
    """Of length 1."""

    shares: Float[Tensor, "M K"]
    """Of each class in the pixels of a patch that count."""


class Wanted(NamedTuple):
    """What a bank should be."""

    num_classes: int

    most: int
    """Patches at most."""

    seed: int


def class_shares(
    mask: NDArray[np.uint8], grid: tuple[int, int], num_classes: int
) -> NDArray[np.float32]:
    """The share of each class in the pixels of each patch (rows * columns, K); 0 where none counts.

    A pixel belongs to the patch under its centre, as the picture was scaled to whole patches.
    """
    rows, columns = (
        (2 * np.arange(side) + 1) * cells // (2 * side)
        for side, cells in zip(mask.shape, grid, strict=True)
    )
    cells = rows[:, None] * grid[1] + columns
    counts = mask != IGNORED
    if counts.any() and int(mask[counts].max()) >= num_classes:
        raise DataError(
            f"a mask has the class {int(mask[counts].max())}, but there are {num_classes} classes, "
            "from 0 on; check the map of the set's classes."
        )
    pairs = cells[counts] * num_classes + mask[counts]
    total = grid[0] * grid[1]
    pixels = np.bincount(pairs, minlength=total * num_classes).reshape(total, num_classes)
    return (pixels / np.maximum(1, pixels.sum(1, keepdims=True))).astype(np.float32)


def build_bank(
    split: Split, features: ShownFeatures, kind: Kind, wanted: Wanted, place: Place
) -> PatchBank:
    """The bank of a split for one setting."""
    chosen = _chosen(split, features, kind, wanted, place)
    first = features(0, kind)[0].patches
    found = PatchBank(
        first.new_zeros(len(chosen), first.shape[1]),
        first.new_zeros(len(chosen), wanted.num_classes),
    )
    for index, rows, cells in _by_picture(chosen, place):
        observed, layout = features(index, kind)
        shares = _shares(split, index, observed, layout, wanted.num_classes)
        found.features[rows] = unit_patches(observed)[cells]
        found.shares[rows] = torch.from_numpy(shares).to(first)[cells]
    return PatchBank(place.workers.sum(found.features), place.workers.sum(found.shares))


def unit_patches(observed: Observed) -> Float[Tensor, "cells D"]:
    """Patch features of one whole picture, of length 1."""
    return F.normalize(observed.patches[0].flatten(1).T, dim=1)


def votes(
    cells: Float[Tensor, "n D"],
    bank: PatchBank,
    neighbours: tuple[int, ...],
    temperature: float,
) -> dict[int, Float[Tensor, "n K"]]:
    """Shares of the classes in each patch by its nearest labelled ones, for each count of them.

    A neighbour weighs exp(cosine / temperature). Where the bank has fewer, all of it votes.
    """
    most = min(max(neighbours), len(bank.features))
    found: dict[int, list[Tensor]] = {count: [] for count in neighbours}
    for some in cells.split(CELLS_AT_ONCE):
        cosines, places = (some @ bank.features.T).topk(most, dim=1)
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        shares = bank.shares[places]
        for count, parts in found.items():
            weight = weights[:, :count, None]
            parts.append((weight * shares[:, :count]).sum(1) / weight.sum(1))
    return {count: torch.cat(parts) for count, parts in found.items()}


def _chosen(
    split: Split, features: ShownFeatures, kind: Kind, wanted: Wanted, place: Place
) -> NDArray[np.int64]:
    """Picture and patch of each row of the bank (M, 2), the same on every worker."""
    mine: dict[int, NDArray[np.int64]] = {}
    lengths = torch.zeros(len(split), dtype=torch.int64)
    for index in range(place.workers.rank, len(split), place.workers.count):
        observed, layout = features(index, kind)
        shares = _shares(split, index, observed, layout, wanted.num_classes)
        mine[index] = np.flatnonzero(shares.any(1))
        lengths[index] = len(mine[index])
    lengths = place.workers.sum(lengths)
    ends = lengths.cumsum(0)
    total = int(ends[-1])
    if not total:
        raise DataError(f"no pixel of {split.name} counts; check its masks.")
    generator = torch.Generator().manual_seed(step_seed(wanted.seed, 0, "patch bank"))
    order = torch.randperm(total, generator=generator)[: wanted.most].sort().values
    pictures = torch.searchsorted(ends, order, right=True)
    places = order - (ends - lengths)[pictures]
    cells = torch.zeros_like(order)
    for index, valid in mine.items():
        here = pictures == index
        cells[here] = torch.from_numpy(valid)[places[here]]
    return torch.stack((pictures, place.workers.sum(cells)), 1).numpy()


def _by_picture(chosen: NDArray[np.int64], place: Place) -> Iterator[tuple[int, Tensor, Tensor]]:
    """This worker's pictures, with the rows of the bank that are from them, and their patches."""
    for index in np.unique(chosen[:, 0]).tolist():
        if index % place.workers.count == place.workers.rank:
            rows = np.flatnonzero(chosen[:, 0] == index)
            yield index, torch.from_numpy(rows), torch.from_numpy(chosen[rows, 1])


def _shares(
    split: Split, index: int, observed: Observed, layout: Layout, num_classes: int
) -> NDArray[np.float32]:
    """Shares of the classes in the patches of a picture."""
    mask = load_target(split, index).astype(np.uint8, copy=False)
    if mask.shape != layout.original:
        raise DataError(
            f"{split.targets[index]} has {mask.shape} pixels, but its picture has "
            f"{layout.original} (height, width, upright); get both again."
        )
    rows, columns = observed.patches.shape[2:]
    return class_shares(mask, (rows, columns), num_classes)
