"""The k nearest neighbours vote: exact, in bounded memory, the same bits however it is cut up.

Features are made unit vectors, and each of their numbers is rounded to a multiple of 2**-26. The
products of two such numbers are multiples of 2**-52, and so are their sums, which stay below 2:
double precision holds every one of them exactly. A similarity therefore does not depend on the
order of summation, that is on chunks, threads, processes or the device, and equal pictures are
equally similar. The rounding changes a similarity by about 1e-8, less than the single precision of
the features does. Equals are taken in the order of the training set.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from veca.probe.labels import Labels, check_labels

GRID = 2.0**26
"""Steps in which the numbers of a unit vector are rounded, for each 1."""

VOTE_GRID = 2.0**40
"""Steps in which votes are rounded, for each 1, so that their sums are exact too."""

TEST_ROWS = 1024
"""Pictures that look for neighbours at once."""

TRAIN_ROWS = 8192
"""Pictures among which they look at once; with `TEST_ROWS` the similarities take 64 MiB."""


class NeighbourError(ValueError):
    """Neighbours that cannot be found: what was got, what is allowed, what to do."""


class Nearest(NamedTuple):
    """The neighbours of M pictures, the nearest first."""

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

    A neighbour of similarity s votes with exp(s / temperature) for its class, or for each class
    that its row of booleans has; the votes of a picture are divided by the sum over its k
    neighbours. Features need not be normalised. A k above N is left out, told by its absence. The
    rows of `test` do not depend on each other: parts of it may be given one by one, or one to each
    process, for the same votes. Everything is computed where the tensors lie, which must know
    double precision. `advance` hears how many pictures are done.

        votes = knn(train, labels, test, num_classes=37)
        found = {k: metrics(scores, test_labels) for k, scores in votes.items()}
    """
    check_labels(labels, num_classes)
    if not ks or min(ks) < 1:
        raise NeighbourError(f"ks={tuple(ks)} asks for no neighbour; use numbers from 1 on.")
    if not 0 < temperature < math.inf:
        raise NeighbourError(f"temperature={temperature} gives no votes; use one above 0.")
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
        raise NeighbourError(f"k={k} of {len(train)} neighbours cannot be had; use 1 to all.")
    empty = test.new_empty((0, k), dtype=torch.float64)
    blocks = list(_blocks(train, test, k))
    return Nearest(
        torch.cat([empty, *(block.similarities for block in blocks)]),
        torch.cat([empty.long(), *(block.rows for block in blocks)]),
    )


def _blocks(train: Tensor, test: Tensor, k: int) -> Iterator[Nearest]:
    """Neighbours of so many test rows at a time."""
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
        raise NeighbourError(
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
