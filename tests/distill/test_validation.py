"""Validation: every image once, at every budget, the same images each time."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.distill.runs import CPU, TINY, advance, build, context_of, pictures, rows
from veca.data.augment import center_view, inner_view
from veca.data.images import decode
from veca.distill import validation as module
from veca.distill.losses import distillation_losses
from veca.distill.trainer import Trainer
from veca.distill.validation import EvalPoint, Validator, _share, eval_points
from veca.runtime.distributed import Ranks
from veca.runtime.signals import StoppedError
from veca.teacher.teacher import Targets
from veca.train.schedules import ResolutionPhase


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures to train on."""
    return pictures(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven pictures to validate on."""
    return pictures(tmp_path_factory.mktemp("judged"), 7)


def built(images: Path, judged: Path, out: Path, **changes: Any) -> Trainer:
    """A run that has taken a step, so that budgets differ."""
    run = build(images, context_of(out), validation=str(judged), validation_images=7, **changes)
    run.fit_targets()
    advance(run, 1)
    return run


@pytest.fixture(scope="module")
def run(images: Path, judged: Path, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that validates at one resolution; validation changes nothing of it."""
    return built(images, judged, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def wanted(run: Trainer) -> list[dict[str, Any]]:
    """What the validation of that run must find."""
    return slow_rows(run)


def validator_of(
    run: Trainer, stop: Callable[[], bool] = lambda: False, ranks: Ranks | None = None
) -> Validator:
    """A validator of a run, with nothing in memory yet."""
    context = dataclasses.replace(run.context, ranks=ranks or run.ranks, stop=stop)
    return Validator(context, run.images, run.source, run.unreadable)


def views_of(run: Trainer, resolution: int) -> Tensor:
    """The middle of every validation image."""
    index, config = run.images.validation_index, run.config
    return torch.stack([
        center_view(
            decode(Path(index[int(number)].name)),
            resolution,
            config.views,
            run.source.margin.loaded,
        )
        for number in run.images.validation
    ])  # fmt: skip


def slow_rows(run: Trainer, resolution: int = 32) -> list[dict[str, Any]]:
    """Losses image by image."""
    student, side = run.student.eval(), resolution // run.config.student.patch_size
    found = []
    for budget, share in eval_points(run.config.student):
        losses = []
        for view in views_of(run, resolution):
            with torch.no_grad():
                (said,) = student(inner_view(view[None], resolution), budget, share)
                (wanted,) = run.source(view[None], (side, side))
            losses.append(
                [float(part) for part in distillation_losses(said.image, said.patches, wanted)]
            )
        image, patch_cosine, patch_error = np.mean(losses, axis=0).tolist()
        found.append({
            "budget": budget, "ffn": share, "resolution": resolution,
            "loss": image + patch_cosine + patch_error,
            "loss_image": image, "loss_patch_cosine": patch_cosine, "loss_patch_error": patch_error,
        })  # fmt: skip
    return found


def assert_close(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    """The same rows, but for rounding."""
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.keys() == other.keys()
        for name, value in other.items():
            exact = not isinstance(value, float)
            assert one[name] == (value if exact else pytest.approx(value, rel=1e-5))


@pytest.mark.parametrize("size", [1, 3, 7, 32])
def test_losses_are_means_over_single_images_whatever_goes_together(
    run: Trainer, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", size * 32 * 32)
    assert_close(validator_of(run).run(run.student), wanted)


def test_every_resolution_is_validated(images: Path, judged: Path, tmp_path: Path) -> None:
    run = built(images, judged, tmp_path, resolutions=(ResolutionPhase(sizes=(32, 16)),))
    validation = validator_of(run)
    wanted = slow_rows(run, 16) + slow_rows(run, 32)
    assert_close(validation.run(run.student), wanted)
    assert_close(validation.run(run.student), wanted)  # now from memory


@pytest.mark.parametrize("surroundings", ["reflected", "contextual"])
def test_teachers_see_a_margin_around_what_is_validated_on(
    images: Path, judged: Path, tmp_path: Path, surroundings: str
) -> None:
    changes = {"teacher_margin": 16, "teacher_surroundings": surroundings}
    run = built(images, judged, tmp_path, **changes)
    validation = validator_of(run)
    assert run.source.margin.pixels == 8
    assert_close(validation.run(run.student), slow_rows(run))
    assert_close(validation.run(run.student), slow_rows(run))  # now from memory


@given(st.integers(1, 60), st.integers(1, 9))
def test_every_image_is_dealt_once_and_all_processes_get_equally_many(
    images: int, count: int
) -> None:
    numbers = 3 + 2 * np.arange(images)
    dealt = [_share(numbers, rank, count) for rank in range(count)]
    own = [number for mine, real in dealt for number in mine[:real].tolist()]
    assert sorted(own) == numbers.tolist()
    assert len({len(mine) for mine, _ in dealt}) == 1
    assert all(set(mine.tolist()) <= set(numbers.tolist()) for mine, _ in dealt)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_losses_of_several_processes_add_up_to_those_of_one(
    run: Trainer, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", 2 * 32 * 32)
    totals = [0.0] * len(wanted)
    constants = [Targets(torch.randn(1, 12), torch.randn(1, 1, 20))]
    constant = validator_of(run).constant_loss(constants, 32)
    portions = set()
    for rank in range(count):
        mine = validator_of(run, ranks=Ranks(rank=rank, world_size=count, device=CPU))
        for place, row in enumerate(mine.run(run.student)):
            totals[place] += row["loss"]  # a process alone leaves out what others would add
        constant -= mine.constant_loss(constants, 32)
        portions.add(sum(1 for _ in mine._batches(32)))
    assert totals == pytest.approx([row["loss"] for row in wanted], rel=1e-5)
    assert len(portions) == 1  # so that none waits for another
    assert constant == pytest.approx(0, abs=1e-5)


def test_the_loss_of_constants_is_that_of_answering_them_for_every_image(run: Trainer) -> None:
    constants = [Targets(torch.randn(1, 12), torch.randn(1, 1, 20))]
    (targets,) = run.source(views_of(run, 32), (4, 4))
    image, patches = constants[0].image.expand(7, -1), constants[0].patches.expand(7, 16, -1)
    wanted = distillation_losses(image, patches, targets).total(run.config.loss)
    assert validator_of(run).constant_loss(constants, 32) == pytest.approx(float(wanted), rel=1e-5)


@contextmanager
def asked(run: Trainer) -> Iterator[list[int]]:
    """Notes how many images the teacher gets at once."""
    found: list[int] = []

    def count(_module: Any, given: tuple[Tensor, Any], _output: Targets) -> None:
        found.append(len(given[0]))

    hook = run.source.teachers[0].register_forward_hook(count)
    yield found
    hook.remove()


@pytest.mark.parametrize(("most", "times"), [(10**9, 1), (7 * 3 * 32 * 32, 3)])
def test_targets_are_kept_in_memory_where_they_fit(
    run: Trainer, monkeypatch: pytest.MonkeyPatch, most: int, times: int
) -> None:
    monkeypatch.setattr(module, "MAX_CACHED_BYTES", most)  # else room for the images alone
    validation = validator_of(run)
    with asked(run) as found:
        first = validation.run(run.student)
        validation.run(run.student)
        assert validation.run(run.student) == first
    assert sum(found) == 7 * times


def test_the_average_is_what_is_validated(images: Path, judged: Path, tmp_path: Path) -> None:
    run = built(images, judged, tmp_path, ema=0.9)
    assert run.ema is not None
    raw = slow_rows(run)
    run.validate()
    found = rows(tmp_path, "validation")
    with run.ema.applied():
        assert_close(found, [{"kind": "validation", "step": 1, **row} for row in slow_rows(run)])
    assert found[0]["loss"] != pytest.approx(raw[0]["loss"], rel=1e-5)


def test_an_unreadable_image_that_was_held_out_is_listed_before_training(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "images")
    run = build(folder, context_of(tmp_path / "run"), max_unreadable=1.0)
    name = run.images.index[int(run.images.validation[0])].name
    Path(name).write_bytes(b"no picture")
    validator_of(run).run(run.student)
    assert run.unreadable.count == 1
    assert name in run.folder.unreadable.read_text("utf-8")


def test_an_unreadable_image_of_a_folder_of_its_own_is_listed_too(
    images: Path, tmp_path: Path
) -> None:
    folder = pictures(tmp_path / "judged", 7)
    run = build(images, context_of(tmp_path / "run"), validation=str(folder), validation_images=7)
    (folder / "0002.png").write_bytes(b"no picture")
    validator_of(run).run(run.student)
    listed = run.folder.unreadable.read_text("utf-8")
    assert str(folder / "0002.png") in listed
    assert len(listed.splitlines()) == 1
    assert run.unreadable.count == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_validation_stops_when_it_is_asked_to(
    run: Trainer, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", 32 * 32)
    asked: list[bool] = [False] * (9 if kept else 2)
    validation = validator_of(run, lambda: not asked or asked.pop())
    if kept:
        validation.constant_loss([Targets(torch.zeros(1, 12), torch.zeros(1, 1, 20))], 32)
    with pytest.raises(StoppedError):
        validation.run(run.student)
    asked += [False] * 20
    assert_close(validation.run(run.student), wanted)  # what was half done is not kept


def test_every_budget_is_scored_whole_and_every_share_with_all_cores() -> None:
    config = dataclasses.replace(TINY, budgets=(2, 4, 8), ffn_shares=(0.25, 0.5, 1.0))
    assert eval_points(config) == [
        EvalPoint(2, 1.0),
        EvalPoint(4, 1.0),
        EvalPoint(8, 1.0),
        EvalPoint(8, 0.25),
        EvalPoint(8, 0.5),
    ]
    assert eval_points(dataclasses.replace(config, ffn_shares=(1.0,)))[3:] == []


def test_a_baseline_has_one_score_for_each_share() -> None:
    config = dataclasses.replace(
        TINY, attention="full", budgets=(8, 16, 24, 32, 40, 48, 56, 64), ffn_shares=(0.5, 1.0)
    )
    assert eval_points(config) == [EvalPoint(None, 1.0), EvalPoint(None, 0.5)]
