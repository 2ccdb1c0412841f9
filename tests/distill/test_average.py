"""The moving average of the weights."""

import pytest
import torch
from torch import Tensor

from tests.distill.built import small_student
from veca.distill.parallel import EMA
from veca.distill.student import Student


class BurntError(Exception):
    """Flies through the middle of things."""


def weights_of(student: Student) -> dict[str, Tensor]:
    """Copies of all weights."""
    return {name: value.detach().clone() for name, value in student.named_parameters()}


def change(student: Student, step: int) -> None:
    """Move all weights a little, otherwise at every step."""
    draw = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw))


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are the same to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_weighs_the_weights_of_every_step_as_the_formula_says() -> None:
    student, decay = small_student(), 0.4
    average = EMA(student, decay)
    history = [weights_of(student)]
    for step in range(1, 11):
        change(student, step)
        average.update()
        history.append(weights_of(student))

    # Each update keeps a share; the young ones, up to the fourth, keep less than the decay.
    shares = [min(decay, (1 + step) / (10 + step)) for step in range(1, 11)]
    assert [share < decay for share in shares] == [True] * 4 + [False] * 6
    for name, found in average.tensors().items():
        wanted = history[0][name].double()
        for share, weights in zip(shares, history[1:], strict=True):
            wanted = share * wanted + (1 - share) * weights[name].double()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


def test_an_average_begins_as_a_copy_of_the_weights() -> None:
    student = small_student()
    average, before = EMA(student, 0.9), weights_of(student)
    change(student, 1)
    assert equal(average.tensors(), before)


def test_within_the_student_has_the_average_and_after_it_its_own_weights_to_the_bit() -> None:
    student = small_student()
    average = EMA(student, 0.9)
    change(student, 1)
    own = weights_of(student)
    with average.in_place():
        assert equal(weights_of(student), average.tensors())
        assert torch.is_grad_enabled()  # what is done within decides for itself
    assert equal(weights_of(student), own)


def test_an_error_within_gives_the_student_its_own_weights_back() -> None:
    student = small_student()
    average = EMA(student, 0.9)
    change(student, 1)
    own, kept = weights_of(student), {n: t.clone() for n, t in average.tensors().items()}
    with pytest.raises(BurntError), average.in_place():
        raise BurntError
    assert equal(weights_of(student), own)
    assert equal(average.tensors(), kept)


def test_a_stored_average_goes_on_as_the_one_it_was_taken_from() -> None:
    student, other = small_student(), small_student(seed=1)
    average, continued = EMA(student, 0.9), EMA(other, 0.9)
    for step in range(1, 4):
        change(student, step)
        average.update()
    continued.load({n: t.clone() for n, t in average.tensors().items()}, average.updates)
    with torch.no_grad():
        for mine, theirs in zip(other.parameters(), student.parameters(), strict=True):
            mine.copy_(theirs)
    for one, moved in ((average, student), (continued, other)):
        change(moved, 4)
        one.update()
    assert continued.updates == 4
    assert equal(continued.tensors(), average.tensors())
