"""Classes and relations, computed slowly."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from veca.distill.losses import (
    LossConfig,
    anchor_divergence,
    class_divergence,
    further_parts,
    relation_error,
)


def shares(scores: list[float], temperature: float) -> list[float]:
    """Softmax by hand."""
    powers = [math.exp(score / temperature) for score in scores]
    return [power / sum(powers) for power in powers]


@given(
    seed=st.integers(0, 2**31), batch=st.integers(1, 3), classes=st.integers(1, 6),
    temperature=st.floats(0.5, 5),
)  # fmt: skip
def test_the_divergence_of_classes_equals_a_sum_by_hand(
    seed: int, batch: int, classes: int, temperature: float
) -> None:
    torch.manual_seed(seed)
    said, wanted = torch.randn(batch, classes).double(), torch.randn(batch, classes).double()
    slow = 0.0
    for one, other in zip(said.tolist(), wanted.tolist(), strict=True):
        mine, aims = shares(one, temperature), shares(other, temperature)
        slow += sum(p * math.log(p / q) for p, q in zip(aims, mine, strict=True)) / batch
    found = float(class_divergence(said, wanted, temperature))
    assert found == pytest.approx(temperature**2 * slow, rel=1e-4, abs=1e-6)


def test_equal_scores_up_to_a_constant_diverge_by_nothing() -> None:
    scores = torch.randn(3, 7)
    assert float(class_divergence(scores + 5, scores, 2.0)) == pytest.approx(0, abs=1e-5)
    assert float(class_divergence(-scores, scores, 2.0)) > 0.1


def test_relations_are_squared_differences_of_the_cosines_of_all_pairs() -> None:
    own, wanted = torch.randn(2, 4, 5), torch.randn(2, 4, 9)
    slow = 0.0
    for image in range(2):
        for first in range(4):
            for second in range(4):
                one, other = (
                    float(
                        (some[image, first] @ some[image, second])
                        / (some[image, first].norm() * some[image, second].norm())
                    )
                    for some in (own, wanted)
                )
                slow += (one - other) ** 2 / 32
    assert float(relation_error(own, wanted)) == pytest.approx(slow, rel=1e-5)


def test_relations_do_not_see_turns_and_scales_of_the_features() -> None:
    wanted = torch.randn(2, 6, 8)
    turn = torch.linalg.qr(torch.randn(8, 8))[0]
    assert float(relation_error(3 * wanted @ turn, wanted)) == pytest.approx(0, abs=1e-6)


def test_relations_are_computed_in_single_precision_whatever_comes_in() -> None:
    own, wanted = torch.randn(2, 6, 8).bfloat16(), torch.randn(2, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found = relation_error(own, wanted)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, relation_error(own.float(), wanted))


def test_only_parts_with_a_weight_are_switched_on() -> None:
    assert further_parts(LossConfig()) == ()
    assert [part.name for part in further_parts(LossConfig(relations=0.5))] == ["relations"]
    both = further_parts(LossConfig(relations=0.5, classes=2.0))
    assert [(part.name, part.weight) for part in both] == [("classes", 2.0), ("relations", 0.5)]


def test_anchor_divergence_is_the_kl_of_likeness_to_each_anchor_by_hand() -> None:
    said, wanted, anchors = torch.randn(3, 6), torch.randn(3, 6), torch.randn(5, 6)
    slow = 0.0
    for one, other in zip(said, wanted, strict=True):
        logs, aims = (
            (torch.cosine_similarity(image[None], anchors) / 0.2).softmax(0).log()
            for image in (one, other)
        )
        slow += float((aims.exp() * (aims - logs)).sum()) / 3
    found = anchor_divergence(said, wanted, anchors, temperature=0.2)
    assert float(found) == pytest.approx(slow, rel=1e-4)
    assert float(anchor_divergence(2 * wanted, wanted, anchors, 0.2)) == pytest.approx(0, abs=1e-6)
