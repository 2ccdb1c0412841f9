"""Bootstrap over test images: intervals of a mean, and models relative to their baseline.

The test images of a data set are resampled with replacement. All models, tasks and seeds on one
data set see the same draws, so that images that are hard for every model do not widen the interval
of a ratio. Intervals describe other test images of the same kind, not another training run.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from veca.probe.rows import (
    ModelKey,
    Row,
    Section,
    SeedMean,
    Task,
    mean_over_seeds,
    reference_of,
    row_from_json,
    sections,
    table_order,
)
from veca.runtime.device import seed_for
from veca.runtime.tensors import load_tensors, open_tensors, save_tensors

PER_IMAGE_FOLDER = "per_image"

CLASS_TASKS: tuple[Task, ...] = ("knn", "logistic", "linear")
"""Tasks whose numbers are averaged."""

ROUNDS, SEED, LEVEL = 10_000, 0, 0.95

DRAWS = 2**18
"""Counts that are drawn at once: few enough to stay in the processor's cache."""

CLOSE = 1e-9
"""Relative difference of a number and the same number computed from its per-image results."""

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
        """The number for each draw; `counts` (rounds, images) says how often each image occurs."""
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


def resample(
    items: Sequence[PerImage], name: str, *, rounds: int = ROUNDS, seed: int = SEED
) -> Numbers:
    """Every number on resampled images (items, rounds), the same draws for all.

    Another `name` gives other draws.
    """
    sizes = {item.images for item in items}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(
            f"numbers over {sorted(sizes)} images cannot be resampled together; give those of one "
            "data set with at least one image."
        )
    (images,) = sizes
    generator = np.random.default_rng(seed_for(seed, 0, f"probe/retained/{name}"))
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


def quantiles(draws: Numbers, level: float = LEVEL) -> tuple[float, float] | None:
    """The middle `level` of the draws; None if some draw has no number."""
    if not np.isfinite(draws).all():
        return None
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class Interval(NamedTuple):
    """A mean with its interval; percent for booleans, otherwise in the unit of the values."""

    mean: float
    low: float
    high: float


def interval(
    values: Values, *, rounds: int = ROUNDS, seed: int = SEED, level: float = LEVEL
) -> Interval:
    """The mean of the values with its bootstrap interval."""
    scale = 100.0 if values.dtype == torch.bool else 1.0
    return _interval(values.cpu().double().numpy() * scale, rounds, seed, level)


def paired_bootstrap(
    first: Values,
    second: Values,
    *,
    rounds: int = ROUNDS,
    seed: int = SEED,
    level: float = LEVEL,
) -> Interval:
    """The difference first - second of two models on the same images, resampled in pairs.

    It is much narrower than both intervals suggest, since images are hard for both models. They
    differ beyond chance, at this level, if 0 lies outside.
    """
    scale = 100.0 if first.dtype == torch.bool else 1.0
    difference = first.cpu().double().numpy() - second.cpu().double().numpy()
    return _interval(difference * scale, rounds, seed, level)


def _interval(values: Numbers, rounds: int, seed: int, level: float) -> Interval:
    """The mean of the values with its interval."""
    if not len(values) or rounds < 1 or not 0 < level < 1:
        raise ValueError(
            f"{len(values)} values, rounds={rounds} and level={level} give no interval; use at "
            "least one value, rounds >= 1 and 0 < level < 1."
        )
    draws = resample([mean_of(values[None])], "interval", rounds=rounds, seed=seed)[0]
    low, high = quantiles(draws, level) or (math.nan, math.nan)
    return Interval(float(values.mean()), low, high)


def save_per_image(
    path: Path,
    tensors: Mapping[str, Tensor],
    row: Row | None,
    eval_classes: Sequence[int] | None,
    owner: str = "",
) -> None:
    """Write per-image results with one of the rows of their result, by which they are found.

    `owner` identifies the weights and images of a file name.
    """
    metadata = {
        "row": None if row is None else row.as_json(),
        "eval_classes": None if eval_classes is None else list(eval_classes),
        "owner": owner,
    }
    save_tensors(path, tensors, metadata)


class PerImageFiles:
    """The per-image results in some folders, found by rows and not by file names."""

    def __init__(self, *folders: Path) -> None:
        paths = [path for folder in folders for path in folder.glob("*.safetensors")]
        self._files = dict(_keys(sorted(paths, key=_age)))  # the newest wins

    def load(self, item: SeedMean) -> PerImage | None:
        """The per-image results of a number, of all its seeds.

        None if some are missing or damaged, if they do not give the reported number, or if the
        metric is no mean over images.
        """
        metric = item.row.metric
        try:
            files = [self._files[_key(item.row, seed)] for seed in item.seeds]
            found = _per_image(metric, [load_tensors(path) for path in files])
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return None
        if not math.isclose(found.value, item.mean, rel_tol=CLOSE, abs_tol=CLOSE):
            return None
        return found


def _keys(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Files with the key of their rows; damaged and foreign ones are skipped."""
    for path in paths:
        try:
            with open_tensors(path) as file:
                row = row_from_json(file.metadata["row"])
            yield _key(row, row.seed), path
        except (OSError, ValueError, KeyError, TypeError):
            continue


def _age(path: Path) -> int:
    """When a file was written; 0 if it is gone meanwhile."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _key(row: Row, seed: int) -> str:
    """What rows of one result share, whatever the role or name of the model."""
    ignored = ["metric", "unit", "role", "trained", "seed"]
    return f"{seed} {row.identity(*ignored, *([] if row.weights is None else ['model']))}"


def _per_image(
    metric: str, seeds: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Any]]]
) -> PerImage:
    """A metric from the per-image results of each seed; a KeyError if it is no mean over images."""

    def stack(name: str) -> Numbers:
        return np.stack([tensors[name].double().numpy() for tensors, _ in seeds])

    if metric == "miou":
        classes = seeds[0][1]["eval_classes"]
        chosen = slice(None) if classes is None else list(classes)
        return PerImage(100 * stack("intersections")[..., chosen], stack("unions")[..., chosen])
    if metric.startswith("top1"):
        return mean_of(100 * stack(metric.replace("top1", "correct", 1)))
    return mean_of(stack({"rmse": "rmse"}[metric]))


class Resampled(NamedTuple):
    """A number on resampled images."""

    images: int
    draws: Numbers


def resample_all(
    items: Sequence[SeedMean], folders: Sequence[Path], rounds: int = ROUNDS
) -> Callable[[SeedMean], Resampled | None]:
    """Resample all numbers that have per-image results, those of one data set together."""
    files = PerImageFiles(*folders)
    groups: dict[tuple[str, int], dict[str, PerImage]] = {}
    for item in items:
        found = files.load(item)
        if found is not None:
            data = item.row.data_sha256 or ascii(item.row.data)
            groups.setdefault((data, found.images), {})[item.row.identity("seed")] = found
    draws: dict[str, Resampled] = {}
    for (data, images), group in groups.items():
        drawn = resample(list(group.values()), data, rounds=rounds)
        draws |= {key: Resampled(images, one) for key, one in zip(group, drawn, strict=True)}
    return lambda item: draws.get(item.row.identity("seed"))


Pair = tuple[SeedMean, SeedMean]
"""A number of a model, and the baseline's."""


def compare_to_baseline(
    rows: Sequence[Row], folder: Path, rounds: int = ROUNDS
) -> list[dict[str, Any]]:
    """Every model of a report relative to every baseline, as in `comparison.json`.

    A line is a model at one resolution, budget and share of hidden units. Its classification
    numbers, one per task and data set, are also averaged. Ratios are those of the reported numbers;
    their intervals come from the per-image results in `folder`.
    """
    baselines = dict.fromkeys(ModelKey.of(row) for row in rows if row.role == "baseline")
    everyone, tables = Section(mean_over_seeds(rows)), sections(rows)
    left_out = {key: list(_without_reference(tables, key)) for key in baselines}
    pairs = {key: [pair for table in tables for pair in _pairs(table, key)] for key in baselines}
    resampled = resample_all(
        [item for found in pairs.values() for pair in found for item in pair], [folder], rounds
    )
    return [
        {
            "baseline": key.model,
            "name": everyone.name(key),
            "weights": key.weights,
            "level": LEVEL,
            "rounds": rounds,
            "seed": SEED,
            "lines": [_line(group, everyone, resampled) for group in _groups(pairs[key], everyone)],
            "left_out": left_out[key],
        }
        for key in baselines
        if pairs[key] or left_out[key]
    ]


def _candidates(table: Section, baseline: ModelKey) -> tuple[list[SeedMean], list[SeedMean]]:
    """The primary numbers of a table: those of models, and those of the baseline."""
    found = [item for item in table.means if item.row.metric == table.metrics[0]]
    return [
        item
        for item in found
        if item.row.role == "model"
        and (item.row.model, item.row.weights) != (baseline.model, baseline.weights)
    ], [item for item in found if ModelKey.of(item.row) == baseline]


def _pairs(table: Section, baseline: ModelKey) -> Iterator[Pair]:
    """The primary numbers of a table with the baseline's."""
    models, candidates = _candidates(table, baseline)
    for item in models:
        reference = reference_of(item, candidates)
        if reference is not None:
            yield item, reference


def _without_reference(tables: Sequence[Section], baseline: ModelKey) -> Iterator[str]:
    """Sentences on models whose numbers have a baseline, but none that matches."""
    measured = {
        (table.row.task, table.row.data) for table in tables if _candidates(table, baseline)[1]
    }
    found: Counter[str] = Counter()
    for table in tables:
        row, (models, candidates) = table.row, _candidates(table, baseline)
        if (row.task, row.data) not in measured:
            continue
        reason = "the baseline was measured on other images or by another protocol or feature"
        if candidates:
            reason = "the baseline has no single number at its resolution, budget and share"
        for item in models:
            if reference_of(item, candidates) is None:
                found[f"{row.task} on {row.data}, {table.metrics[0]}: {reason}"] += 1
    for text, count in found.items():
        yield f"{text} ({count} {'line' if count == 1 else 'lines'})."


def _groups(pairs: Sequence[Pair], everyone: Section) -> list[list[Pair]]:
    """Pairs by model, resolution, budget and share, in the order of a table."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for pair in pairs:
        row = pair[0].row
        groups.setdefault((ModelKey.of(row), row.resolution, row.setting), []).append(pair)
    models = everyone.models
    return sorted(groups.values(), key=lambda group: table_order(models, group[0][0].row))


def _line(
    pairs: Sequence[Pair], everyone: Section, resampled: Callable[[SeedMean], Resampled | None]
) -> dict[str, Any]:
    """All numbers of a model at one resolution, budget and share."""
    row = pairs[0][0].row
    drawn = [(resampled(model), resampled(baseline)) for model, baseline in pairs]
    classes = [place for place, pair in enumerate(pairs) if pair[0].row.task in CLASS_TASKS]
    return {
        "model": row.model,
        "name": everyone.name(ModelKey.of(row)),
        "weights": row.weights,
        "resolution": row.resolution,
        "budget": row.budget,
        "ffn": row.ffn,
        "patches_per_core": row.patches_per_core,
        "classes": _class_mean([(pairs[place], drawn[place]) for place in classes]),
        "numbers": [_number(pair, draws) for pair, draws in zip(pairs, drawn, strict=True)],
    }


Draws = tuple[Resampled | None, Resampled | None]


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
        "model": model.mean,
        "baseline": baseline.mean,
        "baseline_resolution": baseline.row.resolution,
        "baseline_budget": baseline.row.budget,
        "baseline_ffn": baseline.row.ffn,
        "baseline_seeds": list(baseline.seeds),
        **_ratio(model.mean, baseline.mean, _paired([draws])),
    }


def _class_mean(found: Sequence[tuple[Pair, Draws]]) -> dict[str, Any] | None:
    """The mean of classification numbers beside the baseline's; each task and data set is equal."""
    if not found:
        return None
    model = statistics.fmean(pair[0].mean for pair, _ in found)
    baseline = statistics.fmean(pair[1].mean for pair, _ in found)
    ratio = _ratio(model, baseline, _paired([draws for _, draws in found]))
    return {"numbers": len(found), "model": model, "baseline": baseline, **ratio}


def _paired(found: Sequence[Draws]) -> tuple[Numbers, Numbers] | None:
    """Means of draws of model and baseline; None unless all exist and are over the same images."""
    models, baselines = [], []
    for model, baseline in found:
        if model is None or baseline is None or model.images != baseline.images:
            return None
        models.append(model.draws)
        baselines.append(baseline.draws)
    return np.mean(models, axis=0), np.mean(baselines, axis=0)


def _ratio(
    model: float, baseline: float, draws: tuple[Numbers, Numbers] | None
) -> dict[str, float | None]:
    """Model over baseline with its interval; None if the baseline is 0 in the number or a draw."""
    if baseline == 0:
        return {"ratio": None, "low": None, "high": None}
    low = high = None
    if draws is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            low, high = quantiles(draws[0] / draws[1]) or (None, None)
    return {"ratio": model / baseline, "low": low, "high": high}
