"""Times that can be compared."""

import itertools

import pytest
import torch
from torch import Tensor

from tests.probe.test_frozen import Mixed
from veca.probe import models as speed
from veca.probe.models import Frozen, milliseconds
from veca.probe.rows import Setting


class Clock:
    """Time that passes when a model looks, and at no other time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Mixed):
    """Takes the next of some times in seconds with every look, and notes what it saw."""

    def __init__(self, clock: Clock, name: str, seconds: list[float], stride: int = 4) -> None:
        super().__init__(stride)
        self.clock, self.name, self.seconds = clock, name, itertools.cycle(seconds)
        self.seen: list[tuple[torch.Size, Setting, float]] = []

    def look(self, images: Tensor, grid: tuple[int, int], setting: Setting) -> Frozen:
        self.seen.append((images.shape, setting, self.clock.now))
        self.clock.now += next(self.seconds)
        return super().look(images, grid, setting)


def test_the_median_over_rounds_is_told_without_the_first_call() -> None:
    clock = Clock()
    slow = Timed(clock, "slow", [99.0, 0.004, 0.002, 0.9])
    fast = Timed(clock, "fast", [50.0, 0.001, 0.001, 0.001])
    found = milliseconds([(slow, Setting(8)), (fast, Setting())], (8, 8), 3, clock=clock)
    assert found == pytest.approx([4.0, 1.0])
    assert {setting for _, setting, _ in slow.seen} == {Setting(8)}


def test_everybody_takes_part_in_every_round_and_the_order_changes() -> None:
    clock = Clock()
    models = [Timed(clock, name, [0.001]) for name in "abc"]
    milliseconds([(model, Setting()) for model in models], (8, 8), 8, clock=clock)
    calls = sorted((when, model.name) for model in models for _, _, when in model.seen)
    names = [name for _, name in calls]
    rounds = [tuple(names[start : start + 3]) for start in range(0, len(names), 3)]
    assert len(rounds) == 9  # one to warm up
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) > 1


def test_one_image_of_the_side_that_fits_is_seen() -> None:
    clock = Clock()
    models = [Timed(clock, "a", [0.001], stride=4), Timed(clock, "b", [0.001], stride=7)]
    milliseconds([(model, Setting()) for model in models], (16, 24), 1, clock=clock)
    assert {shape for shape, _, _ in models[0].seen} == {(1, 3, 16, 24)}
    assert {shape for shape, _, _ in models[1].seen} == {(1, 3, 14, 21)}


def test_a_run_that_takes_long_ends_with_fewer_rounds() -> None:
    clock = Clock()
    slow = Timed(clock, "slow", [0.4 * speed.MOST_SECONDS])
    assert milliseconds([(slow, Setting())], (8, 8), 7, clock=clock) == pytest.approx([24_000])
    assert len(slow.seen) == 4  # one to warm up; the third round passes the limit


def test_the_real_clock_measures_something() -> None:
    assert milliseconds([(Mixed(), Setting())], (8, 8), 2)[0] > 0


def test_no_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="rounds=0 measures nothing"):
        milliseconds([], (8, 8), 0)
