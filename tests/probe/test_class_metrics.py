"""Metrics are those of scikit-learn, torchmetrics and counting by hand."""

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from veca.probe import metrics as class_metrics
from veca.probe.metrics import (
    Interpolation,
    MetricError,
    average_precision,
    correct,
    mean_average_precision,
    mean_per_class,
    metrics,
    places,
    top1,
    top5,
    top_k,
)

rough = st.sampled_from([-torch.inf, -1.0, 0.0, 0.25, 0.5, 1.0])
"""Scores among which equals are frequent."""


def brute_place(scores: list[float], right: set[int]) -> int:
    """Sort the classes and look where a right one stands."""
    order = sorted(range(len(scores)), key=lambda each: (-scores[each], each))
    return next((place for place, each in enumerate(order) if each in right), len(scores))


@given(st.integers(1, 7), st.data())
def test_places_are_those_of_sorting(classes: int, data: st.DataObject) -> None:
    scores = data.draw(st.lists(rough, min_size=classes, max_size=classes))
    right = data.draw(st.sets(st.integers(0, classes - 1)))
    row = torch.zeros(1, classes, dtype=torch.bool)
    row[0, list(right)] = True
    expected = brute_place(scores, right)
    assert places(torch.tensor([scores]), row).tolist() == [expected]
    for label in right:
        found = places(torch.tensor([scores]), torch.tensor([label]))
        assert found.tolist() == [brute_place(scores, {label})]


def brute_precision(scores: list[float], present: list[bool], kind: str) -> float:
    """Thresholds one by one, from the definition."""
    points = []
    for threshold in sorted(set(scores), reverse=True):
        taken = [truth for score, truth in zip(scores, present, strict=True) if score >= threshold]
        points.append((sum(taken) / sum(present), sum(taken) / len(taken)))
    if kind == "11-point":
        # In whole pictures: recall >= tenth / 10.
        best = [
            max(
                p
                for recall, p in points
                if round(recall * sum(present)) * 10 >= tenth * sum(present)
            )
            for tenth in range(11)
        ]
        return sum(best) / 11
    area, before = 0.0, 0.0
    for recall, precision in points:
        height = precision if kind == "step" else max(p for r, p in points if r >= recall)
        area += (recall - before) * height
        before = recall
    return area


@given(st.lists(st.tuples(rough, st.booleans()), min_size=1, max_size=30))
def test_average_precision_follows_its_definition(pairs: list[tuple[float, bool]]) -> None:
    scores, present = [score for score, _ in pairs], [truth for _, truth in pairs]
    given_scores, given_present = torch.tensor(scores), torch.tensor(present)
    if not any(present):
        with pytest.raises(MetricError, match="no recall"):
            average_precision(given_scores, given_present, "step")
        return
    kinds: tuple[Interpolation, ...] = get_args(Interpolation)
    for kind in kinds:
        found = average_precision(given_scores, given_present, kind)
        assert found == pytest.approx(brute_precision(scores, present, kind), abs=1e-12)


def random_scores(rows: int = 400, classes: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Scores that know something of the numbers; these; and booleans, some rows of them empty."""
    labels = torch.randint(classes - 1, (rows,))  # the last class has no picture
    scores = torch.randn(rows, classes)
    scores[torch.arange(rows), labels] += 1
    several = torch.rand(rows, classes) < 0.2
    return scores, labels, several


def test_accuracies_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is the oracle")
    scores, labels, _ = random_scores()
    told = scores.argmax(dim=1)
    assert top1(scores, labels) == pytest.approx(100 * sklearn.accuracy_score(labels, told))
    five = sklearn.top_k_accuracy_score(labels, scores, k=5, labels=range(8))
    assert top5(scores, labels) == pytest.approx(100 * five)
    with pytest.warns(UserWarning, match="not in y_true"):
        balanced = sklearn.balanced_accuracy_score(labels, told)
    assert mean_per_class(scores, labels) == pytest.approx(100 * balanced)


def test_accuracies_are_those_of_torchmetrics() -> None:
    oracle = pytest.importorskip("torchmetrics.functional.classification", reason="the oracle")
    scores, labels, _ = random_scores()
    labels[0] = 7  # torchmetrics counts a class without pictures as wrong once it is told
    for k in (1, 5):
        found = oracle.multiclass_accuracy(scores, labels, 8, top_k=k, average="micro")
        assert top_k(scores, labels, k) == pytest.approx(100 * found.item(), abs=1e-4)
    found = oracle.multiclass_accuracy(scores, labels, 8, average="macro")
    assert mean_per_class(scores, labels) == pytest.approx(100 * found.item(), abs=1e-4)


def test_mean_average_precision_by_steps_is_that_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics", reason="scikit-learn is the oracle")
    scores, labels, several = random_scores()
    scores = (scores * 4).round()  # with equals
    expected = sklearn.average_precision_score(several, scores, average="macro")
    assert mean_average_precision(scores, several, "step") == pytest.approx(100 * expected)
    one = torch.nn.functional.one_hot(labels, 8).bool()
    found = mean_average_precision(scores, labels, "step")
    assert found == pytest.approx(mean_average_precision(scores, one, "step"))


def test_interpolated_precision_of_a_case_worked_by_hand() -> None:
    # Right at places 1, 3 and 4 of 5: precisions 1, 2/3, 3/4 at recalls 1/3, 2/3, 1.
    scores = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0])
    present = torch.tensor([True, False, True, True, False])
    step = (1 + 2 / 3 + 3 / 4) / 3
    assert average_precision(scores, present, "step") == pytest.approx(step)
    envelope = (1 + 3 / 4 + 3 / 4) / 3
    assert average_precision(scores, present, "all-point") == pytest.approx(envelope)
    eleven = (4 * 1 + 7 * 3 / 4) / 11  # recalls 0 to 0.3, then 0.4 to 1
    assert average_precision(scores, present, "11-point") == pytest.approx(eleven)


def test_pictures_that_do_not_count_for_a_class_are_passed_over() -> None:
    scores, _, several = random_scores()
    counted = torch.rand(several.shape) < 0.7
    expected = [
        average_precision(scores[rows, number], several[rows, number], "11-point")
        for number in range(8)
        for rows in [counted[:, number]]
    ]
    found = mean_average_precision(scores, several, counted=counted)
    assert found == pytest.approx(100 * sum(expected) / 8)


def test_pictures_without_a_class_are_left_out_of_accuracies() -> None:
    scores = torch.eye(4)
    several = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]).bool()
    assert correct(scores, several).tolist() == [True, False, True]
    assert top1(scores, several) == pytest.approx(200 / 3)
    # Class 0: one of its two pictures is told right; class 1: one of one; class 3: one of one.
    assert mean_per_class(scores, several) == pytest.approx(100 * (0.5 + 1 + 1) / 3)


def test_a_score_that_is_no_number_is_wrong() -> None:
    scores = torch.tensor([[torch.nan, 0.0], [torch.nan, torch.nan], [0.0, 1.0]])
    for labels in (torch.tensor([0, 1, 1]), torch.ones(3, 2, dtype=torch.bool)):
        assert correct(scores, labels).tolist() == [False, False, True]
    column = torch.tensor([torch.nan, 1.0])
    assert average_precision(column, torch.tensor([True, False]), "step") == 0.5


def test_pictures_in_blocks_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels, several = random_scores(rows=50)
    whole = places(scores, labels), places(scores, several)
    monkeypatch.setattr(class_metrics, "ROWS", 7)
    assert torch.equal(places(scores, labels), whole[0])
    assert torch.equal(places(scores, several), whole[1])
    assert places(scores[:0], labels[:0]).shape == (0,)


def test_metrics_suit_the_labels_unless_they_are_named() -> None:
    scores, labels, several = random_scores()
    assert list(metrics(scores, labels)) == ["top1", "top5", "mean_per_class"]
    assert list(metrics(scores[:, :5], labels.clamp(max=4))) == ["top1", "mean_per_class"]
    found = metrics(scores, several)
    assert list(found) == ["top1", "map", "map_all_point", "map_step"]
    assert found["map"] == mean_average_precision(scores, several)
    assert metrics(scores, several, ("top1",)) == {"top1": top1(scores, several)}
    with pytest.raises(MetricError, match="'top9' is no metric of classes; use top1, top5"):
        metrics(scores, labels, ["top9"])


def test_nothing_to_judge_is_refused() -> None:
    scores, nothing = torch.randn(3, 2), torch.zeros(3, 2, dtype=torch.bool)
    for metric in (top1, mean_per_class, mean_average_precision):
        with pytest.raises(MetricError, match="no picture has a class"):
            metric(scores, nothing)
