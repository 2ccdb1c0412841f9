"""Neighbors vote as brute force in double precision has it, however the work is cut up."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from veca.probe import knn as neighbors
from veca.probe.knn import NeighborError, knn, nearest

KS = (10, 20, 100, 200)
CLASSES = 10


def brute_force(
    train: Tensor, labels: Tensor, test: Tensor, ks: Sequence[int], temperature: float = 0.07
) -> dict[int, Tensor]:
    """Every pair compared in double precision, neighbors sorted by (similarity, row)."""
    memory, wanted = (
        np.asarray(torch.nn.functional.normalize(each.double())) for each in (train, test)
    )
    votes = {k: torch.zeros(len(test), CLASSES, dtype=torch.float64) for k in ks}
    for row, vector in enumerate(wanted):
        # One product at a time, so that equal pictures are equally similar to the last bit.
        similarities = (memory * vector).sum(axis=1).tolist()
        order = sorted(range(len(memory)), key=lambda each: (-similarities[each], each))
        weights = [math.exp(similarities[each] / temperature) for each in order[: max(ks)]]
        for k in ks:
            for each, weight in zip(order[:k], weights, strict=False):
                votes[k][row, labels[each]] += weight / math.fsum(weights[:k])
    return votes


def random_set(rows: int, width: int = 16) -> tuple[Tensor, Tensor]:
    """Features with some structure, of many lengths."""
    labels = torch.randint(CLASSES, (rows,))
    centers = torch.randn(CLASSES, width, generator=torch.Generator().manual_seed(1))
    features = (torch.randn(rows, width) + 0.4 * centers[labels]) * (0.1 + 9 * torch.rand(rows, 1))
    return features, labels


def agree(found: dict[int, Tensor], expected: dict[int, Tensor]) -> None:
    """Fail unless all 500 pictures are told the same, by nearly the same votes."""
    for k, votes in expected.items():
        torch.testing.assert_close(found[k], votes, rtol=0, atol=1e-6)
        assert int((found[k].argmax(1) == votes.argmax(1)).sum()) == 500


def with_copies(features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Every picture four times, in places far apart and with labels of their own."""
    quarter = features[: len(features) // 4]
    return quarter.repeat(4, 1), labels


def test_all_500_predictions_are_those_of_brute_force() -> None:
    train, labels = random_set(2000)
    test, _ = random_set(500)
    votes = knn(train, labels, test, CLASSES)
    assert tuple(votes) == KS
    agree(votes, brute_force(train, labels, test, KS))


def test_equally_near_pictures_are_taken_in_the_order_of_the_training_set() -> None:
    train, labels = with_copies(*random_set(2000))
    test, _ = random_set(500)
    ks = (10, 21)  # both cut through the copies of one picture
    agree(knn(train, labels, test, CLASSES, ks=ks), brute_force(train, labels, test, ks))


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(("test_rows", "train_rows"), [(1, 997), (7, 64), (1000, 5)])
def test_chunks_change_no_bit(
    test_rows: int, train_rows: int, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, labels = random_set(1000)
    if copies:
        train, labels = with_copies(train, labels)
    test = random_set(23)[0]
    whole = knn(train, labels, test, CLASSES)
    monkeypatch.setattr(neighbors, "TEST_ROWS", test_rows)
    monkeypatch.setattr(neighbors, "TRAIN_ROWS", train_rows)
    cut = knn(train, labels, test, CLASSES)
    assert all(torch.equal(whole[k], cut[k]) for k in KS)


def test_two_processes_that_share_the_test_pictures_find_what_one_does() -> None:
    train, labels = random_set(700)
    test = random_set(31)[0]
    whole = knn(train, labels, test, CLASSES)
    shares = [knn(train, labels, test[rank::2], CLASSES) for rank in range(2)]
    for k in KS:
        assert torch.equal(whole[k][0::2], shares[0][k])
        assert torch.equal(whole[k][1::2], shares[1][k])


def test_the_order_of_summation_changes_no_similarity() -> None:
    train, test = random_set(200, width=300)[0], random_set(40, width=300)[0]
    order = torch.randperm(300)
    plain, shuffled = nearest(train, test, 9), nearest(train[:, order], test[:, order], 9)
    assert torch.equal(plain.similarities, shuffled.similarities)
    assert torch.equal(plain.rows, shuffled.rows)
    exact = (
        torch.nn.functional.normalize(train.double())
        @ torch.nn.functional.normalize(test.double()).T
    )
    torch.testing.assert_close(plain.similarities, exact.T.topk(9).values, rtol=0, atol=4e-8)


@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 1.0]), min_size=1, max_size=40), st.data())
def test_the_largest_come_first_and_equals_in_order(
    values: list[float], data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(values)))
    found = neighbors._largest(torch.tensor([values], dtype=torch.float64), k)
    expected = sorted(range(len(values)), key=lambda each: (-values[each], each))[:k]
    assert found[0].tolist() == expected


def test_a_k_above_the_training_set_is_left_out() -> None:
    train, labels = random_set(20)
    assert list(knn(train, labels, train, CLASSES)) == [10, 20]
    assert knn(train[:5], labels[:5], train, CLASSES) == {}


def test_votes_of_each_k_add_up_to_one_and_do_not_depend_on_the_other_ks() -> None:
    train, labels = random_set(300)
    test = random_set(9)[0]
    together = knn(train, labels, test, CLASSES, ks=(200, 10))
    assert list(together) == [200, 10]
    for k, votes in together.items():
        torch.testing.assert_close(votes.sum(dim=1), torch.ones(9, dtype=torch.float64))
        assert torch.equal(votes, knn(train, labels, test, CLASSES, ks=(k,))[k])


def test_a_neighbor_with_several_classes_votes_for_each() -> None:
    train, labels = random_set(200)
    test = random_set(9)[0]
    single = torch.nn.functional.one_hot(labels, CLASSES).bool()
    plain, several = knn(train, labels, test, CLASSES), knn(train, single, test, CLASSES)
    assert all(torch.equal(plain[k], several[k]) for k in KS)
    everything = knn(train, torch.ones_like(single), test, CLASSES, ks=(7,))[7]
    assert torch.equal(everything, torch.ones_like(everything))


def test_the_temperature_decides_how_much_nearer_ones_weigh() -> None:
    train = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.6, -0.8]])
    labels, test = torch.tensor([0, 1, 1]), torch.tensor([[2.0, 0.0]])
    for temperature, winner in ((0.07, 0), (10.0, 1)):
        votes = knn(train, labels, test, 2, ks=(3,), temperature=temperature)[3]
        weight = math.exp(-0.4 / temperature)
        assert votes[0].tolist() == pytest.approx(
            [1 / (1 + 2 * weight), 2 * weight / (1 + 2 * weight)]
        )
        assert int(votes.argmax()) == winner


def test_a_picture_without_direction_is_similar_to_nothing() -> None:
    found = nearest(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]), torch.ones(1, 2), 3)
    assert found.rows.tolist() == [[2, 1, 0]]
    assert found.similarities[0, 1] == 0


def test_half_precision_and_no_test_pictures_are_fine() -> None:
    train, labels = random_set(50)
    assert knn(train.half(), labels, train[:0].half(), CLASSES, ks=(3,))[3].shape == (0, CLASSES)
    assert nearest(train.half(), train.half(), 1).rows.flatten().tolist() == list(range(50))


def test_progress_is_told_in_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "TEST_ROWS", 4)
    train, labels = random_set(20)
    heard: list[int] = []
    knn(train, labels, train[:10], CLASSES, ks=(5,), advance=heard.append)
    assert heard == [4, 4, 2]


def test_what_cannot_be_searched_is_refused() -> None:
    train, labels = random_set(20)
    with pytest.raises(NeighborError, match="asks for no neighbor"):
        knn(train, labels, train, CLASSES, ks=(0, 5))
    with pytest.raises(NeighborError, match="gives no votes"):
        knn(train, labels, train, CLASSES, temperature=0.0)
    with pytest.raises(NeighborError, match="k=21 of 20 neighbors"):
        nearest(train, train, 21)
    with pytest.raises(NeighborError, match="not finite"):
        nearest(torch.full((2, 2), torch.nan), torch.ones(1, 2), 1)
