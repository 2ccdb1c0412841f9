"""Labels are checked, and become shares that add up to 1."""

import pytest
import torch

from veca.probe.metrics import LabelError, check_labels, labeled_rows, target_shares

SEVERAL = torch.tensor([[True, False, True], [False, False, False], [False, True, False]])


def test_numbers_become_one_whole_share() -> None:
    found = target_shares(torch.tensor([2, 0]), 3, torch.float64)
    assert found.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert found.dtype == torch.float64


def test_several_classes_share_evenly_and_none_get_nothing() -> None:
    assert target_shares(SEVERAL, 3).tolist() == [[0.5, 0, 0.5], [0, 0, 0], [0, 1, 0]]


def test_only_pictures_with_a_class_count() -> None:
    assert labeled_rows(SEVERAL).tolist() == [0, 2]
    assert labeled_rows(torch.tensor([5, 5])).tolist() == [0, 1]


def test_labels_of_the_known_classes_pass() -> None:
    check_labels(torch.tensor([0, 2]), 3)
    check_labels(torch.tensor([], dtype=torch.int64), 3)
    check_labels(SEVERAL, 3)


@pytest.mark.parametrize("wrong", [[0, 3], [-1, 0]])
def test_numbers_of_other_classes_are_refused(wrong: list[int]) -> None:
    with pytest.raises(LabelError, match=rf"from {wrong[0]} to {wrong[1]}, but the 3 classes"):
        check_labels(torch.tensor(wrong), 3)


def test_another_number_of_columns_is_refused() -> None:
    with pytest.raises(LabelError, match="of 3 classes, but there are 4"):
        check_labels(SEVERAL, 4)
