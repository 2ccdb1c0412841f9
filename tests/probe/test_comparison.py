"""A model beside its baseline: the reported ratios, with the intervals of drawing by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.probe.made_up_cases import (
    DOGS,
    LOGISTIC,
    MISSING,
    TWIN,
    against,
    class_row,
    confusions_of,
    depth_row,
    errors_of,
    every_task,
    mask_row,
    right_of,
    write_cases,
)
from tests.probe.made_up_rows import row
from veca.probe.bootstrap import CLASS_TASKS, Comparison, compare
from veca.probe.rows import averages, retention
from veca.probe.run import KINDS


def reasons(comparison: Comparison) -> list[str]:
    """Why numbers were left out."""
    return [item.reason for item in comparison.left_out]


def test_every_ratio_is_that_of_the_reported_numbers(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    found = against(rows, tmp_path)
    assert not found.left_out
    assert [line.row.budget for line in found.lines] == [8, 64]
    means = {
        (one.row.task, one.row.data, one.row.role, one.row.budget): one for one in averages(rows)
    }
    for line in found.lines:
        assert len(line.numbers) == 6
        for number in line.numbers:
            own, where = number.pair.row, (number.pair.row.task, number.pair.row.data)
            model, baseline = means[*where, "model", own.budget], means[*where, "baseline", None]
            assert number.ratio is not None
            assert number.ratio.value == model.mean / baseline.mean  # bit for bit
            told = f"{100 * number.ratio.value:.1f} %"
            told = f"x{number.ratio.value:.3f}" if own.task == "depth" else told
            assert retention(model, baseline) == told
            assert number.ratio.low is not None
            assert number.ratio.high is not None
            assert number.ratio.low < number.ratio.value < number.ratio.high
    sizes = {(n.pair.row.task, n.pair.row.data): n.pictures for n in found.lines[0].numbers}
    assert set(sizes.values()) == {60, 45, 20, 30}


def test_classes_are_the_mean_over_tasks_and_sets_of_the_means_over_seeds(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    line = against(rows, tmp_path).lines[0]

    def by_hand(role: str, budget: int | None) -> float:
        mine = [row for row in rows if (row.role, row.budget) == (role, budget)]
        values = {
            name: np.mean([row.value for row in mine if (row.task, row.data) == name])
            for name in (("knn", "pets"), ("knn", "dogs"), ("logistic", "pets"))
        }
        return float(np.mean(list(values.values())))

    assert line.classes is not None
    assert line.classes.model == pytest.approx(by_hand("model", 8), rel=1e-12)
    assert line.classes.baseline == pytest.approx(by_hand("baseline", None), rel=1e-12)
    assert line.classes.ratio is not None
    assert line.classes.ratio.value == line.classes.model / line.classes.baseline


def test_the_interval_of_classes_is_that_of_drawing_the_pictures_of_each_set_by_hand(
    tmp_path: Path,
) -> None:
    kinds: list[dict[str, Any]] = [{}, {**LOGISTIC, "seed": 0}, {**LOGISTIC, "seed": 1}, DOGS]
    weights = (1.0, 0.5, 0.5, 1.0)  # in the mean: two seeds make one number
    right: dict[str, list[np.ndarray]] = {"model": [], "baseline": []}
    rows = []
    for number, kind in enumerate(kinds):
        pictures = 25 if kind is DOGS else 40
        for role, who in (("model", {}), ("baseline", TWIN)):
            told = right_of(number + (0 if role == "model" else 10), pictures=pictures)
            rows.append(class_row(tmp_path, told, **kind, **who))
            right[role].append(told.numpy())
    found = against(rows, tmp_path, rounds=4000).lines[0].classes

    draw, ratios = np.random.default_rng(5), []
    for _ in range(3000):
        pets = [int(draw.integers(40)) for _ in range(40)]  # one draw for both tasks and all seeds
        dogs = [int(draw.integers(25)) for _ in range(25)]
        means = {}
        for role, tasks in right.items():
            shares = [tasks[0][pets], tasks[1][pets], tasks[2][pets], tasks[3][dogs]]
            means[role] = sum(
                weight * share.mean() for weight, share in zip(weights, shares, strict=True)
            )
        ratios.append(means["model"] / means["baseline"])
    low, high = np.quantile(ratios, [0.025, 0.975])
    assert found is not None
    assert found.ratio is not None
    assert [found.ratio.low, found.ratio.high] == pytest.approx([low, high], abs=(high - low) / 10)


def test_tasks_on_one_set_are_drawn_together(tmp_path: Path) -> None:
    # Where one task tells exactly what the other does not, their mean is the same in every draw.
    right = right_of(0)
    rows = [
        class_row(tmp_path, right),
        class_row(tmp_path, ~right, **LOGISTIC),
        class_row(tmp_path, right_of(1) | True, **TWIN),
        class_row(tmp_path, right_of(1) | True, **LOGISTIC, **TWIN),
    ]
    classes = against(rows, tmp_path).lines[0].classes
    assert classes is not None
    assert classes.ratio == pytest.approx((0.5, 0.5, 0.5))


def test_a_copy_of_the_baseline_is_all_of_it_without_any_doubt(tmp_path: Path) -> None:
    rows = []
    for who in ({}, TWIN):
        rows += [
            class_row(tmp_path, right_of(0), **who),
            mask_row(tmp_path, confusions_of(1), **who),
            depth_row(tmp_path, errors_of(2), **who),
        ]
    (line,) = against(rows, tmp_path).lines
    assert [number.ratio for number in line.numbers] == [pytest.approx((1.0, 1.0, 1.0))] * 3


def test_a_baseline_with_budgets_is_compared_at_the_same_ones_and_at_each_resolution(
    tmp_path: Path,
) -> None:
    rows = []
    for seed, (side, budget) in enumerate(((64, 8), (64, 16), (128, 8), (128, 16))):
        facts: dict[str, Any] = {"resolution": side, "budget": budget}
        rows.append(class_row(tmp_path, right_of(seed), **facts))
        rows.append(class_row(tmp_path, right_of(9 + seed, 0.5), **TWIN | facts))
    found = against(rows, tmp_path)
    assert [(line.row.resolution, line.row.budget) for line in found.lines] == [
        (64, 8), (64, 16), (128, 8), (128, 16)
    ]  # fmt: skip
    for line in found.lines:
        (number,) = line.numbers
        reference = number.pair.baseline.row
        assert (reference.resolution, reference.setting) == (line.row.resolution, line.row.setting)


def test_a_twin_with_one_share_serves_for_every_budget_and_share(tmp_path: Path) -> None:
    twin = class_row(tmp_path, right_of(0), **TWIN | {"ffn": 1.0})
    models = [
        class_row(tmp_path, right_of(number + 1), budget=budget, ffn=share)
        for number, (budget, share) in enumerate(((8, 0.5), (8, 1.0), (64, 0.5), (64, 1.0)))
    ]
    found = against([twin, *models], tmp_path)
    settings = [line.row.setting for line in found.lines]
    assert settings == [(8, 0.5), (8, 1.0), (64, 0.5), (64, 1.0)]
    other = class_row(tmp_path, right_of(8), **TWIN | {"ffn": 0.25})
    found = against([twin, other, *models], tmp_path)  # now 0.5 has no one match
    assert [line.row.setting for line in found.lines] == [(8, 1.0), (64, 1.0)]
    assert set(reasons(found)) == {
        "no one number of the baseline has its resolution, budget and share"
    }


def test_numbers_without_cases_are_left_out_and_why_is_told(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    lost = row(task="linear", metric="top1", counts={"train": 9, "test": 60}, data_sha256="5" * 64)
    twin = class_row(tmp_path, right_of(3), task="linear", metric="top1", **TWIN)
    found = against([*rows, lost, twin], tmp_path)
    assert reasons(found) == [MISSING]
    assert [len(line.numbers) for line in found.lines] == [6, 6]
    own = class_row(tmp_path, right_of(4), task="linear", metric="top1", budget=8)
    changed = replace(twin, value=twin.value + 1)
    found = against([*rows, own, changed], tmp_path)
    assert reasons(found) == ["the baseline: the cases on disk give another number than the report"]


def test_models_on_other_pictures_are_not_compared_and_that_is_told(tmp_path: Path) -> None:
    pets = class_row(tmp_path, right_of(0))
    twin = class_row(tmp_path, right_of(1), **TWIN, data_sha256="9" * 64)
    found = against([pets, twin], tmp_path)
    assert not found.lines
    assert reasons(found) == [
        "the baseline was measured on other pictures of the set: their hashes differ"
    ]
    twin = class_row(tmp_path, right_of(1), **TWIN, feature="patch-mean")
    assert reasons(against([pets, twin], tmp_path)) == [
        "the baseline was measured by another protocol, feature or count"
    ]
    twin = class_row(tmp_path, right_of(1), **TWIN, **DOGS)
    assert compare([pets, twin], tmp_path) == []  # nothing was asked of both


def test_cases_of_another_number_of_pictures_are_not_drawn_in_pairs(tmp_path: Path) -> None:
    told: dict[str, Any] = {"counts": {"train": 9, "test": 60}}
    pets = class_row(tmp_path, right_of(0), **told)
    twin = class_row(tmp_path, right_of(1, pictures=50), **TWIN, **told)
    found = against([pets, twin], tmp_path)
    assert reasons(found) == ["the cases are of 60 pictures, those of the baseline of 50"]


def test_precision_over_a_whole_set_is_left_out(tmp_path: Path) -> None:
    rows = [
        row(data="voc2007", metric=metric, **who)
        for who in ({}, TWIN)
        for metric in ("map_k20", "top1_k20")
    ]
    found = against(rows, tmp_path)
    assert reasons(found) == [
        "the model: map_k20 is no mean over pictures that could be drawn again"
    ]


def test_a_baseline_that_tells_nothing_rightly_leaves_nothing_to_divide_by(tmp_path: Path) -> None:
    none = torch.zeros(60, dtype=torch.bool)
    rows = [class_row(tmp_path, right_of(0)), class_row(tmp_path, none, **TWIN)]
    (line,) = against(rows, tmp_path).lines
    assert line.numbers[0].ratio is None
    assert line.classes is not None
    assert (line.classes.baseline, line.classes.ratio) == (0.0, None)


def test_every_baseline_has_a_comparison_of_its_own_and_without_one_there_is_none(
    tmp_path: Path,
) -> None:
    pets = class_row(tmp_path, right_of(0))
    assert compare([pets, replace(pets, role="teacher", model="t")], tmp_path) == []
    twins = [
        class_row(tmp_path, right_of(seed), **TWIN | {"weights": str(seed) * 64}) for seed in (1, 2)
    ]
    first, second = compare([pets, *twins], tmp_path, 100)
    assert (first.name, second.name) == (
        "runs/twin @11111111 (baseline)",
        "runs/twin @22222222 (baseline)",
    )
    assert first.lines[0].numbers[0].pair.baseline.row == twins[0]
    assert second.lines[0].numbers[0].pair.baseline.row == twins[1]


def test_a_model_that_is_its_own_baseline_elsewhere_is_not_compared_with_itself(
    tmp_path: Path,
) -> None:
    pets, twin = (class_row(tmp_path, right_of(seed), **who) for seed, who in ((0, {}), (1, TWIN)))
    (line,) = against([pets, replace(twin, role="model"), twin], tmp_path).lines
    assert line.row == pets


def test_another_draw_of_the_same_pictures_is_the_same_draw(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    assert against(rows, tmp_path) == against(rows, tmp_path)


def test_the_tasks_whose_numbers_are_joined_are_those_of_classes() -> None:
    assert set(CLASS_TASKS) == {task for task, kind in KINDS.items() if kind == "classes"}


def test_cases_are_looked_for_by_rows_and_not_by_names(tmp_path: Path) -> None:
    pets, twin = (class_row(tmp_path, right_of(seed), **who) for seed, who in ((0, {}), (1, TWIN)))
    for path in tmp_path.iterdir():
        path.rename(tmp_path / f"any name {path.name}")
    assert against([pets, twin], tmp_path).lines
    write_cases(tmp_path, replace(twin, seed=7), {"correct_k20": right_of(9)})
    assert against([pets, twin], tmp_path).lines
