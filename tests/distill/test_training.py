"""One step of training, against a slow way to compute the same."""

import dataclasses
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.distill.built import Built, build, place_of
from tests.distill.runs import ALONE, pictures, small_config
from veca.data.augment import inner_view
from veca.data.loader import BatchSpec, batches, sample_order
from veca.data.transforms import IMAGENET
from veca.distill.config import CacheConfig
from veca.distill.losses import PARTS, LossConfig
from veca.distill.setup import fit_to_teachers
from veca.distill.training import (
    NonFiniteError,
    Training,
    load_student,
    loss_row,
    published_tensors,
    student_tensors,
)
from veca.runtime.device import seed_for
from veca.teacher.teacher import Targets
from veca.train.optimizers import Optimizers, gradient_norm
from veca.train.schedules import draw_budget, draw_resolution, draw_share, learning_rate


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def weights_of(run: Built) -> dict[str, Tensor]:
    """Copies of all weights."""
    return {name: value.detach().clone() for name, value in run.training.student.named_parameters()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are the same to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def cosine(one: Tensor, other: Tensor) -> float:
    """Cosine of two vectors."""
    return float(one @ other / (one.norm() * other.norm()))


MARGINS: list[dict[str, Any]] = [
    {},
    {"teacher_margin": 16, "teacher_surroundings": "reflected"},
    {"teacher_margin": 16, "teacher_surroundings": "contextual"},
]
"""One patch around the student's view, or none."""


def views_of(run: Built, step: int, cached: bool = False) -> Tensor:
    """The images of a step, made one by one."""
    config, numbers = run.training.config, run.pictures.training
    places, epochs = sample_order(len(numbers), config.batch, step, config.seed)
    size = draw_resolution(config.phases, config.seed, step, run.training.length)
    draws = np.zeros_like(epochs) if cached else epochs
    found = []
    for place, draw in zip(places, draws, strict=True):
        task = BatchSpec(0, 0, numbers[[place]], np.array([draw]), size)
        seed = config.cache.seed if cached else config.seed
        (batch,) = batches(
            run.pictures.index,
            [task],
            seed=seed,
            config=config.views,
            num_workers=0,
            margin=run.training.source.margin.loaded,
        )
        found.append(batch.images[0])
    return torch.stack(found)


def slow_parts(run: Built, step: int, targets: list[Targets], views: Tensor) -> Tensor:
    """The parts of the loss against each teacher, image by image and patch by patch."""
    config, student = run.training.config, run.training.student
    budget = draw_budget(config.student, config.seed, step)
    share = draw_share(config.student, config.seed, step)
    torch.manual_seed(seed_for(config.seed, step, "coordinates"))
    with torch.no_grad():
        seen = IMAGENET.normalize(inner_view(views, 32))
        features = student.train().backbone(seen, budget, share)
    found = []
    for adaptor, wanted in zip(student.adaptors, targets, strict=True):
        image, patches = adaptor(features)
        pairs = [
            (mine.detach(), theirs)
            for said, heard in zip(patches, wanted.patches, strict=True)
            for mine, theirs in zip(said, heard, strict=True)
        ]
        images = zip(image.detach(), wanted.image, strict=True)
        found.append([
            np.mean([1 - cosine(mine, theirs) for mine, theirs in images]),
            np.mean([1 - cosine(mine, theirs) for mine, theirs in pairs]),
            np.mean([float((mine - theirs).square().mean()) for mine, theirs in pairs]),
        ])  # fmt: skip
    return torch.tensor(found)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("parts", [1, 2])
def test_a_step_logs_the_loss_of_its_images_at_its_budget(
    images: Path, tmp_path: Path, parts: int, margin: dict[str, Any]
) -> None:
    changes: dict[str, Any] = {
        **margin,
        "teacher": ("pixels", "others"),
        "teacher_weights": (1.0, 0.5),
        "loss": LossConfig(patches=0.7, error=0.4),
    }
    efficiency = dataclasses.replace(ALONE, accumulate=parts)
    run = build(images, place_of(tmp_path), efficiency, **changes)
    fit_to_teachers(run.training, run.pictures, lambda: False)
    run.advance(2)
    views = views_of(run, 2)
    wanted = slow_parts(run, 2, run.training.source(views, (4, 4)), views)

    (report,) = run.advance(1)
    row = report.row
    config = run.training.config
    assert (row["kind"], row["step"], report.images, report.stop) == ("train", 2, 4, False)
    assert row["budget"] == draw_budget(config.student, config.seed, 2)
    assert row["ffn"] == draw_share(config.student, config.seed, 2)
    assert row["learning_rate"] == learning_rate(config.schedule, 2, 8)
    assert row["resolution"] == 32
    totals = wanted @ torch.tensor([1.0, 0.7, 0.7 * 0.4], dtype=wanted.dtype)
    assert row["loss_by_teacher"] == pytest.approx(totals.tolist(), rel=1e-4)
    assert row["loss"] == pytest.approx(float(totals[0] + 0.5 * totals[1]), rel=1e-4)
    weighted = (wanted[0] + 0.5 * wanted[1]).tolist()
    assert [row[name] for name in PARTS] == pytest.approx(weighted, rel=1e-4)


def test_a_batch_in_parts_has_the_gradient_of_the_whole(images: Path, tmp_path: Path) -> None:
    norms = []
    for parts in (1, 2, 4):
        efficiency = dataclasses.replace(ALONE, accumulate=parts)
        (report,) = build(images, place_of(tmp_path), efficiency).advance(1)
        norms.append(report.row["gradient_norm"])
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-5)


def test_a_step_does_not_depend_on_what_was_drawn_before_it(images: Path, tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        run = build(images, place_of(tmp_path), ema=0.9)
        torch.manual_seed(seed)
        reports = run.advance(2)
        found.append(([report.row for report in reports], weights_of(run)))
    assert found[0][0] == found[1][0]
    assert equal(found[0][1], found[1][1])


def test_every_weight_learns_unless_the_budget_leaves_it_out(images: Path, tmp_path: Path) -> None:
    run = build(images, place_of(tmp_path), budget_weights=(1.0, 0.0))
    before = weights_of(run)
    run.advance(2)
    after = weights_of(run)
    still = {name for name in before if torch.equal(before[name], after[name])}
    assert still == {"backbone.core_bank.tokens.1", "backbone.core_bank.points.1"}
    assert all(parameter.grad is None for parameter in run.training.student.parameters())


def test_gradients_are_clipped_but_logged_as_they_were(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    step = Optimizers.step

    def watched(self: Optimizers, rate: float) -> None:
        used.append(float(gradient_norm(self._named.values())))
        step(self, rate)

    monkeypatch.setattr(Optimizers, "step", watched)
    (free,) = build(images, place_of(tmp_path)).advance(1)
    (tight,) = build(images, place_of(tmp_path), clip=0.01).advance(1)
    (loose,) = build(images, place_of(tmp_path), clip=1000.0).advance(1)
    norm = free.row["gradient_norm"]
    assert norm > 0.1
    assert tight.row["gradient_norm"] == loose.row["gradient_norm"] == norm
    assert used == pytest.approx([norm, 0.01, norm], rel=1e-4)


def poison(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Training], float]) -> None:
    """Let steps go wrong after their backward pass; the losses are multiplied by the answer."""
    accumulate = Training._accumulate

    def harmed(self: Training, *given: Any) -> Any:
        return accumulate(self, *given) * harm(self)

    monkeypatch.setattr(Training, "_accumulate", harmed)


def infinite_gradient(training: Training) -> float:
    """One number of one gradient is infinite."""
    gradient = training.student.get_parameter("backbone.final_norm.bias").grad
    assert gradient is not None
    gradient[0] = float("inf")
    return 1.0


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_count_of_skips(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    run = build(images, place_of(tmp_path), ema=0.9)
    run.advance(1)
    before, average = (
        weights_of(run),
        {n: t.clone() for n, t in published_tensors(run.training).items()},
    )
    state = {name: tensor.clone() for name, tensor in run.training.optimizers.tensors().items()}
    with monkeypatch.context() as patch:
        poison(patch, infinite_gradient if kind == "gradient" else lambda _: float("nan"))
        (report,) = run.advance(1)
    assert report.row["skipped"] is True
    assert report.row["gradient_norm"] is None
    assert (report.row["loss"] is None) == (kind == "loss")
    assert equal(weights_of(run), before)
    assert equal(published_tensors(run.training), average)
    assert equal(run.training.optimizers.tensors(), state)
    progress = run.training.progress
    assert (progress.step, progress.skipped, progress.consecutive_skips) == (2, 1, 1)
    assert all(parameter.grad is None for parameter in run.training.student.parameters())

    (report,) = run.advance(1)
    assert "skipped" not in report.row
    assert (progress.skipped, progress.consecutive_skips) == (1, 0)
    assert not equal(weights_of(run), before)


@pytest.mark.parametrize("most", [0, 2])
def test_more_skips_in_a_row_than_allowed_end_the_run(
    images: Path, tmp_path: Path, most: int
) -> None:
    training = build(images, place_of(tmp_path), max_skips=most).training
    training.progress.step, training.progress.consecutive_skips = 9, most
    training.check_skips()
    training.progress.consecutive_skips += 1
    with pytest.raises(
        NonFiniteError, match=rf"{most + 1} steps in a row .* up to step 9; .*--clip"
    ):
        training.check_skips()


def test_a_step_tells_that_a_stop_was_asked_for(images: Path, tmp_path: Path) -> None:
    run = build(images, place_of(tmp_path))
    with closing(run.feed()) as feed:
        assert run.training.take_step(feed, True).stop
        assert not run.training.take_step(feed, False).stop


def test_unreadable_images_of_a_step_are_counted(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "images")
    run = build(folder, place_of(tmp_path / "run"), max_unreadable=1.0)
    broken = run.pictures.training[:3]
    for number in broken:
        Path(run.pictures.index[int(number)].name).write_bytes(b"no picture")
    run.advance(6)  # 24 samples of 22 images: each was met
    assert run.training.unreadable.count == 3
    listed = (tmp_path / "run" / "unreadable.jsonl").read_text("utf-8").splitlines()
    assert len(listed) == 3


@pytest.mark.parametrize("margin", MARGINS)
def test_kept_outputs_teach_what_the_teacher_teaches(
    images: Path, tmp_path: Path, margin: dict[str, Any]
) -> None:
    place = place_of(tmp_path / "run", cache=tmp_path / "kept")
    cache = CacheConfig(crops=1, dtype="float16", seed=5)
    run = build(images, place, cache=cache, **margin)
    fit_to_teachers(run.training, run.pictures, lambda: False)
    views = views_of(run, 0, cached=True)
    wanted = slow_parts(run, 0, run.training.source(views, (4, 4)), views)
    teacher = run.training.source.teachers[0]
    teacher.register_forward_hook(lambda *_: pytest.fail("the teacher was asked"))
    (report,) = run.advance(1)
    assert [report.row[name] for name in PARTS] == pytest.approx(wanted[0].tolist(), rel=2e-3)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_what_is_published_is_the_average_where_there_is_one(
    images: Path, tmp_path: Path, ema: float | None
) -> None:
    run = build(images, place_of(tmp_path), ema=ema)
    run.advance(1)
    published = {name: tensor.clone() for name, tensor in published_tensors(run.training).items()}
    assert equal(student_tensors(run.training), weights_of(run))
    assert equal(published, weights_of(run)) == (ema is None)
    load_student(run.training, {name: tensor + 1 for name, tensor in published.items()})
    assert equal(weights_of(run), {name: tensor + 1 for name, tensor in published.items()})


def test_a_row_weighs_the_teachers(images: Path) -> None:
    config = small_config(images, teacher=("a", "b"), loss=LossConfig(patches=2.0, error=3.0))
    row = loss_row(config, torch.tensor([[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]], dtype=torch.float64))
    assert row == {
        "loss": 0.5 * (1 + 2 * (2 + 9)) + 0.5 * (5 + 2 * (6 + 21)),
        "loss_image": 3.0,
        "loss_patch_cosine": 4.0,
        "loss_patch_error": 5.0,
        "loss_by_teacher": [23.0, 59.0],
    }


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(0, 0), (1, 2)])
def test_a_row_with_a_number_that_is_not_finite_has_none(
    images: Path, bad: float, place: tuple[int, int]
) -> None:
    parts = torch.ones(2, 3, dtype=torch.float64)
    parts[place] = bad
    row = loss_row(small_config(images, teacher=("a", "b")), parts)
    assert row == dict.fromkeys(("loss", *PARTS, "loss_by_teacher"))


def test_a_row_tells_further_parts_and_the_objective_beside_the_papers_loss(images: Path) -> None:
    loss = LossConfig(classes=0.5, relations=2.0)
    parts = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0]], dtype=torch.float64)
    row = loss_row(small_config(images, loss=loss), parts)
    assert row["loss"] == 6.0
    assert (row["loss_classes"], row["loss_relations"]) == (4.0, 5.0)
    assert row["objective"] == 6.0 + 0.5 * 4 + 2 * 5
    parts[0, 3] = float("nan")
    assert loss_row(small_config(images, loss=loss), parts) == dict.fromkeys(row)


def test_relations_change_what_is_learned_and_are_logged(images: Path, tmp_path: Path) -> None:
    plain = build(images, place_of(tmp_path / "plain"))
    related = build(images, place_of(tmp_path / "related"), loss=LossConfig(relations=5.0))
    (first,), (second,) = plain.advance(1), related.advance(1)
    assert first.row["loss"] == second.row["loss"]
    assert "objective" not in first.row
    assert second.row["objective"] == pytest.approx(
        second.row["loss"] + 5 * second.row["loss_relations"]
    )
    assert not equal(weights_of(plain), weights_of(related))
