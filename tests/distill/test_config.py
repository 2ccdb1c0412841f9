"""Configurations: what they derive, and what they refuse in which words."""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.distill.runs import TINY
from veca.backbone.config import PAPER_BUDGETS, BackboneConfig
from veca.distill.config import DistillConfig, RunOptions
from veca.train.schedules import ResolutionPhase


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("batch", 0, "batch=0 is invalid: it must be >= 1"),
        ("steps", 0, "steps=0 is invalid: it must be >= 1"),
        ("validate_every", 0, "validate_every=0 is invalid: it must be >= 1"),
        ("statistics_images", 0, "statistics_images=0 is invalid: it must be >= 1"),
        ("validation_images", 0, "validation_images=0 is invalid: it must be >= 1"),
        ("most_images", 0, "most_images=0 is invalid: it must be >= 1"),
        ("max_skips", -1, "max_skips=-1 is invalid: it must be >= 0"),
        ("epochs", 0.0, r"epochs=0.0 is invalid: it must be in \(0.0"),
        ("epochs", float("inf"), "epochs=inf is invalid"),
        ("epochs", float("nan"), "epochs=nan is invalid"),
        ("ema", 0.0, r"ema=0.0 is invalid: it must be in \(0.0, 1.0\)"),
        ("ema", 1.0, r"ema=1.0 is invalid: it must be in \(0.0, 1.0\)"),
        ("clip", 0.0, r"clip=0.0 is invalid: it must be in \(0.0"),
        (r"max_unreadable", 1.5, r"max_unreadable=1.5 is invalid: it must be in \[0, 1\]"),
        (r"max_unreadable", -0.1, r"max_unreadable=-0.1 is invalid: it must be in \[0, 1\]"),
        ("teacher", (), "teacher is empty; name one, such as efficientnet-lite2"),
        ("teacher_weights", (1.0, 1.0), r"give one number >= 0 for each of the 1 teachers"),
        ("teacher_weights", (-1.0,), "is invalid"),
        ("teacher_weights", (0.0,), "at least one of them above 0"),
        ("teacher_margin", -32, "teacher_margin=-32 is invalid: it must be >= 0"),
        ("resolution", 36, r"resolution 36 is not a multiple of the patch size 8; use 32"),
        ("resolution", 4, r"resolution 4 is not a multiple of the patch size 8; use 8"),
        ("resolutions", (ResolutionPhase(sizes=(32, 33)),), "resolution 33 is not a multiple"),
        ("resolutions", (), "the first must begin at 0"),
        ("resolutions", (ResolutionPhase(sizes=(32,), from_share=0.5),), "must begin at 0"),
        ("budget_weights", (1.0,), "give 2 numbers >= 0"),
        ("budget_weights", (0.0, 0.0), "at least one of them above 0"),
        ("share_weights", (1.0, 1.0, 1.0), "give 2 numbers >= 0"),
        (
            "backbone",
            BackboneConfig(attention="full"),
            "set attention='full' of the run instead",
        ),
    ],
)
def test_a_run_that_cannot_be_is_refused_with_what_can(
    field: str, value: Any, message: str
) -> None:
    fine = DistillConfig(backbone=TINY)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(fine, **{field: value})


@pytest.mark.parametrize(
    ("field", "least"), [("workers", 0), ("accumulate", 1), ("teacher_batch", 1), ("save_every", 1)]
)
def test_counts_below_their_least_are_refused_with_it(field: str, least: int) -> None:
    fine: dict[str, Any] = {field: least}
    bad: dict[str, Any] = {field: least - 1}
    assert getattr(RunOptions(**fine), field) == least
    with pytest.raises(ValueError, match=f"{field}={least - 1} is invalid: it must be >= {least}"):
        RunOptions(**bad)


def test_the_baseline_has_the_same_sizes_but_no_budgets_of_its_own() -> None:
    config = DistillConfig(backbone=TINY, attention="full")
    assert config.student.attention == "full"
    assert config.student.budgets == PAPER_BUDGETS
    same = dataclasses.replace(config.student, attention=TINY.attention, budgets=TINY.budgets)
    assert same == TINY
    assert DistillConfig(backbone=TINY).student == TINY


def test_a_baseline_may_be_given_as_it_is() -> None:
    baseline = BackboneConfig(layers=1, width=32, heads=2, attention="full", prefix_tokens=3)
    assert DistillConfig(backbone=baseline, attention="full").student == baseline


@given(st.integers(1, 10**7), st.integers(1, 4096), st.floats(0.01, 300.0), st.integers(1, 10**6))
def test_epochs_become_the_fewest_steps_that_show_as_many_images(
    images: int, batch: int, epochs: float, steps: int
) -> None:
    config = DistillConfig(backbone=TINY, batch=batch, epochs=epochs)
    found = config.length(images)
    assert found >= 1
    assert found * batch >= epochs * images * (1 - 1e-12)
    assert found == 1 or (found - 1) * batch < epochs * images
    assert dataclasses.replace(config, steps=steps).length(images) == steps


def test_one_resolution_takes_the_place_of_all_phases() -> None:
    phases = (ResolutionPhase(sizes=(64, 32)), ResolutionPhase(sizes=(32, 96), from_share=0.5))
    config = DistillConfig(backbone=TINY, resolutions=phases)
    assert config.phases == phases
    assert config.sizes == (32, 64, 96)
    one = dataclasses.replace(config, resolution=48)
    assert one.phases == (ResolutionPhase(sizes=(48,)),)
    assert one.sizes == (48,)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_teachers_weigh_alike_unless_told_otherwise(count: int) -> None:
    config = DistillConfig(backbone=TINY, teacher=("some",) * count)
    assert config.weights == pytest.approx([1 / count] * count)
    told = tuple(float(number) for number in range(1, count + 1))
    assert dataclasses.replace(config, teacher_weights=told).weights == told


def test_the_defaults_are_the_first_stage_of_the_paper() -> None:
    config = DistillConfig(backbone=TINY)
    assert (config.batch, config.epochs, config.seed, config.sizes) == (768, 135.0, 42, (256,))
    assert (config.clip, config.ema, config.scale_targets) == (None, None, False)
    assert (config.loss.patches, config.loss.error) == (1.0, 1.0)
    assert config.views.trivial_augment


def test_larger_budgets_join_one_by_one_over_the_ramp() -> None:
    config = DistillConfig(backbone=TINY, budget_ramp=0.5)
    budgets = config.student.budgets
    seen = [{config.draw_budget(step, 400) for step in range(start, start + 50)}
            for start in range(0, 400, 50)]  # fmt: skip
    assert seen[0] == {budgets[0]}
    assert seen[-1] == set(budgets)
    assert all(max(filter(None, one)) <= max(filter(None, two))
               for one, two in itertools.pairwise(seen))  # fmt: skip
    flat = dataclasses.replace(config, budget_ramp=0.0)
    late = range(200, 400)
    assert [config.draw_budget(s, 400) for s in late] == [flat.draw_budget(s, 400) for s in late]
