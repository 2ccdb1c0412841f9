"""Nearest neighbors of images and of patches.

Image kNN is exact and takes bounded memory, and its result does not depend on chunks, threads,
ranks or the device. Features are normalized and rounded to multiples of 2**-26; products of two
such numbers are multiples of 2**-52, so double precision holds their sums exactly in any order. The
rounding changes a similarity by about 1e-8, less than the features' own precision. Ties are broken
by the order of the training set.

Dense kNN labels each patch by the nearest patches of a memory bank of labeled training patches. A
patch is labeled if one of its pixels is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.sets.dataset import IGNORE_INDEX, Split
from veca.probe.dense import Candidate, evaluate, prediction
from veca.probe.feature_cache import Variant, load_target
from veca.probe.features import (
    InferenceConfig,
    PatchFeatures,
    check_size,
    extract_patch_features,
)
from veca.probe.metrics import Labels
from veca.probe.models import FrozenFeatures
from veca.probe.protocols import DenseKnnProtocol, ProbeInputs, training_split
from veca.probe.rows import ProbeResult
from veca.probe.segmentation import MaskScorer
from veca.runtime.device import seed_for
from veca.runtime.logging import logger

GRID = 2.0**26
"""Normalized features are rounded to multiples of 1 / GRID."""

VOTE_GRID = 2.0**40
"""Votes are rounded to multiples of 1 / VOTE_GRID, so that their sums are exact too."""

TEST_ROWS = 1024
"""Test images that are compared at once."""

TRAIN_ROWS = 8192
"""Training images that are compared at once; 64 MiB of similarities with `TEST_ROWS`."""

PATCH_ROWS = 512
"""Patches whose neighbors are looked up at once."""


def knn_votes(  # noqa: PLR0913
    train: Float[Tensor, "N D"],
    labels: Labels,
    test: Float[Tensor, "M D"],
    num_classes: int,
    *,
    ks: Sequence[int] = (10, 20, 100, 200),
    temperature: float = 0.07,
    advance: Callable[[int], object] = lambda _: None,
) -> dict[int, Float64[Tensor, "M {num_classes}"]]:
    """Class probabilities for each k up to N.

    A neighbor votes with exp(similarity / temperature) for its class, or for each class of its row
    of booleans; votes are normalized over the k neighbors. Rows of `test` are independent.
    `advance` is called with the number of finished images.
    """
    possible = [k for k in ks if k <= len(train)]
    votes: dict[int, list[Tensor]] = {k: [] for k in possible}
    for chunk in test.split(TEST_ROWS) if possible else ():
        similarities, rows = nearest(train, chunk, max(possible))
        for k, found in _votes(similarities, rows, labels, num_classes, possible, temperature):
            votes[k].append(found)
        advance(len(chunk))
    return {k: torch.cat(chunks) for k, chunks in votes.items()}


def nearest(
    train: Float[Tensor, "N D"], test: Float[Tensor, "m D"], k: int
) -> tuple[Float64[Tensor, "m k"], Int64[Tensor, "m k"]]:
    """Cosines and indices of the k nearest training images; ties in the order of `train`."""
    wanted = _unit_vectors(test)
    values = wanted.new_empty(len(wanted), 0)
    rows = torch.empty_like(values, dtype=torch.int64)
    for start in range(0, len(train), TRAIN_ROWS):
        part = _unit_vectors(train[start : start + TRAIN_ROWS])
        numbers = torch.arange(start, start + len(part), device=rows.device)
        # Earlier rows come first, so that ties are in the order of positions.
        values = torch.cat((values, wanted @ part.T), dim=1)
        rows = torch.cat((rows, numbers.expand(len(rows), -1)), dim=1)
        best = _stable_topk(values, min(k, values.shape[1]))
        values, rows = values.gather(1, best), rows.gather(1, best)
    return values, rows


def _unit_vectors(features: Float[Tensor, "n D"]) -> Float64[Tensor, "n D"]:
    """Normalized features on the grid; zeros stay zeros."""
    double = features.double()
    norms = torch.linalg.vector_norm(double, dim=1, keepdim=True)
    unit = double / norms.clamp(min=torch.finfo(torch.float64).tiny)
    return unit.mul_(GRID).round_().div_(GRID)


def _stable_topk(values: Float64[Tensor, "m n"], k: int) -> Int64[Tensor, "m {k}"]:
    """Positions of the k largest values of each row, descending; ties in the order of positions."""
    found = values.topk(k, dim=1)
    by_position = found.indices.sort(dim=1).values
    order = values.gather(1, by_position).sort(dim=1, descending=True, stable=True).indices
    best = by_position.gather(1, order)
    # topk may take any of the values that tie with the last one.
    ambiguous = (values >= found.values[:, -1:]).sum(dim=1) > k
    if bool(ambiguous.any()):
        sorted_rows = values[ambiguous].sort(dim=1, descending=True, stable=True)
        best[ambiguous] = sorted_rows.indices[:, :k]
    return best


def _votes(  # noqa: PLR0913, PLR0917
    similarities: Tensor,
    rows: Tensor,
    labels: Tensor,
    num_classes: int,
    ks: Sequence[int],
    temperature: float,
) -> Iterator[tuple[int, Tensor]]:
    """The votes for each k, in ascending order."""
    weights = ((similarities - similarities[:, :1]) / temperature).exp()
    weights = weights.mul_(VOTE_GRID).round_().div_(VOTE_GRID)
    total = weights.new_zeros(len(rows), num_classes)
    before = 0
    for k in sorted(set(ks)):
        if labels.dtype == torch.bool:
            for rank in range(before, k):
                total += weights[:, rank : rank + 1] * labels[rows[:, rank]]
        else:
            total.scatter_add_(1, labels[rows[:, before:k]].long(), weights[:, before:k])
        before = k
        yield k, total / weights[:, :k].sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class MemoryBank:
    """M labeled patches, which predict class shares of other patches like a head."""

    features: Float[Tensor, "M D"]
    """Normalized."""
    shares: Float[Tensor, "M K"]
    """Of each class in the labeled pixels of a patch."""
    k: int
    temperature: float

    def __call__(self, features: FrozenFeatures) -> Float[Tensor, "1 K rows columns"]:
        """Class shares of the patches of one whole image."""
        shares = torch.cat([self.votes(some) for some in _unit_patches(features).split(PATCH_ROWS)])
        return shares.T.unflatten(1, features.patches.shape[2:])[None]

    def votes(self, patches: Float[Tensor, "n D"]) -> Float[Tensor, "n K"]:
        """Class shares by the votes of the k nearest patches, weighted as in `knn_votes`."""
        k = min(self.k, len(self.features))
        cosines, rows = (patches @ self.features.T).topk(k, dim=1)
        weights = ((cosines - cosines[:, :1]) / self.temperature).exp()[..., None]
        return (weights * self.shares[rows]).sum(1) / weights.sum(1)


def evaluate_dense_knn(inputs: ProbeInputs[DenseKnnProtocol]) -> Iterator[ProbeResult]:
    """Label test patches by training patches, for each setting and seed, which draws the bank."""
    model, data, protocol, ctx = inputs.model, inputs.data, inputs.protocol, inputs.ctx
    train, scorer = training_split(data), MaskScorer(data)
    inference = InferenceConfig(
        short_side=model.round_down_to_patch(protocol.resolution), stride=model.stride
    )
    variants = [Variant(setting) for setting in dict.fromkeys(inputs.settings)]
    test = extract_patch_features(model, variants, data.test, inference, ctx)
    for seed in dict.fromkeys(inputs.seeds):
        split = train
        if len(train) > protocol.max_images:
            generator = torch.Generator().manual_seed(seed_for(seed, 0, "patch bank pictures"))
            chosen = torch.randperm(len(train), generator=generator)[: protocol.max_images]
            rows = chosen.sort().values.numpy().astype(np.int64)
            split = train.subset(rows, f"{train.name}, drawn by seed {seed}")
        features = extract_patch_features(model, variants, split, inference, ctx)
        for variant in variants:
            bank = build_memory_bank(inputs, split, features, variant, seed)
            patches = len(bank.features)
            label = variant.setting.label
            logger.info("%s, seed %d: %s labeled patches.", label, seed, f"{patches:,}")
            one = Candidate(variant.setting)
            scores = evaluate(scorer, {one: bank}, data.test, test, ctx.ranks)[one]
            yield ProbeResult(
                data=data,
                setting=variant.setting,
                seed=seed,
                metrics=scorer.metrics(scores),
                counts={"train": len(split), "test": len(data.test), "patches": patches},
                tensors={
                    "features": bank.features.half().cpu(),
                    "shares": bank.shares.half().cpu(),
                },
                facts={
                    "neighbors": bank.k,
                    "temperature": bank.temperature,
                    "inference": asdict(inference),
                },
                per_image=scorer.per_image(scores),
                predict=partial(prediction, scorer, bank, variant.setting, test),
            )


def build_memory_bank(
    inputs: ProbeInputs[DenseKnnProtocol],
    split: Split,
    features: PatchFeatures,
    variant: Variant,
    seed: int,
) -> MemoryBank:
    """The bank of a split; each rank reads a part of the images, and all get the whole bank."""
    ranks, protocol, num_classes = inputs.ctx.ranks, inputs.protocol, len(inputs.data.classes)
    own = range(ranks.rank, len(split), ranks.world_size)
    lengths = torch.zeros(len(split), dtype=torch.int64)
    for index in own:
        lengths[index] = len(_labeled_patches(split, index, features, variant, num_classes)[0])
    lengths = ranks.all_reduce(lengths)
    ends = lengths.cumsum(0)
    if not int(ends[-1]):
        raise DataError(f"no pixel of {split.name} has a class; check its masks.")
    generator = torch.Generator().manual_seed(seed_for(seed, 0, "patch bank"))
    chosen = torch.randperm(int(ends[-1]), generator=generator)[: protocol.max_patches]
    chosen = chosen.sort().values
    images = torch.searchsorted(ends, chosen, right=True)
    width = features(0, variant)[0].patches.shape[1]
    bank = torch.zeros(len(chosen), width + num_classes, device=ranks.device)
    for index in own:
        rows = (images == index).nonzero().flatten()
        if len(rows):  # computed twice, since all patches would take gigabytes
            patches = _labeled_patches(split, index, features, variant, num_classes)
            places = chosen[rows] - (ends - lengths)[index]
            bank[rows] = torch.cat(patches, 1)[places]
    vectors, shares = ranks.all_reduce(bank).split((width, num_classes), dim=1)
    return MemoryBank(vectors, shares, protocol.k, protocol.temperature)


def class_shares(
    mask: NDArray[np.uint8], grid: tuple[int, int], num_classes: int
) -> NDArray[np.float32]:
    """The share of each class in the labeled pixels of each patch (rows * columns, K).

    A pixel belongs to the patch under its center after the image is scaled to whole patches.
    """
    rows, columns = (
        (2 * np.arange(side) + 1) * cells // (2 * side)
        for side, cells in zip(mask.shape, grid, strict=True)
    )
    cells = rows[:, None] * grid[1] + columns
    labeled = mask != IGNORE_INDEX
    if labeled.any() and int(mask[labeled].max()) >= num_classes:
        raise DataError(
            f"a mask has class {int(mask[labeled].max())}, but the dataset has {num_classes} "
            "classes, from 0 on; check its label map."
        )
    pairs = cells[labeled] * num_classes + mask[labeled]
    total = grid[0] * grid[1]
    pixels = np.bincount(pairs, minlength=total * num_classes).reshape(total, num_classes)
    return (pixels / np.maximum(1, pixels.sum(1, keepdims=True))).astype(np.float32)


def _labeled_patches(
    split: Split, index: int, features: PatchFeatures, variant: Variant, num_classes: int
) -> tuple[Float[Tensor, "n D"], Float[Tensor, "n K"]]:
    """Normalized features and class shares of the labeled patches of an image."""
    found, grid = features(index, variant)
    mask = load_target(split, index).astype(np.uint8, copy=False)
    check_size(split, index, mask, grid.original)
    rows, columns = found.patches.shape[2:]
    shares = torch.from_numpy(class_shares(mask, (rows, columns), num_classes))
    labeled = shares.any(1)
    return _unit_patches(found)[labeled], shares[labeled].to(features.device)


def _unit_patches(features: FrozenFeatures) -> Float[Tensor, "cells D"]:
    """Normalized patch features of one whole image."""
    return F.normalize(features.patches[0].flatten(1).T, dim=1)
