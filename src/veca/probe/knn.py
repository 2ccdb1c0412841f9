"""Nearest neighbors of images and of patches.

The k nearest neighbors vote: exact, in bounded memory, the same bits however it is cut up.

Features are made unit vectors, and each of their numbers is rounded to a multiple of 2**-26. The
products of two such numbers are multiples of 2**-52, and so are their sums, which stay below 2:
double precision holds every one of them exactly. A similarity therefore does not depend on the
order of summation, that is on chunks, threads, processes or the device, and equal pictures are
equally similar. The rounding changes a similarity by about 1e-8, less than the single precision of
the features does. Equals are taken in the order of the training set.

Labeled patches: features of training patches, and the shares of the classes in each.

A patch counts if one of its pixels does. Where there are more than a bank should hold, some are
drawn by the seed. Under torchrun each worker reads a part of the pictures, and all get all of it.

Dense kNN: each patch is labeled by the nearest labeled patches; nothing is fitted.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, LabeledDataset, Split
from veca.probe.dense_run import training_split
from veca.probe.feature_cache import RunContext, load_target
from veca.probe.features import (
    InferenceConfig,
    PatchFeatures,
    Variant,
    extract_patch_features,
)
from veca.probe.metrics import Labels, MaskObjects, check_labels, confusion, segmentation_metrics
from veca.probe.models import FrozenFeatures, FrozenModel
from veca.probe.protocols import DenseKnnProtocol
from veca.probe.rows import Setting
from veca.probe.segmentation import (
    JudgedClasses,
    SegmentationResult,
    check_size,
    class_target,
    num_classes,
)
from veca.probe.sliding_window import WindowGrid, argmax_pixels
from veca.runtime import VecaError
from veca.runtime.device import seed_for

GRID = 2.0**26
"""Steps in which the numbers of a unit vector are rounded, for each 1."""

VOTE_GRID = 2.0**40
"""Steps in which votes are rounded, for each 1, so that their sums are exact too."""

TEST_ROWS = 1024
"""Pictures that look for neighbors at once."""

TRAIN_ROWS = 8192
"""Pictures among which they look at once; with `TEST_ROWS` the similarities take 64 MiB."""


class NeighborError(VecaError, ValueError):
    """Neighbors that cannot be found: what was got, what is allowed, what to do."""


class Nearest(NamedTuple):
    """The neighbors of M pictures, the nearest first."""

    similarities: Float64[Tensor, "M k"]
    """Cosines of the angles, within -1..1 but for the rounding."""

    rows: Int64[Tensor, "M k"]
    """Where they are in the training set."""


def knn(  # noqa: PLR0913 - the last three have defaults that the field agrees on
    train: Float[Tensor, "N D"],
    labels: Labels,
    test: Float[Tensor, "M D"],
    num_classes: int,
    *,
    ks: Sequence[int] = (10, 20, 100, 200),
    temperature: float = 0.07,
    advance: Callable[[int], object] | None = None,
) -> dict[int, Float64[Tensor, "M {num_classes}"]]:
    """Votes for each class, for each k: what `class_metrics.metrics` takes as scores.

    A neighbor of similarity s votes with exp(s / temperature) for its class, or for each class
    that its row of booleans has; the votes of a picture are divided by the sum over its k
    neighbors. Features need not be normalized. A k above N is left out, told by its absence. The
    rows of `test` do not depend on each other: parts of it may be given one by one, or one to each
    process, for the same votes. Everything is computed where the tensors lie, which must know
    double precision. `advance` hears how many pictures are done.

        votes = knn(train, labels, test, num_classes=37)
        found = {k: metrics(scores, test_labels) for k, scores in votes.items()}
    """
    check_labels(labels, num_classes)
    if not ks or min(ks) < 1:
        raise NeighborError(f"ks={tuple(ks)} asks for no neighbor; use numbers from 1 on.")
    if not 0 < temperature < math.inf:
        raise NeighborError(f"temperature={temperature} gives no votes; use one above 0.")
    possible = [k for k in ks if k <= len(train)]
    votes: dict[int, list[Tensor]] = {k: [] for k in possible}
    for found in _blocks(train, test, max(possible, default=0)) if possible else ():
        for k, block in _votes(found, labels, num_classes, possible, temperature):
            votes[k].append(block)
        if advance is not None:
            advance(len(found.rows))
    empty = test.new_empty((0, num_classes), dtype=torch.float64)
    return {k: torch.cat([empty, *blocks]) for k, blocks in votes.items()}


def nearest(train: Float[Tensor, "N D"], test: Float[Tensor, "M D"], k: int) -> Nearest:
    """The k rows of `train` most like each row of `test`; equals in the order of `train`."""
    if not 1 <= k <= len(train):
        raise NeighborError(f"k={k} of {len(train)} neighbors cannot be had; use 1 to all.")
    empty = test.new_empty((0, k), dtype=torch.float64)
    blocks = list(_blocks(train, test, k))
    return Nearest(
        torch.cat([empty, *(block.similarities for block in blocks)]),
        torch.cat([empty.long(), *(block.rows for block in blocks)]),
    )


def _blocks(train: Tensor, test: Tensor, k: int) -> Iterator[Nearest]:
    """Neighbors of so many test rows at a time."""
    for block in test.split(TEST_ROWS):
        wanted = _directions(block)
        values = wanted.new_empty(len(wanted), 0)
        rows = torch.empty_like(values, dtype=torch.int64)
        for start in range(0, len(train), TRAIN_ROWS):
            part = _directions(train[start : start + TRAIN_ROWS])
            numbers = torch.arange(start, start + len(part), device=rows.device)
            # What was found before stands first, so that positions order equals as rows do.
            values = torch.cat((values, wanted @ part.T), dim=1)
            rows = torch.cat((rows, numbers.expand(len(rows), -1)), dim=1)
            best = _largest(values, min(k, values.shape[1]))
            values, rows = values.gather(1, best), rows.gather(1, best)
        yield Nearest(values, rows)


def _directions(features: Float[Tensor, "n D"]) -> Float64[Tensor, "n D"]:
    """Unit vectors whose products are exact; zeros stay zeros."""
    double = features.double()
    lengths = torch.linalg.vector_norm(double, dim=1, keepdim=True)
    if not bool(lengths.isfinite().all()):
        raise NeighborError(
            "a feature holds a number that is not finite, so nothing is near it; compute the "
            "features again, in single precision."
        )
    unit = double / lengths.clamp(min=torch.finfo(torch.float64).tiny)
    return unit.mul_(GRID).round_().div_(GRID)


def _largest(values: Float64[Tensor, "m n"], k: int) -> Int64[Tensor, "m {k}"]:
    """Positions of the k largest of each row, falling; equals in the order of their positions."""
    found = values.topk(k, dim=1)
    by_place = found.indices.sort(dim=1).values
    order = values.gather(1, by_place).sort(dim=1, descending=True, stable=True).indices
    best = by_place.gather(1, order)
    # Where more are equal to the last one than have room, topk may have taken any of them.
    unsure = (values >= found.values[:, -1:]).sum(dim=1) > k
    if bool(unsure.any()):
        whole = values[unsure].sort(dim=1, descending=True, stable=True)
        best[unsure] = whole.indices[:, :k]
    return best


def _votes(
    found: Nearest, labels: Tensor, num_classes: int, ks: Sequence[int], temperature: float
) -> Iterator[tuple[int, Tensor]]:
    """The votes of each k, from the smallest k on."""
    similarities, rows = found
    weights = ((similarities - similarities[:, :1]) / temperature).exp()
    weights = weights.mul_(VOTE_GRID).round_().div_(VOTE_GRID)
    total = weights.new_zeros(len(rows), num_classes)
    before = 0
    for k in sorted(set(ks)):
        if labels.dtype == torch.bool:
            for place in range(before, k):
                total += weights[:, place : place + 1] * labels[rows[:, place]]
        else:
            total.scatter_add_(1, labels[rows[:, before:k]].long(), weights[:, before:k])
        before = k
        yield k, total / weights[:, :k].sum(dim=1, keepdim=True)


CELLS_AT_ONCE = 512
"""Patches that look for their neighbors together, which bounds memory."""


class MemoryBank(NamedTuple):
    """M labeled patches."""

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

    A pixel belongs to the patch under its center, as the picture was scaled to whole patches.
    """
    rows, columns = (
        (2 * np.arange(side) + 1) * cells // (2 * side)
        for side, cells in zip(mask.shape, grid, strict=True)
    )
    cells = rows[:, None] * grid[1] + columns
    counts = mask != IGNORE_INDEX
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
    split: Split, features: PatchFeatures, kind: Variant, wanted: Wanted, ctx: RunContext
) -> MemoryBank:
    """The bank of a split for one setting."""
    chosen = _chosen(split, features, kind, wanted, ctx)
    first = features(0, kind)[0].patches
    found = MemoryBank(
        first.new_zeros(len(chosen), first.shape[1]),
        first.new_zeros(len(chosen), wanted.num_classes),
    )
    for index, rows, cells in _by_picture(chosen, ctx):
        observed, layout = features(index, kind)
        shares = _shares(split, index, observed, layout, wanted.num_classes)
        found.features[rows] = unit_patches(observed)[cells]
        found.shares[rows] = torch.from_numpy(shares).to(first)[cells]
    return MemoryBank(ctx.ranks.all_reduce(found.features), ctx.ranks.all_reduce(found.shares))


def unit_patches(observed: FrozenFeatures) -> Float[Tensor, "cells D"]:
    """Patch features of one whole picture, of length 1."""
    return F.normalize(observed.patches[0].flatten(1).T, dim=1)


def votes(
    cells: Float[Tensor, "n D"],
    bank: MemoryBank,
    neighbors: tuple[int, ...],
    temperature: float,
) -> dict[int, Float[Tensor, "n K"]]:
    """Shares of the classes in each patch by its nearest labeled ones, for each count of them.

    A neighbor weighs exp(cosine / temperature). Where the bank has fewer, all of it votes.
    """
    most = min(max(neighbors), len(bank.features))
    found: dict[int, list[Tensor]] = {count: [] for count in neighbors}
    for some in cells.split(CELLS_AT_ONCE):
        cosines, places = (some @ bank.features.T).topk(most, dim=1)
        weights = ((cosines - cosines[:, :1]) / temperature).exp()
        shares = bank.shares[places]
        for count, parts in found.items():
            weight = weights[:, :count, None]
            parts.append((weight * shares[:, :count]).sum(1) / weight.sum(1))
    return {count: torch.cat(parts) for count, parts in found.items()}


def _chosen(
    split: Split, features: PatchFeatures, kind: Variant, wanted: Wanted, ctx: RunContext
) -> NDArray[np.int64]:
    """Picture and patch of each row of the bank (M, 2), the same on every worker."""
    mine: dict[int, NDArray[np.int64]] = {}
    lengths = torch.zeros(len(split), dtype=torch.int64)
    for index in range(ctx.ranks.rank, len(split), ctx.ranks.world_size):
        observed, layout = features(index, kind)
        shares = _shares(split, index, observed, layout, wanted.num_classes)
        mine[index] = np.flatnonzero(shares.any(1))
        lengths[index] = len(mine[index])
    lengths = ctx.ranks.all_reduce(lengths)
    ends = lengths.cumsum(0)
    total = int(ends[-1])
    if not total:
        raise DataError(f"no pixel of {split.name} counts; check its masks.")
    generator = torch.Generator().manual_seed(seed_for(wanted.seed, 0, "patch bank"))
    order = torch.randperm(total, generator=generator)[: wanted.most].sort().values
    pictures = torch.searchsorted(ends, order, right=True)
    places = order - (ends - lengths)[pictures]
    cells = torch.zeros_like(order)
    for index, valid in mine.items():
        here = pictures == index
        cells[here] = torch.from_numpy(valid)[places[here]]
    return torch.stack((pictures, ctx.ranks.all_reduce(cells)), 1).numpy()


def _by_picture(chosen: NDArray[np.int64], ctx: RunContext) -> Iterator[tuple[int, Tensor, Tensor]]:
    """This worker's pictures, with the rows of the bank that are from them, and their patches."""
    for index in np.unique(chosen[:, 0]).tolist():
        if index % ctx.ranks.world_size == ctx.ranks.rank:
            rows = np.flatnonzero(chosen[:, 0] == index)
            yield index, torch.from_numpy(rows), torch.from_numpy(chosen[rows, 1])


def _shares(
    split: Split, index: int, observed: FrozenFeatures, layout: WindowGrid, num_classes: int
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


def run_dense_knn(  # noqa: PLR0913, PLR0917 - the door of a task
    model: FrozenModel,
    settings: Sequence[Setting],
    data: LabeledDataset,
    protocol: DenseKnnProtocol,
    seeds: Sequence[int],
    ctx: RunContext,
) -> dict[tuple[Setting, int], SegmentationResult]:
    """Label the patches of test pictures by those of training pictures, for each setting and seed.

    The seed draws the bank, where there are more patches than it holds.
    """
    train = training_split(data, "masks")
    num_classes(data)
    showing = InferenceConfig(
        short_side=model.round_down_to_patch(protocol.resolution), stride=model.stride
    )
    kinds = [Variant(setting) for setting in dict.fromkeys(settings)]
    test = extract_patch_features(model, kinds, data.test, showing, ctx)
    found: dict[tuple[Setting, int], SegmentationResult] = {}
    for seed in dict.fromkeys(seeds):
        part = _drawn_pictures(train, protocol, seed)
        features = extract_patch_features(model, kinds, part, showing, ctx)
        for kind in kinds:
            wanted = Wanted(len(data.classes), protocol.bank, seed)
            bank = build_bank(part, features, kind, wanted, ctx)
            ctx.log(
                f"{kind.setting.label}, seed {seed}: {len(bank.features):,} labeled patches vote."
            )
            judged = _judged(bank, protocol, data, (test, kind), ctx)
            result = _result(judged, bank, data, protocol, len(part))
            result.facts["showing"] = asdict(showing)
            found[kind.setting, seed] = result
    return found


def voted_maps(
    observed: FrozenFeatures, bank: MemoryBank, neighbors: tuple[int, ...], temperature: float
) -> dict[int, Float[Tensor, "1 K rows columns"]]:
    """Shares of the classes in each patch of a whole picture, for each count of neighbors."""
    grid = observed.patches.shape[2:]
    found = votes(unit_patches(observed), bank, neighbors, temperature)
    return {count: shares.T.unflatten(1, grid)[None] for count, shares in found.items()}


def _drawn_pictures(train: Split, protocol: DenseKnnProtocol, seed: int) -> Split:
    """The training pictures that patches are taken from."""
    if len(train) <= protocol.pictures:
        return train
    generator = torch.Generator().manual_seed(seed_for(seed, 0, "patch bank pictures"))
    rows = torch.randperm(len(train), generator=generator)[: protocol.pictures].sort().values
    return train.subset(rows.numpy().astype(np.int64), f"{train.name}, drawn by seed {seed}")


def _judged(
    bank: MemoryBank,
    protocol: DenseKnnProtocol,
    data: LabeledDataset,
    features: tuple[PatchFeatures, Variant],
    ctx: RunContext,
) -> dict[int, JudgedClasses]:
    """Counts of pixels for each count of neighbors."""
    shown, kind = features
    classes, split = len(data.classes), data.test
    judged = {count: JudgedClasses(len(split), classes) for count in protocol.neighbors}
    for index in range(ctx.ranks.rank, len(split), ctx.ranks.world_size):
        labels = class_target(split, index, ctx)
        observed, layout = shown(index, kind)
        check_size(split, index, labels, layout.original)
        maps = voted_maps(observed, bank, protocol.neighbors, protocol.temperature)
        objects = MaskObjects(labels)
        for count, counts in judged.items():
            found = argmax_pixels(maps[count], layout)
            counts.add(index, confusion(labels, found, classes).cpu(), objects.told(found))
    return {count: counts.over(ctx) for count, counts in judged.items()}


def _result(
    judged: dict[int, JudgedClasses],
    bank: MemoryBank,
    data: LabeledDataset,
    protocol: DenseKnnProtocol,
    trained_on: int,
) -> SegmentationResult:
    """The outcome for one setting and seed: the first count of neighbors leads."""
    first, *others = protocol.neighbors
    metrics = judged[first].metrics(data)
    for count in others:
        more = segmentation_metrics(judged[count].confusion, data.classes, data.eval_classes)
        metrics |= {f"{name}_k{count}": more[name] for name in ("miou", "macc", "aacc")}
    return SegmentationResult(
        metrics=metrics,
        tensors={"features": bank.features.half().cpu(), "shares": bank.shares.half().cpu()},
        facts={"neighbors": first, "temperature": protocol.temperature},
        counts={"train": trained_on, "test": len(data.test), "patches": len(bank.features)},
        chosen={},
        confusion=judged[first].confusion,
        intersections=judged[first].intersections,
        unions=judged[first].unions,
        objects=judged[first].objects,
    )
