"""Bootstrap over test images: intervals of a mean, and models relative to their baseline.

The test images of a dataset are resampled with replacement. All models, tasks and seeds on one
dataset see the same draws, so that images that are hard for every model do not widen the interval
of a ratio. Intervals describe other test images of the same kind, not another training run.
"""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from veca.probe.heads import find_results, result_key
from veca.probe.rows import (
    CLASS_TASKS,
    ModelKey,
    Row,
    Section,
    SeedMean,
    mean_over_seeds,
    reference_of,
    sections,
    table_order,
)
from veca.runtime.device import seed_for
from veca.runtime.tensors import load_tensors

ROUNDS, SEED, LEVEL = 10_000, 0, 0.95

DRAWS = 2**18
"""Counts that are drawn at once: few enough to stay in the processor's cache."""

Values = Bool[Tensor, " N"] | Float[Tensor, " N"]
"""One value per image: whether it is correct, which counts as 0 or 100 percent, or any number."""

Numbers = NDArray[np.float64]


class PerImage(NamedTuple):
    """A number that is a mean over classes of sum / sum over images, averaged over seeds."""

    numerators: Numbers
    """(seeds, images, classes)"""
    denominators: Numbers

    @property
    def images(self) -> int:
        """How many images there are."""
        return self.denominators.shape[1]

    def estimate(self, counts: Numbers) -> Numbers:
        """The number for each draw; `counts` (rounds, images): how often each image occurs."""
        above, below = counts @ self.numerators, counts @ self.denominators
        present = below > 0
        ratios = np.divide(above, below, out=np.zeros_like(above), where=present)
        with np.errstate(invalid="ignore"):
            estimates: Numbers = (ratios.sum(2) / present.sum(2)).mean(0)
        return estimates

    @property
    def value(self) -> float:
        """The number over every image once, as it is reported."""
        return float(self.estimate(np.ones((1, self.images)))[0])


def mean_of(values: Numbers) -> PerImage:
    """The mean over images of values (seeds, images), where they are not NaN."""
    known = ~np.isnan(values)
    return PerImage(np.where(known, values, 0.0)[..., None], known[..., None].astype(np.float64))


def resample(items: Sequence[PerImage], name: str, rounds: int = ROUNDS) -> Numbers:
    """Numbers over the same images, resampled (items, rounds), with the same draws for all.

    Another `name` gives other draws.
    """
    images = items[0].images
    generator = np.random.default_rng(seed_for(SEED, 0, f"probe/retained/{name}"))
    found = np.empty((len(items), rounds))
    size = max(1, DRAWS // images)
    for start in range(0, rounds, size):
        count = min(size, rounds - start)
        drawn = generator.integers(images, size=(count, images))
        drawn += images * np.arange(count)[:, None]
        times = np.bincount(drawn.reshape(-1), minlength=count * images)
        counts = times.reshape(count, images).astype(np.float64)
        for place, item in enumerate(items):
            found[place, start : start + count] = item.estimate(counts)
    return found


def quantiles(draws: Numbers) -> tuple[float, float] | None:
    """Both ends of the middle 95 % of the draws; None if some draw has no number."""
    if not np.isfinite(draws).all():
        return None
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


class Interval(NamedTuple):
    """A mean with its interval; percent for booleans, otherwise in the unit of the values."""

    mean: float
    low: float
    high: float


def interval(values: Values, rounds: int = ROUNDS) -> Interval:
    """The mean of values with its 95 % bootstrap interval."""
    numbers = values.cpu().double().numpy() * (100.0 if values.dtype == torch.bool else 1.0)
    draws = resample([mean_of(numbers[None])], "interval", rounds)[0]
    return Interval(float(numbers.mean()), *(quantiles(draws) or (math.nan, math.nan)))


def paired_bootstrap(first: Values, second: Values, rounds: int = ROUNDS) -> Interval:
    """The difference first - second of two models on the same images, resampled in pairs.

    It is much narrower than both intervals suggest, since images are hard for both models. They
    differ beyond chance, at this level, if 0 lies outside.
    """
    scale = 100.0 if first.dtype == torch.bool else 1.0
    return interval((first.double() - second.double()) * scale, rounds)


def load_per_image(item: SeedMean, files: Mapping[str, Path]) -> PerImage | None:
    """The per-image results of a number, of all its seeds.

    None if some are missing or damaged, if they do not give the reported number, or if the metric
    is not a mean over images.
    """
    try:
        seeds = [load_tensors(files[result_key(item.row, seed)]) for seed in item.seeds]
        found = _per_image(item.row.metric, seeds)
    except (OSError, ValueError, KeyError):
        return None
    # Equal up to rounding: the same number from its per-image results.
    return found if math.isclose(found.value, item.mean, rel_tol=1e-9, abs_tol=1e-9) else None


def _per_image(
    metric: str, seeds: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Any]]]
) -> PerImage:
    """A metric from the per-image results of each seed; KeyError if not a mean over images."""

    def stack(name: str) -> Numbers:
        return np.stack([tensors[name].double().numpy() for tensors, _ in seeds])

    if metric == "miou":
        classes = seeds[0][1]["eval_classes"]
        chosen = slice(None) if classes is None else list(classes)
        return PerImage(100 * stack("intersections")[..., chosen], stack("unions")[..., chosen])
    if metric.startswith("top1"):
        return mean_of(100 * stack(metric.replace("top1", "correct", 1)))
    return mean_of(stack({"rmse": "rmse"}[metric]))


Draws = Mapping[str, Numbers]
"""Resampled numbers by the identity of their rows without the seed."""


def resample_all(items: Sequence[SeedMean], folders: Sequence[Path], rounds: int = ROUNDS) -> Draws:
    """Resample all numbers that have per-image results, those of one dataset together."""
    files = find_results(*folders)
    groups: dict[tuple[str, int], dict[str, PerImage]] = {}
    for item in items:
        found = load_per_image(item, files)
        if found is not None:
            data = item.row.data_sha256 or ascii(item.row.data)
            groups.setdefault((data, found.images), {})[item.row.identity("seed")] = found
    draws: dict[str, Numbers] = {}
    for (data, _), group in groups.items():
        draws |= zip(group, resample(list(group.values()), data, rounds), strict=True)
    return draws


Pair = tuple[SeedMean, SeedMean]
"""A number of a model, and the baseline's."""


def compare_to_baseline(
    rows: Sequence[Row], folder: Path, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """Every model of a report relative to every baseline, as in `comparison.json`.

    A line is a model at one resolution, budget and share of hidden units. Its classification
    numbers, one per task and dataset, are also averaged. Ratios are those of the reported numbers;
    their intervals come from the per-image results in `folder`.
    """
    everyone, tables = Section(mean_over_seeds(rows)), sections(rows)
    matched = {key: _match(tables, key) for key in everyone.models if key.role == "baseline"}
    items = [item for pairs, _ in matched.values() for pair in pairs for item in pair]
    draws = resample_all(items, [folder], rounds)
    return [
        {
            "baseline": key.model,
            "name": everyone.name(key),
            "weights": key.weights,
            "level": LEVEL,
            "rounds": rounds,
            "seed": SEED,
            "lines": _lines(pairs, everyone, draws),
            "left_out": left_out,
        }
        for key, (pairs, left_out) in matched.items()
        if pairs or left_out
    ]


def _match(tables: Sequence[Section], baseline: ModelKey) -> tuple[list[Pair], list[str]]:
    """Pair the primary numbers of all models with the baseline's; describe those without one."""
    pairs, left_out = list[Pair](), Counter[str]()
    primary = [
        [item for item in table.means if item.row.metric == table.metrics[0]] for table in tables
    ]
    measured = {
        (item.row.task, item.row.data)
        for items in primary
        for item in items
        if ModelKey.of(item.row) == baseline
    }
    for items in primary:
        candidates = [item for item in items if ModelKey.of(item.row) == baseline]
        reason = "the baseline has no single number at its resolution, budget and share"
        if not candidates:
            reason = "the baseline was measured on other images or by another protocol or feature"
        for item in items:
            row, reference = item.row, reference_of(item, candidates)
            itself = (row.model, row.weights) == (baseline.model, baseline.weights)
            if row.role != "model" or itself or (row.task, row.data) not in measured:
                continue
            if reference is not None:
                pairs.append((item, reference))
            else:
                left_out[f"{row.task} on {row.data}, {row.metric}: {reason}"] += 1
    return pairs, [
        f"{text} ({count} {'line' if count == 1 else 'lines'})." for text, count in left_out.items()
    ]


def _lines(pairs: Sequence[Pair], everyone: Section, draws: Draws) -> list[dict[str, Any]]:
    """All numbers of each model, resolution, budget and share, in the order of a table."""
    groups: dict[tuple[float, ...], list[Pair]] = {}
    models, found = everyone.models, []
    for pair in pairs:
        groups.setdefault(table_order(models, pair[0].row), []).append(pair)
    for _, group in sorted(groups.items()):
        row = group[0][0].row
        shared = ("weights", "resolution", "budget", "ffn", "patches_per_core")
        classes = [pair for pair in group if pair[0].row.task in CLASS_TASKS]
        mean = {"numbers": len(classes), **_ratio(classes, draws)} if classes else None
        found.append(
            {
                "model": row.model,
                "name": everyone.name(ModelKey.of(row)),
                **{name: getattr(row, name) for name in shared},
                "classes": mean,
                "numbers": [_number(pair, draws) for pair in group],
            }
        )
    return found


def _number(pair: Pair, draws: Draws) -> dict[str, Any]:
    """One number beside the baseline's."""
    model, baseline = pair
    row = model.row
    shared = ("task", "data", "metric", "unit", "protocol", "feature", "data_sha256")
    return {
        **{name: getattr(row, name) for name in shared},
        "partial": list(row.partial),
        "pictures": row.counts.get("test"),
        "seeds": list(model.seeds),
        "baseline_resolution": baseline.row.resolution,
        "baseline_budget": baseline.row.budget,
        "baseline_ffn": baseline.row.ffn,
        "baseline_seeds": list(baseline.seeds),
        **_ratio([pair], draws),
    }


def _ratio(pairs: Sequence[Pair], draws: Draws) -> dict[str, Any]:
    """The mean of the model's and of the baseline's numbers, and their ratio with its interval.

    There is no interval unless all numbers have per-image results and the baseline is above 0 in
    every draw, and no ratio to 0.
    """
    model, baseline = (statistics.fmean(pair[side].mean for pair in pairs) for side in (0, 1))
    keys = [[item.row.identity("seed") for item in side] for side in zip(*pairs, strict=True)]
    low = high = None
    if baseline and draws.keys() >= {*keys[0], *keys[1]}:
        own, other = (np.mean([draws[key] for key in side], axis=0) for side in keys)
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = quantiles(own / other) or (None, None)
    ratio = model / baseline if baseline else None
    return {"model": model, "baseline": baseline, "ratio": ratio, "low": low, "high": high}
