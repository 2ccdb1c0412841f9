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

from tests.distill.built import CPU, Built, build, place_of
from tests.distill.runs import TINY, pictures
from veca.data.augment import center_view, inner_view
from veca.data.images import decode
from veca.distill import validation as module
from veca.distill.losses import distillation_losses
from veca.distill.setup import fit_to_teachers
from veca.distill.target_scaling import Moments
from veca.distill.validation import Cell, Validation, _dealt, cells
from veca.runtime.distributed import Ranks
from veca.runtime.shards import StoppedError
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


def built(images: Path, judged: Path, out: Path, **changes: Any) -> Built:
    """A run that has taken a step, so that budgets differ."""
    run = build(images, place_of(out), validation=str(judged), validation_images=7, **changes)
    fit_to_teachers(run.training, run.pictures, lambda: False)
    run.advance(1)
    return run


@pytest.fixture(scope="module")
def run(images: Path, judged: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A run that validates at one resolution; validation changes nothing of it."""
    return built(images, judged, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def wanted(run: Built) -> list[dict[str, Any]]:
    """What the validation of that run must find."""
    return slow_rows(run)


def validation_of(run: Built, asked_to_stop: Callable[[], bool] = lambda: False) -> Validation:
    """The validation of a run."""
    return Validation(run.training, run.pictures, asked_to_stop)


def views_of(run: Built, resolution: int) -> Tensor:
    """The middle of every validation image."""
    index, config = run.pictures.validation_index, run.training.config
    return torch.stack([
        center_view(
            decode(Path(index[int(number)].name)),
            resolution,
            config.views,
            run.training.source.margin.loaded,
        )
        for number in run.pictures.validation
    ])  # fmt: skip


def slow_rows(run: Built, resolution: int = 32) -> list[dict[str, Any]]:
    """Losses image by image."""
    training = run.training
    student, side = training.student.eval(), resolution // training.config.student.patch_size
    found = []
    for budget, share in cells(training.config.student):
        losses = []
        for view in views_of(run, resolution):
            with torch.no_grad():
                (said,) = student(inner_view(view[None], resolution), budget, share)
                (wanted,) = training.source(view[None], (side, side))
            losses.append(
                [float(part) for part in distillation_losses(said.image, said.patches, wanted)]
            )
        image, patch_cosine, patch_error = np.mean(losses, axis=0).tolist()
        found.append({
            "kind": "validation", "step": training.progress.step, "budget": budget, "ffn": share,
            "resolution": resolution, "loss": image + patch_cosine + patch_error,
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
    run: Built, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", size * 32 * 32)
    assert_close(validation_of(run).rows(), wanted)


def test_every_resolution_is_validated(images: Path, judged: Path, tmp_path: Path) -> None:
    run = built(images, judged, tmp_path, resolutions=(ResolutionPhase(sizes=(32, 16)),))
    validation = validation_of(run)
    wanted = slow_rows(run, 16) + slow_rows(run, 32)
    assert_close(validation.rows(), wanted)
    assert_close(validation.rows(), wanted)  # now from memory


@pytest.mark.parametrize("surroundings", ["reflected", "contextual"])
def test_teachers_see_a_margin_around_what_is_validated_on(
    images: Path, judged: Path, tmp_path: Path, surroundings: str
) -> None:
    changes = {"teacher_margin": 16, "teacher_surroundings": surroundings}
    run = built(images, judged, tmp_path, **changes)
    validation = validation_of(run)
    assert run.training.source.margin.pixels == 8
    assert_close(validation.rows(), slow_rows(run))
    assert_close(validation.rows(), slow_rows(run))  # now from memory


@given(st.integers(1, 60), st.integers(1, 9))
def test_every_image_is_dealt_once_and_all_processes_get_equally_many(
    images: int, count: int
) -> None:
    numbers = 3 + 2 * np.arange(images)
    dealt = [_dealt(numbers, rank, count) for rank in range(count)]
    own = [number for mine, real in dealt for number in mine[:real].tolist()]
    assert sorted(own) == numbers.tolist()
    assert len({len(mine) for mine, _ in dealt}) == 1
    assert all(set(mine.tolist()) <= set(numbers.tolist()) for mine, _ in dealt)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_the_losses_of_several_processes_add_up_to_those_of_one(
    run: Built, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", 2 * 32 * 32)
    (moments,) = validation_of(run).moments(32)
    totals = [0.0] * len(wanted)
    together = (Moments(12), Moments(20))
    portions = set()
    for rank in range(count):
        worker = Ranks(rank=rank, world_size=count, device=CPU)
        monkeypatch.setattr(run.training, "workers", worker)
        mine = validation_of(run)
        for place, row in enumerate(mine.rows()):
            totals[place] += row["loss"]  # a process alone leaves out what others would add
        for one, part in zip(together, mine.moments(32)[0], strict=True):
            one.merge(part)
        portions.add(sum(1 for _ in mine._portions(32)))
    assert totals == pytest.approx([row["loss"] for row in wanted], rel=1e-5)
    assert len(portions) == 1  # so that none waits for another
    for one, other in zip(together, moments, strict=True):
        assert one.count == other.count
        torch.testing.assert_close(one.sum, other.sum)


def test_moments_are_those_of_the_scaled_targets(run: Built) -> None:
    (found,) = validation_of(run).moments(32)
    (targets,) = run.training.source(views_of(run, 32), (4, 4))
    assert int(found.image.count) == 7
    assert int(found.patches.count) == 7 * 16
    torch.testing.assert_close(found.image.mean.float(), targets.image.mean(0))
    torch.testing.assert_close(found.patches.mean.float(), targets.patches.mean((0, 1)))


@contextmanager
def asked(run: Built) -> Iterator[list[int]]:
    """Notes how many images the teacher gets at once."""
    found: list[int] = []

    def count(_module: Any, given: tuple[Tensor, Any], _output: Targets) -> None:
        found.append(len(given[0]))

    hook = run.training.source.teachers[0].register_forward_hook(count)
    yield found
    hook.remove()


@pytest.mark.parametrize(("most", "times"), [(10**9, 1), (7 * 3 * 32 * 32, 3)])
def test_targets_are_kept_in_memory_where_they_fit(
    run: Built, monkeypatch: pytest.MonkeyPatch, most: int, times: int
) -> None:
    monkeypatch.setattr(module, "MOST_KEPT_BYTES", most)  # else room for the images alone
    validation = validation_of(run)
    with asked(run) as found:
        first = validation.rows()
        validation.moments(32)
        assert validation.rows() == first
    assert sum(found) == 7 * times


def test_the_limit_counts_all_resolutions_together(
    images: Path, judged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = built(images, judged, tmp_path, resolutions=(ResolutionPhase(sizes=(32, 16)),))
    small = 7 * (3 * 16 * 16 + 4 * (12 + 4 * 20))
    large = 7 * (3 * 32 * 32 + 4 * (12 + 16 * 20))
    for most, times in ((small + large, 1), (small + large - 1, 2)):
        monkeypatch.setattr(module, "MOST_KEPT_BYTES", most)
        validation = validation_of(run)
        with asked(run) as found:
            validation.rows()
            validation.rows()
        assert sum(found) == 7 + 7 * times


def test_the_average_is_what_is_validated(images: Path, judged: Path, tmp_path: Path) -> None:
    run = built(images, judged, tmp_path, ema=0.9)
    average = run.training.average
    assert average is not None
    found, raw = validation_of(run).rows(), slow_rows(run)
    with average.in_place():
        assert_close(found, slow_rows(run))
    assert found[0]["loss"] != pytest.approx(raw[0]["loss"], rel=1e-5)


def test_an_unreadable_image_is_replaced_by_another_one(images: Path, tmp_path: Path) -> None:
    folder = pictures(tmp_path / "judged", 7)
    run = built(images, folder, tmp_path / "run")
    (folder / "0002.png").write_bytes(b"no picture")
    one, other = validation_of(run).rows(), validation_of(run).rows()
    assert one == other
    assert all(row["loss"] is not None for row in one)


def test_an_unreadable_image_that_was_held_out_is_listed_before_training(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "images")
    run = build(folder, place_of(tmp_path / "run"), max_unreadable=1.0)
    name = run.pictures.index[int(run.pictures.validation[0])].name
    Path(name).write_bytes(b"no picture")
    validation_of(run).moments(32)
    assert run.training.unreadable.count == 1
    assert name in run.place.folder.unreadable.read_text("utf-8")


def test_an_unreadable_image_of_a_folder_of_its_own_is_listed_too(
    images: Path, tmp_path: Path
) -> None:
    folder = pictures(tmp_path / "judged", 7)
    run = build(images, place_of(tmp_path / "run"), validation=str(folder), validation_images=7)
    (folder / "0002.png").write_bytes(b"no picture")
    validation_of(run).moments(32)
    listed = run.place.folder.unreadable.read_text("utf-8")
    assert str(folder / "0002.png") in listed
    assert len(listed.splitlines()) == 1
    assert run.training.unreadable.count == 0


@pytest.mark.parametrize("kept", [False, True])
def test_a_validation_stops_when_it_is_asked_to(
    run: Built, wanted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    monkeypatch.setattr(module, "BATCH_PIXELS", 32 * 32)
    asked: list[bool] = [False] * (9 if kept else 2)
    validation = validation_of(run, lambda: not asked or asked.pop())
    if kept:
        validation.moments(32)
    with pytest.raises(StoppedError):
        validation.rows()
    asked += [False] * 20
    assert_close(validation.rows(), wanted)  # what was half done is not kept


def test_validation_leaves_the_weights_alone_and_needs_no_gradients(run: Built) -> None:
    before = {name: value.clone() for name, value in run.training.student.state_dict().items()}
    validation_of(run).rows()
    for name, value in run.training.student.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.grad is None for parameter in run.training.student.parameters())


def test_every_budget_is_scored_whole_and_every_share_with_all_cores() -> None:
    config = dataclasses.replace(TINY, budgets=(2, 4, 8), ffn_shares=(0.25, 0.5, 1.0))
    assert cells(config) == [Cell(2, 1.0), Cell(4, 1.0), Cell(8, 1.0), Cell(8, 0.25), Cell(8, 0.5)]
    assert cells(dataclasses.replace(config, ffn_shares=(1.0,)))[3:] == []


def test_a_baseline_has_one_score_for_each_share() -> None:
    config = dataclasses.replace(
        TINY, attention="full", budgets=(8, 16, 24, 32, 40, 48, 56, 64), ffn_shares=(0.5, 1.0)
    )
    assert cells(config) == [Cell(None, 1.0), Cell(None, 0.5)]
