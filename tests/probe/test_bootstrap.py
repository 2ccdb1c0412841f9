"""Intervals agree with resampling by hand, and ratios to a baseline with the reported numbers."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.probe.fixtures import (
    DOGS,
    FULL,
    LOGISTIC,
    SCORED,
    against,
    cells,
    class_row,
    confusions_of,
    correct_of,
    depth_row,
    errors_of,
    every_task,
    mask_row,
    pixel_counts_of,
    row,
    write_per_image,
)
from veca.probe import bootstrap
from veca.probe.bootstrap import (
    PerImage,
    compare_to_baseline,
    interval,
    load_per_image,
    mean_of,
    paired_bootstrap,
    quantiles,
    resample,
)
from veca.probe.heads import find_results
from veca.probe.metrics import (
    PER_IMAGE,
    depth_metrics,
    segmentation_metrics,
)
from veca.probe.report import Heading, Items, Table, comparison_blocks, markdown_table
from veca.probe.rows import CLASS_TASKS, Row, mean_over_seeds
from veca.runtime.tensors import save_tensors

NAMES = ("a", "b", "c", "d")


def resampled_by_hand(values: np.ndarray, rounds: int) -> np.ndarray:
    """Means over images drawn one by one."""
    generator = np.random.default_rng(7)
    return np.array([generator.choice(values, len(values)).mean() for _ in range(rounds)])


def test_an_interval_is_that_of_drawing_images_one_by_one() -> None:
    right, errors = torch.rand(300) < 0.8, torch.rand(200, dtype=torch.float64) * 3
    for values, numbers, close in ((right, right.numpy() * 100.0, 0.4), (errors, errors, 0.02)):
        found = interval(values)
        assert found.mean == pytest.approx(np.mean(np.asarray(numbers)))
        low, high = np.quantile(resampled_by_hand(np.asarray(numbers), 5000), [0.025, 0.975])
        assert [found.low, found.high] == pytest.approx([low, high], abs=close)
        assert interval(values) == found


def test_paired_images_show_a_difference_that_lies_within_both_intervals() -> None:
    first = torch.arange(1000) < 800
    second = first & (torch.arange(1000) >= 15)
    assert interval(first).low < interval(second).high
    found = paired_bootstrap(first, second)
    assert found.mean == pytest.approx(1.5)
    assert 0 < found.low < 1.5 < found.high < 3
    assert paired_bootstrap(second, first).mean == pytest.approx(-1.5)
    assert paired_bootstrap(first, first) == (0.0, 0.0, 0.0)


def iou(counts: torch.Tensor, chosen: list[int]) -> PerImage:
    """The mean over some classes, from confusion matrices (seeds, images, K, K)."""
    inside, around, _ = pixel_counts_of(counts).unbind(-2)
    return PerImage(
        100 * inside.double().numpy()[..., chosen], around.double().numpy()[..., chosen]
    )


def confusions(draw: np.random.Generator, *shape: int) -> torch.Tensor:
    """Counts of pixels; many images lack many classes."""
    present = draw.random((*shape, 4, 1)) < 0.4
    return torch.from_numpy(draw.integers(0, 9, (*shape, 4, 4)) * present)


def miou_by_definition(counts: torch.Tensor, drawn: list[int], chosen: list[int]) -> float:
    """The mean over seeds of the mean over classes, from the matrices of the images drawn."""
    means = []
    for images in counts.numpy():
        summed = sum((images[place] for place in drawn), np.zeros((4, 4), np.int64)).tolist()
        ratios = []
        for c in chosen:
            around = sum(summed[c]) + sum(line[c] for line in summed) - summed[c][c]
            ratios += [summed[c][c] / around] if around else []
        means.append(100 * sum(ratios) / len(ratios) if ratios else math.nan)
    return sum(means) / len(means)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 2**32), st.integers(1, 3)
)
def test_a_mean_is_that_of_the_images_that_were_drawn(
    times: list[int], seed: int, seeds: int
) -> None:
    draw = np.random.default_rng(seed)
    errors = draw.random((seeds, len(times), len(PER_IMAGE) + 2))
    without = draw.random(len(times)) < 0.3  # no pixel counts, whoever is measured
    errors[:, without] = [np.nan] * len(PER_IMAGE) + [0, 0]
    rmse = mean_of(errors[:, :, PER_IMAGE.index("rmse")])
    found = rmse.estimate(np.array([times], dtype=np.float64))[0]
    places = np.repeat(np.arange(len(times)), times)
    if without[places].all():
        assert math.isnan(found)
    else:
        expected = [depth_metrics(torch.from_numpy(one[places]))["rmse"] for one in errors]
        assert found == pytest.approx(np.mean(expected), rel=1e-12)


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.integers(1, 3),
    st.sampled_from([[0, 1, 2, 3], [0, 2], [3]]),
)
def test_mean_iou_is_that_of_the_images_that_were_drawn(
    times: list[int], seed: int, seeds: int, chosen: list[int]
) -> None:
    counts = confusions(np.random.default_rng(seed), seeds, len(times))
    found = iou(counts, chosen).estimate(np.array([times], dtype=np.float64))[0]
    drawn = [image for image, often in enumerate(times) for _ in range(often)]
    expected = miou_by_definition(counts, drawn, chosen)
    assert found == pytest.approx(expected, rel=1e-12, nan_ok=True)
    reported = segmentation_metrics(pixel_counts_of(counts[0].sum(0)), NAMES, chosen).get(
        "miou", math.nan
    )
    assert iou(counts[:1], chosen).value == pytest.approx(reported, rel=1e-12, nan_ok=True)


def test_every_image_is_drawn_with_the_same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "DRAWS", 7 * 30)  # blocks that do not end with the rounds
    images = [PerImage(np.eye(7)[None, :, [place]] * 7, np.ones((1, 7, 1))) for place in range(7)]
    counts = resample(images, "pets", rounds=2000).T
    assert counts.sum(1) == pytest.approx(np.full(2000, 7))
    assert counts.mean(0) == pytest.approx(np.ones(7), abs=0.1)
    assert counts.var(0) == pytest.approx(np.full(7, 6 / 7), abs=0.15)  # binomial of 7 and 1/7


def test_each_dataset_has_its_own_draws_which_do_not_change() -> None:
    right = [mean_of((np.arange(50) < 30)[None].astype(np.float64))]
    first = resample(right, "pets", rounds=300)
    assert (resample(right, "pets", rounds=300) == first).all()
    other = resample(right, "dogs", rounds=300)
    assert abs(float(np.corrcoef(first, other)[0, 1])) < 0.2
    assert quantiles(np.array([1.0, math.nan])) is None


def loaded(folder: Path, *rows: Row) -> PerImage | None:
    """The per-image results of the number that rows of some seeds make."""
    (item,) = mean_over_seeds(rows)
    return load_per_image(item, find_results(folder))


def test_the_files_of_a_row_give_its_number(tmp_path: Path) -> None:
    rows = [
        class_row(tmp_path, correct_of(0)),
        class_row(tmp_path, correct_of(1), task="logistic", metric="top1"),
        mask_row(tmp_path, confusions_of(2)),
        depth_row(tmp_path, errors_of(3)),
    ]
    for one, images in zip(rows, (60, 60, 20, 30), strict=True):
        found = loaded(tmp_path, one)
        assert found is not None
        assert found.value == pytest.approx(one.value, rel=1e-12)
        assert found.images == images
    seeds = [rows[2], mask_row(tmp_path, confusions_of(4), seed=4)]
    found = loaded(tmp_path, *seeds)
    assert found is not None
    assert found.value == pytest.approx((seeds[0].value + seeds[1].value) / 2, rel=1e-12)
    assert found.denominators.shape == (2, 20, len(SCORED))
    assert loaded(tmp_path, rows[2], replace(rows[2], seed=9)) is None  # a seed is missing


@pytest.mark.parametrize(
    "change",
    [
        {"data_sha256": "8" * 64}, {"budget": 16}, {"ffn": 0.5}, {"resolution": 64}, {"seed": 1},
        {"task": "logistic"}, {"protocol_sha256": "1" * 64}, {"feature": "patch-mean"},
        {"counts": {"train": 8, "test": 60}}, {"metric": "map_k20"}, {"metric": "top1_k10"},
        {"value": 1.0}, {"weights": "b" * 64},
    ],
)  # fmt: skip
def test_per_image_results_are_found_by_weights_and_not_used_for_another_number(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    one = class_row(tmp_path, correct_of(0))
    assert loaded(tmp_path, replace(one, role="baseline", model="./runs/best"))
    assert loaded(tmp_path, replace(one, **change)) is None
    nameless = class_row(tmp_path, correct_of(1), model="a", weights=None)
    assert loaded(tmp_path, nameless)
    assert loaded(tmp_path, replace(nameless, model="b")) is None


def test_damaged_and_foreign_files_are_skipped_and_the_newest_one_wins(tmp_path: Path) -> None:
    one = class_row(tmp_path, correct_of(0))
    save_tensors(tmp_path / "odd.safetensors", {"x": torch.ones(2)}, {"row": {"task": "knn"}})
    save_tensors(tmp_path / "bare.safetensors", {"x": torch.ones(2)})
    (tmp_path / "damaged.safetensors").write_bytes(b"x")
    other = write_per_image(tmp_path, one, {"correct_k20": correct_of(5)})
    os.utime(other, (1, 1))
    assert loaded(tmp_path, one)
    os.utime(tmp_path / "0.safetensors", (0, 0))
    assert loaded(tmp_path, one) is None
    assert loaded(tmp_path / "nowhere", one) is None


def table(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """The lines of the table by their titles."""
    (found,) = [block for block in comparison_blocks(comparison) if isinstance(block, Table)]
    title, _, *lines = markdown_table(found)
    return [dict(zip(cells(title), cells(line), strict=True)) for line in lines]


def test_every_ratio_is_that_of_the_reported_numbers(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    found = against(rows, tmp_path)
    assert json.loads(json.dumps(found)) == found == against(rows, tmp_path)
    assert (found["baseline"], found["weights"], found["left_out"]) == ("runs/full", "e" * 64, [])
    assert (found["level"], found["rounds"], found["seed"]) == (0.95, 400, 0)
    assert [line["budget"] for line in found["lines"]] == [8, 64]
    means = {
        (one.row.task, one.row.data, one.row.role, one.row.budget): one
        for one in mean_over_seeds(rows)
    }
    for line in found["lines"]:
        assert {one["pictures"] for one in line["numbers"]} == {60, 45, 20, 30}
        assert len(line["numbers"]) == 6
        for one in line["numbers"]:
            model = means[one["task"], one["data"], "model", line["budget"]]
            baseline = means[one["task"], one["data"], "baseline", None]
            assert one["ratio"] == model.mean / baseline.mean  # bit for bit
            assert one["low"] < one["ratio"] < one["high"]
            assert one["seeds"] == ([0] if one["task"] == "knn" else [0, 1])
        own = [one["model"] for one in line["numbers"] if one["task"] in CLASS_TASKS]
        assert line["classes"]["numbers"] == len(own) == 3
        assert line["classes"]["model"] == pytest.approx(np.mean(own), rel=1e-12)
        assert line["classes"]["ratio"] == line["classes"]["model"] / line["classes"]["baseline"]


def test_the_interval_of_classes_is_that_of_drawing_the_images_of_each_dataset_by_hand(
    tmp_path: Path,
) -> None:
    kinds: list[dict[str, Any]] = [{}, {**LOGISTIC, "seed": 0}, {**LOGISTIC, "seed": 1}, DOGS]
    weights = (1.0, 0.5, 0.5, 1.0)  # in the mean: two seeds make one number
    right: dict[str, list[np.ndarray]] = {"model": [], "baseline": []}
    rows = []
    for number, kind in enumerate(kinds):
        images = 25 if kind is DOGS else 40
        for role, who in (("model", {}), ("baseline", FULL)):
            correct = correct_of(number + (0 if role == "model" else 10), images=images)
            rows.append(class_row(tmp_path, correct, **kind, **who))
            right[role].append(correct.numpy())
    found = against(rows, tmp_path, rounds=4000)["lines"][0]["classes"]

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
    assert [found["low"], found["high"]] == pytest.approx([low, high], abs=(high - low) / 10)


def test_a_copy_of_the_baseline_has_exactly_100_percent(tmp_path: Path) -> None:
    rows = []
    for who in ({}, FULL):
        rows += [
            class_row(tmp_path, correct_of(0), **who),
            mask_row(tmp_path, confusions_of(1), **who),
            depth_row(tmp_path, errors_of(2), **who),
        ]
    (line,) = against(rows, tmp_path)["lines"]
    for one in (*line["numbers"], line["classes"]):
        assert [one[name] for name in ("ratio", "low", "high")] == [1.0, 1.0, 1.0]


def test_a_baseline_is_compared_at_the_same_budget_and_resolution_or_share(
    tmp_path: Path,
) -> None:
    places = [(64, 8), (64, 16), (128, 8), (128, 16)]
    rows = [row(**{**who, "resolution": side, "budget": budget}) for side, budget in places
            for who in ({}, FULL)]  # fmt: skip
    lines = against(rows, tmp_path)["lines"]
    assert [(line["resolution"], line["budget"]) for line in lines] == places
    for line in lines:
        (one,) = line["numbers"]
        own = line["resolution"], line["budget"]
        assert (one["baseline_resolution"], one["baseline_budget"]) == own

    settings = [(8, 0.5), (8, 1.0), (64, 0.5), (64, 1.0)]
    models = [row(budget=budget, ffn=share) for budget, share in settings]
    full = [row(**FULL | {"ffn": share}) for share in (1.0, 0.25)]
    found = against([full[0], *models], tmp_path)  # one share serves for every setting
    assert [(line["budget"], line["ffn"]) for line in found["lines"]] == settings
    found = against([*full, *models], tmp_path)  # now 0.5 has no single match
    assert [(line["budget"], line["ffn"]) for line in found["lines"]] == [(8, 1.0), (64, 1.0)]
    assert found["left_out"] == [
        "knn on pets, top1_k20: the baseline has no single number at its resolution, budget and "
        "share (2 lines)."
    ]


def test_numbers_without_per_image_results_have_no_interval(tmp_path: Path) -> None:
    rows = every_task(tmp_path)
    rows += [
        class_row(tmp_path, correct_of(0), data="cats", **who) for who in (FULL, {"budget": 8})
    ]
    rows[-1] = replace(rows[-1], value=rows[-1].value + 1)  # its file gives another number
    first, second = against(rows, tmp_path)["lines"]
    cats = next(one for one in first["numbers"] if one["data"] == "cats")
    assert cats["ratio"] == rows[-1].value / rows[-2].value
    assert cats["low"] is cats["high"] is first["classes"]["low"] is None
    assert second["classes"]["low"] is not None
    (line,) = against([row(metric="map_k20", **who) for who in ({}, FULL)], tmp_path)["lines"]
    assert (line["numbers"][0]["ratio"], line["numbers"][0]["low"]) == (1.0, None)


def test_models_on_other_images_or_protocols_are_not_compared(tmp_path: Path) -> None:
    for change in ({"data_sha256": "9" * 64}, {"feature": "patch-mean"}):
        found = against([row(), row(**FULL, **change)], tmp_path)
        assert not found["lines"]
        assert found["left_out"] == [
            "knn on pets, top1_k20: the baseline was measured on other images or by another "
            "protocol or feature (1 line)."
        ]
        title, words, left_out = comparison_blocks(found)
        assert title == Heading("Against runs/full (baseline)")
        assert (words, left_out) == ("Left out of the comparison:", Items(found["left_out"]))
    assert compare_to_baseline([row(), row(**FULL, **DOGS)], tmp_path) == []  # nothing in common


def test_without_anything_to_divide_by_there_is_no_ratio_or_no_interval(tmp_path: Path) -> None:
    right = correct_of(0)
    few = right & (right.cumsum(0) == 1)

    def line(baseline: Any) -> dict[str, Any]:
        rows = [class_row(tmp_path, right), class_row(tmp_path, baseline, **FULL)]
        found: dict[str, Any] = against(rows, tmp_path)
        return found["lines"][0] | {"shown": table(found)[0]}

    found = line(few)  # some draws lack the only image that the baseline gets right
    assert (found["classes"]["low"], found["classes"]["high"]) == (None, None)
    assert found["shown"]["classes"] == f"{100 * int(right.sum()):.1f} %"
    found = line(right & False)
    assert (found["classes"]["baseline"], found["classes"]["ratio"]) == (0.0, None)
    assert "classes" not in found["shown"]


def test_every_baseline_has_a_comparison_of_its_own_and_is_not_compared_with_itself(
    tmp_path: Path,
) -> None:
    assert compare_to_baseline([row(), row(role="teacher", model="t")], tmp_path) == []
    others = [row(**FULL | {"weights": str(seed) * 64, "value": 50.0 + seed}) for seed in (1, 2)]
    itself = replace(others[0], role="model")
    first, second = compare_to_baseline([row(), itself, *others], tmp_path, 100)
    assert first["name"] == "runs/full @11111111 (baseline)"
    assert second["name"] == "runs/full @22222222 (baseline)"
    assert [line["model"] for line in first["lines"]] == ["runs/tiny"]
    assert [line["model"] for line in second["lines"]] == ["runs/tiny", "runs/full"]
    assert first["lines"][0]["numbers"][0]["baseline"] == 51.0
    assert second["lines"][0]["numbers"][0]["baseline"] == 52.0


def test_the_section_has_the_mean_of_classes_and_the_ratios_of_dense_tasks(tmp_path: Path) -> None:
    found = against(every_task(tmp_path), tmp_path)
    title, words, *_ = comparison_blocks(found)
    assert title == Heading("Against runs/full (baseline)")
    assert "95 % interval over 400 draws of the test images" in str(words)
    first, second = table(found)
    assert list(first) == [
        "model", "budget", "px", "baseline at", "classes", "knn on pets, top1_k20",
        "knn on dogs, top1_k20", "logistic on pets, top1", "segmentation on farm, miou",
        "dense-knn on farm, miou", "depth on rooms, rmse",
    ]  # fmt: skip
    assert [first[name] for name in list(first)[:4]] == ["runs/tiny", "8", "128", "whole 128 px"]
    assert second["budget"] == "64"
    classes = found["lines"][0]["classes"]
    value, low, high = (100 * classes[name] for name in ("ratio", "low", "high"))
    assert first["classes"] == f"{value:.1f} % [{low:.1f}, {high:.1f}]"
    depth = next(one for one in found["lines"][0]["numbers"] if one["task"] == "depth")
    text_of_depth = f"x{depth['ratio']:.3f} [{depth['low']:.3f}, {depth['high']:.3f}]"
    assert first["depth on rooms, rmse"] == text_of_depth


def test_the_section_marks_what_differs_between_lines(tmp_path: Path) -> None:
    half, whole = {"ffn": 0.5}, {"ffn": None}
    masks = {"task": "segmentation", "metric": "miou"}
    rows = [row(**who | share, patches_per_core=32.0) for who in ({}, FULL)
            for share in (half, whole)]  # fmt: skip
    rows += [row(**DOGS, **half), row(**DOGS, **FULL | half, resolution=96)]
    for kinds in (
        [masks | {"data": "farm", "partial": ("9 of 10",)}],
        [masks | {"data": "pond", "feature": feature} for feature in ("a", "b")],
        [masks | {"data": "lake", "data_sha256": sha * 64} for sha in ("a", "b")],
    ):
        rows += [row(**kind | who | half) for kind in kinds for who in ({}, FULL)]
    first, second = table(against(rows, tmp_path))
    assert (first["ffn"], first["baseline at"]) == ("0.5", "f0.5 128 px; f0.5 96 px")
    assert (second["ffn"], second["baseline at"]) == ("-", "whole 128 px")
    assert (first["patches/core"], second["knn on dogs, top1_k20"]) == ("32", "-")
    assert first["segmentation on farm, miou (PARTIAL)"] == "100.0 %"
    assert first["segmentation on pond, miou, a"] == "100.0 %"
    assert second["segmentation on pond, miou, b"] == "-"
    assert first["segmentation on lake, miou, bbbbbbbbbbbbbbbb"] == "100.0 %"
