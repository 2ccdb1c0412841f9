"""Training: a step against a slow way to compute it, the order of a run, saving and restoring."""

import dataclasses
import errno
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import veca
from tests.distill.runs import ALONE, CPU, PixelTeacher, advance, build, context_of, pictures
from veca.data.augment import inner_view
from veca.data.loader import BatchSpec, batches, sample_order
from veca.data.transforms import IMAGENET
from veca.distill.config import CacheConfig
from veca.distill.losses import PART_NAMES, LossConfig
from veca.distill.run_folder import RunError
from veca.distill.trainer import MAX_FAILED_SAVES, NonFiniteError, Trainer
from veca.distill.validation import Validator
from veca.runtime.device import seed_for
from veca.runtime.distributed import Ranks
from veca.runtime.signals import StoppedError
from veca.teacher.teacher import Targets
from veca.train.checkpoint import Checkpoint, CheckpointManager
from veca.train.optimizers import Optimizers, gradient_norm
from veca.train.parallel import full_parameters
from veca.train.schedules import draw_budget, draw_resolution, draw_share, learning_rate

MARGINS: list[dict[str, Any]] = [
    {},
    {"teacher_margin": 16, "teacher_surroundings": "reflected"},
    {"teacher_margin": 16, "teacher_surroundings": "contextual"},
]
"""One patch around the student's view, or none."""


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    """Copies of all weights."""
    return {name: tensor.clone() for name, tensor in full_parameters(trainer.student).items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors are the same to the bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# One step


def cosine(one: Tensor, other: Tensor) -> float:
    """Cosine of two vectors."""
    return float(one @ other / (one.norm() * other.norm()))


def views_of(trainer: Trainer, step: int, cached: bool = False) -> Tensor:
    """The images of a step, made one by one."""
    config, numbers = trainer.config, trainer.images.training
    places, epochs = sample_order(len(numbers), config.batch, step, config.seed)
    size = draw_resolution(config.phases, config.seed, step, trainer.length)
    draws = np.zeros_like(epochs) if cached else epochs
    found = []
    for place, draw in zip(places, draws, strict=True):
        (batch,) = batches(
            trainer.images.index,
            [BatchSpec(0, 0, numbers[[place]], np.array([draw]), size)],
            seed=config.cache.seed if cached else config.seed,
            config=config.views,
            num_workers=0,
            margin=trainer.source.margin.loaded,
        )
        found.append(batch.images[0])
    return torch.stack(found)


def slow_parts(trainer: Trainer, step: int, targets: list[Targets], views: Tensor) -> Tensor:
    """The parts of the loss against each teacher, image by image and patch by patch."""
    config, student = trainer.config, trainer.student
    budget = draw_budget(config.student, config.seed, step)
    share = draw_share(config.student, config.seed, step)
    torch.manual_seed(seed_for(config.seed, step, "coordinates"))
    with torch.no_grad():
        seen = IMAGENET.normalize(inner_view(views, 32))
        features = student.train().backbone(seen, budget, share)
    found = []
    for adaptor, target in zip(student.adaptors, targets, strict=True):
        image, patches = adaptor(features)
        pairs = [
            (mine.detach(), theirs)
            for pred, expected in zip(patches, target.patches, strict=True)
            for mine, theirs in zip(pred, expected, strict=True)
        ]
        whole = zip(image.detach(), target.image, strict=True)
        found.append([
            np.mean([1 - cosine(mine, theirs) for mine, theirs in whole]),
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
    options = dataclasses.replace(ALONE, accumulate=parts)
    trainer = build(images, context_of(tmp_path), options, **changes)
    trainer.fit_targets()
    advance(trainer, 2)
    views = views_of(trainer, 2)
    expected = slow_parts(trainer, 2, trainer.source(views, (4, 4)), views)

    (row,) = advance(trainer, 1)
    config = trainer.config
    assert (row["kind"], row["step"], row["resolution"]) == ("train", 2, 32)
    assert row["budget"] == draw_budget(config.student, config.seed, 2)
    assert row["ffn"] == draw_share(config.student, config.seed, 2)
    assert row["learning_rate"] == learning_rate(config.schedule, 2, 8)
    totals = expected @ torch.tensor([1.0, 0.7, 0.7 * 0.4], dtype=expected.dtype)
    assert row["loss_by_teacher"] == pytest.approx(totals.tolist(), rel=1e-4)
    assert row["loss"] == pytest.approx(float(totals[0] + 0.5 * totals[1]), rel=1e-4)
    weighted = (expected[0] + 0.5 * expected[1]).tolist()
    assert [row[name] for name in PART_NAMES] == pytest.approx(weighted, rel=1e-4)


@pytest.mark.parametrize("margin", MARGINS)
def test_cached_outputs_teach_what_the_teacher_teaches(
    images: Path, tmp_path: Path, margin: dict[str, Any]
) -> None:
    trainer = build(
        images, context_of(tmp_path / "run"), cache_teacher=tmp_path / "cache",
        cache=CacheConfig(crops=1, dtype="float16", seed=5), **margin,
    )  # fmt: skip
    trainer.fit_targets()
    views = views_of(trainer, 0, cached=True)
    expected = slow_parts(trainer, 0, trainer.source(views, (4, 4)), views)
    teacher = trainer.source.teachers[0]
    teacher.register_forward_hook(lambda *_: pytest.fail("the teacher was called"))
    (row,) = advance(trainer, 1)
    assert [row[name] for name in PART_NAMES] == pytest.approx(expected[0].tolist(), rel=2e-3)


def test_an_accumulated_batch_has_the_gradient_of_the_whole(images: Path, tmp_path: Path) -> None:
    norms = []
    for parts in (1, 2, 4):
        options = dataclasses.replace(ALONE, accumulate=parts)
        (row,) = advance(build(images, context_of(tmp_path), options), 1)
        norms.append(row["gradient_norm"])
    assert norms[1:] == pytest.approx([norms[0]] * 2, rel=1e-5)


def test_a_step_does_not_depend_on_what_was_drawn_before_it(images: Path, tmp_path: Path) -> None:
    class DrawingTeacher(PixelTeacher):
        """Adds noise."""

        def forward(self, *given: Any) -> Targets:
            found = super().forward(*given)
            return Targets(found.image, found.patches + torch.randn_like(found.patches))

    found = []
    for seed in (1, 2):
        trainer = build(images, context_of(tmp_path), ema=0.9)
        trainer.source.teachers[0] = DrawingTeacher()
        torch.manual_seed(seed)
        found.append((advance(trainer, 2), weights_of(trainer)))
    assert found[0][0] == found[1][0]
    assert equal(found[0][1], found[1][1])


def test_every_weight_learns_unless_the_budget_leaves_it_out(images: Path, tmp_path: Path) -> None:
    trainer = build(images, context_of(tmp_path), budget_weights=(1.0, 0.0))
    before = weights_of(trainer)
    advance(trainer, 2)
    after = weights_of(trainer)
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {"backbone.core_bank.tokens.1", "backbone.core_bank.points.1"}
    assert all(parameter.grad is None for parameter in trainer.student.parameters())


def test_gradients_are_clipped_but_logged_as_they_were(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    step = Optimizers.step

    def watched(self: Optimizers, rate: float) -> None:
        used.append(float(gradient_norm(self._named.values())))
        step(self, rate)

    monkeypatch.setattr(Optimizers, "step", watched)
    limits = (None, 0.01, 1000.0)
    rows = [advance(build(images, context_of(tmp_path), clip=limit), 1)[0] for limit in limits]
    norm = rows[0]["gradient_norm"]
    assert norm > 0.1
    assert {row["gradient_norm"] for row in rows} == {norm}
    assert used == pytest.approx([norm, 0.01, norm], rel=1e-4)


def poison(monkeypatch: pytest.MonkeyPatch, harm: Callable[[Trainer], float]) -> None:
    """Let steps go wrong after their backward pass; the losses are multiplied by the result."""
    backward = Trainer._backward

    def harmed(self: Trainer, *given: Any) -> Any:
        return backward(self, *given) * harm(self)

    monkeypatch.setattr(Trainer, "_backward", harmed)


def infinite_gradient(trainer: Trainer) -> float:
    """Make one number of one gradient infinite."""
    gradient = trainer.student.get_parameter("backbone.final_norm.bias").grad
    assert gradient is not None
    gradient[0] = float("inf")
    return 1.0


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing_but_the_count_of_skips(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    trainer = build(images, context_of(tmp_path), ema=0.9)
    advance(trainer, 1)
    before, average = weights_of(trainer), trainer.published()
    average = {name: tensor.clone() for name, tensor in average.items()}
    state = {name: tensor.clone() for name, tensor in trainer.optimizers.state_dict().items()}
    with monkeypatch.context() as patch:
        poison(patch, infinite_gradient if kind == "gradient" else lambda _: float("nan"))
        (row,) = advance(trainer, 1)
    assert row["skipped"] is True
    assert row["gradient_norm"] is None
    assert (row["loss"] is None) == (kind == "loss")
    assert equal(weights_of(trainer), before)
    assert equal(trainer.published(), average)
    assert equal(trainer.optimizers.state_dict(), state)
    progress = trainer.state
    assert (progress.step, progress.skipped, progress.consecutive_skips) == (2, 1, 1)
    assert all(parameter.grad is None for parameter in trainer.student.parameters())

    (row,) = advance(trainer, 1)
    assert "skipped" not in row
    assert (progress.skipped, progress.consecutive_skips) == (1, 0)
    assert not equal(weights_of(trainer), before)


def test_a_step_reports_that_a_stop_was_requested(images: Path, tmp_path: Path) -> None:
    answers = iter([False, True, False])
    trainer = build(images, context_of(tmp_path, stop=lambda: next(answers)))
    with closing(trainer.batches()) as feed:
        assert [trainer.train_step(feed)[1] for _ in range(3)] == [False, True, False]


def test_unreadable_images_of_a_step_are_counted(tmp_path: Path) -> None:
    trainer = build(pictures(tmp_path / "images"), context_of(tmp_path / "run"), max_unreadable=1.0)
    for number in trainer.images.training[:3]:
        Path(trainer.images.index[int(number)].name).write_bytes(b"no picture")
    advance(trainer, 6)  # 24 samples of 22 images: each was read
    assert trainer.unreadable.count == 3
    listed = (tmp_path / "run" / "unreadable.jsonl").read_text("utf-8").splitlines()
    assert len(listed) == 3


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch's own, which it means to hide
def test_compiled_blocks_learn_the_same(images: Path, tmp_path: Path) -> None:
    found = []
    for chosen in (False, True):
        options = dataclasses.replace(ALONE, compile=chosen, compile_backend="eager")
        drawn = (1.0, 0.0)  # one graph is enough
        trainer = build(
            images, context_of(tmp_path), options, budget_weights=drawn, share_weights=drawn
        )
        compiled = [block._compiled_call_impl for block in trainer.student.backbone.blocks]
        assert all((call is not None) == chosen for call in compiled)
        found.append([row["loss"] for row in advance(trainer, 2)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


def test_running_out_of_memory_names_the_options_that_save_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

    monkeypatch.setattr(Trainer, "_backward", full)
    with pytest.raises(RunError, match=r"out of memory .*--accumulate, --checkpoint-activations"):
        advance(build(images, context_of(tmp_path)), 1)


# Statistics of the targets


def first_batch(trainer: Trainer, count: int) -> BatchSpec:
    """The first images of the first epoch in their first views."""
    numbers = trainer.images.training
    places, _ = sample_order(len(numbers), count, 0, trainer.config.seed)
    return BatchSpec(0, 0, numbers[places], np.zeros(count, np.int64), 32)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("count", [8, 1000])
def test_statistics_are_those_of_the_first_views_of_training_images(
    images: Path, tmp_path: Path, count: int, margin: dict[str, Any]
) -> None:
    trainer = build(images, context_of(tmp_path), statistics_images=count, **margin)
    trainer.fit_targets()
    (batch,) = batches(
        trainer.images.index,
        [first_batch(trainer, min(count, 22))],
        seed=trainer.config.seed,
        config=trainer.config.views,
        num_workers=0,
        margin=trainer.source.margin.loaded,
    )
    targets = trainer.source.margin.ask(PixelTeacher(), batch.images, (4, 4))
    scaling = trainer.source.scaling(0)
    torch.testing.assert_close(scaling.image_center, targets.image.mean(0))
    torch.testing.assert_close(scaling.patch_center, targets.patches.mean((0, 1)))
    deviations = targets.patches - targets.patches.mean((0, 1))
    torch.testing.assert_close(scaling.patch_scale, deviations.square().mean().sqrt())


def test_statistics_come_from_the_cache_if_there_is_one(images: Path, tmp_path: Path) -> None:
    trainer = build(
        images, context_of(tmp_path / "run"), cache_teacher=tmp_path / "cache",
        cache=CacheConfig(crops=2, dtype="float16"),
    )  # fmt: skip
    trainer.fit_targets()
    assert trainer.cache is not None
    raw = trainer.cache.lookup(first_batch(trainer, 8), CPU)
    cached = trainer.source.scaled(raw)[0]
    assert cached.patches.mean((0, 1)).abs().max() < 1e-3
    assert float(cached.patches.square().mean()) == pytest.approx(1, abs=1e-3)


def test_statistics_end_when_a_stop_is_requested(images: Path, tmp_path: Path) -> None:
    trainer = build(images, context_of(tmp_path, stop=lambda: True))
    with pytest.raises(StoppedError):
        trainer.fit_targets()
    assert float(trainer.source.scaling(0).image_scale) == 1.0


# The order of a run

Events = list[tuple[str, int]]


class ScriptedValidator(Validator):
    """Returns the losses it was given; stops the run when there are none left."""

    def __init__(self, trainer: Trainer, losses: Sequence[float | None], events: Events) -> None:
        self.trainer, self.losses, self.events = trainer, list(losses), events

    def run(self, student: nn.Module) -> list[dict[str, Any]]:
        """Two budgets around the next loss."""
        self.events.append(("validate", self.trainer.state.step))
        if not self.losses:
            raise StoppedError
        loss = self.losses.pop(0)
        found = [None, 1.0] if loss is None else [loss - 0.1, loss + 0.1]
        return [
            {"budget": budget, "ffn": 1.0, "resolution": 32, "loss": value}
            for budget, value in zip((2, 4), found, strict=True)
        ]


def noted(
    monkeypatch: pytest.MonkeyPatch, trainer: Trainer, losses: Sequence[float | None]
) -> Events:
    """Let a trainer validate by script, and note what it would write."""
    events: Events = []
    trainer.validator = ScriptedValidator(trainer, losses, events)

    def write(what: str, _: Callable[[], None]) -> str:
        name = "best" if what == "the best model" else "save"
        state = trainer.state
        events.append(("finished" if state.finished else name, state.step))
        return ""

    monkeypatch.setattr(trainer, "_try_to_write", write)
    return events


def seven_steps(images: Path, out: Path, save_every: int = 3, **changes: Any) -> Trainer:
    """A run of seven steps that validates every four."""
    options = dataclasses.replace(ALONE, save_every=save_every)
    return build(images, context_of(out), options, **{"steps": 7, "validate_every": 4, **changes})


def test_the_plan_of_a_continued_run_says_where_it_continues(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veca")
    trainer = seven_steps(images, tmp_path)
    trainer.log_plan()
    trainer.state.step = 3
    trainer.log_plan()
    begun, continued = (record.message.splitlines()[2] for record in caplog.records)
    assert re.fullmatch(r"  plan      7 steps of \d+ images at 32 px, [\d.]+ passes .*", begun)
    assert continued == begun.replace(" px,", " px, from step 3 on,")


def test_a_run_validates_saves_and_publishes_in_this_order(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veca")
    trainer = seven_steps(images, tmp_path)
    events = noted(monkeypatch, trainer, [3.0, 2.0, 1.0])
    assert trainer.train()
    assert events == [
        ("validate", 0), ("best", 0),
        ("save", 3),
        ("validate", 4), ("best", 4),
        ("save", 6),
        ("validate", 7), ("best", 7),
        ("finished", 7),
    ]  # fmt: skip
    messages = [record.message for record in caplog.records]
    assert messages[0].splitlines() == [
        "Step 0 of 7: validation loss 3.0000",
        "  cores           2       4",
        "  32 px      2.9000  3.1000",
    ]
    assert re.fullmatch(
        r"[0-9.]+ images/s \([0-9]+% waiting for images\), .* GB .*; about .* to go.*", messages[1]
    )
    assert messages[2].startswith(
        "Step 4 of 7: validation loss 2.0000 (-1.0000), the best so far; "
    )
    assert re.search(r"training loss [0-9.]+ over 4 steps\n", messages[2])


def test_only_a_lower_finite_mean_is_published_as_the_best(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    trainer = seven_steps(images, tmp_path, save_every=7, validate_every=2)
    events = noted(monkeypatch, trainer, [2.0, None, 1.0, 1.0, 0.5])
    assert trainer.train()
    assert [event for event in events if event[0] in {"save", "finished"}] == [("finished", 7)]
    assert [step for name, step in events if name == "best"] == [0, 4, 7]
    assert trainer.state.best_loss == pytest.approx(0.5)
    assert trainer.state.best_step == 7
    assert caplog.text.count("The validation loss is not finite; best/ stays as it is.") == 1


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], [("validate", 0), ("save", 0)]),
        ([1.0], [("validate", 0), ("best", 0), ("save", 3), ("validate", 4), ("save", 4)]),
        ([1.0, 1.0], [("validate", 0), ("best", 0), ("save", 3), ("validate", 4), ("save", 6),
                      ("validate", 7), ("save", 7)]),
    ],
)  # fmt: skip
def test_a_stop_during_validation_saves_and_validates_again_later(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    losses: list[float], expected: Events,
) -> None:  # fmt: skip
    trainer = seven_steps(images, tmp_path)
    events = noted(monkeypatch, trainer, losses)
    assert not trainer.train()
    assert events == expected
    assert not trainer.state.finished
    again = noted(monkeypatch, trainer, [0.5, 0.5, 0.5])
    assert trainer.train()
    assert again[0] == ("validate", expected[-1][1])
    assert again[-1] == ("finished", 7)


def test_too_many_skips_end_the_run_without_a_checkpoint(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, lambda _: float("nan"))
    trainer = seven_steps(images, tmp_path, max_skips=1, save_every=1)
    events = noted(monkeypatch, trainer, [1.0])
    with pytest.raises(NonFiniteError, match=r"2 consecutive steps up to step 2 .*--clip"):
        trainer.train()
    assert events == [("validate", 0), ("best", 0), ("save", 1)]


# Saving


class FailingManager(CheckpointManager):
    """Checkpoints on a disk that is full for a while."""

    failures = 0
    """Saves that will fail."""

    def save(self, *given: Any, **named: Any) -> Path:
        """Save, or find the disk full."""
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.ENOSPC, "No space left\non device")
        return super().save(*given, **named)


def saving(images: Path, out: Path, **changes: Any) -> tuple[Trainer, FailingManager]:
    """A run that has taken a step, and its checkpoints."""
    trainer = build(images, context_of(out), **changes)
    trainer.fit_targets()
    advance(trainer, 1)
    trainer.checkpoints = manager = FailingManager(out / "checkpoints")
    return trainer, manager


def steps_in(folder: Path) -> list[str]:
    """Names of the checkpoints of a run."""
    return sorted(path.stem for path in (folder / "checkpoints").glob("step-*"))


def test_a_save_writes_logs_model_and_checkpoint_in_this_order(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, manager = saving(images, tmp_path, ema=0.9)
    order: list[str] = []
    sync, save = trainer.metrics.sync, manager.save

    def synced() -> None:
        order.append("logs")
        sync()

    monkeypatch.setattr(trainer.metrics, "sync", synced)

    def watched(*given: Any) -> Path:
        order.append("model" if (tmp_path / "last" / "model.safetensors").exists() else "none")
        return save(*given)

    monkeypatch.setattr(manager, "save", watched)
    trainer.save()
    assert order == ["logs", "model"]
    assert steps_in(tmp_path) == ["step-000000001"]
    assert not (tmp_path / "best").exists()

    # The average is published, the weights are resumed.
    checkpoint, name = manager.latest(), "backbone.final_norm.bias"
    assert checkpoint is not None
    average, own = trainer.published()[name], trainer.student.get_parameter(name)
    assert not torch.equal(average, own)
    assert torch.equal(checkpoint.tensors[f"student/{name}"], own)
    assert torch.equal(checkpoint.tensors[f"ema/{name}"], average)
    assert torch.equal(veca.load(tmp_path / "last").final_norm.bias, average)


def test_failed_saves_are_logged_and_the_third_in_a_row_ends_the_run(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, manager = saving(images, tmp_path)
    manager.failures = MAX_FAILED_SAVES - 1
    for _ in range(MAX_FAILED_SAVES):  # the last one works, and the count starts again
        trainer.save()
    assert steps_in(tmp_path) == ["step-000000001"]
    assert [record.message for record in caplog.records] == [
        "Saving the checkpoint of step 1 failed ([Errno 28] No space left on device); continuing, "
        "earlier files are intact."
    ] * (MAX_FAILED_SAVES - 1)

    manager.failures = MAX_FAILED_SAVES
    for _ in range(MAX_FAILED_SAVES - 1):
        trainer.save()
        trainer.validate()  # publishes a model, which excuses no checkpoint
    with pytest.raises(RunError, match=r"No space left.*in a row: 3\); free disk space.*--resume"):
        trainer.save()
    manager.failures = 1
    with pytest.raises(RunError, match="could not be saved"):
        trainer.save(final=True)
    trainer.save(final=True)
    assert steps_in(tmp_path) == ["step-000000001"]


def test_only_rank_0_writes(images: Path, tmp_path: Path) -> None:
    trainer, _ = saving(images, tmp_path)
    trainer.ranks = Ranks(rank=1, world_size=2, device=CPU)
    trainer.save()
    assert steps_in(tmp_path) == []
    assert not (tmp_path / "last").exists()


def test_non_finite_weights_are_neither_saved_nor_published(
    images: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, _ = saving(images, tmp_path)
    trainer.save()
    before = (tmp_path / "last" / "model.safetensors").read_bytes()
    with torch.no_grad():
        trainer.student.get_parameter("backbone.final_norm.bias")[0] = float("nan")
    trainer.state.step += 1
    trainer.save()
    assert "final_norm.bias' has non-finite values" in caplog.text
    assert steps_in(tmp_path) == ["step-000000001"]
    assert (tmp_path / "last" / "model.safetensors").read_bytes() == before


# Restoring

STATEFUL: dict[str, Any] = {"ema": 0.9, "teacher": ("pixels", "others"), "steps": 30}


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures, one of which cannot be read."""
    folder = pictures(tmp_path_factory.mktemp("torn"))
    (folder / "0003.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def stored(torn: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trainer, Checkpoint]:
    """A run with everything that has state after some steps, and its checkpoint from the disk."""
    out = tmp_path_factory.mktemp("run")
    trainer = build(torn, context_of(out), **STATEFUL)
    trainer.fit_targets()
    advance(trainer, 8)
    state = trainer.state
    state.skipped, state.consecutive_skips = 3, 1
    state.best_loss, state.best_step = 0.1 + 0.2, 4
    trainer.save()
    checkpoint = CheckpointManager(out / "checkpoints").latest()
    assert checkpoint is not None
    return trainer, checkpoint


def test_a_restored_run_holds_the_checkpoint_and_continues_like_the_run_that_was_stored(
    torn: Path, tmp_path: Path, stored: tuple[Trainer, Checkpoint]
) -> None:
    trainer, checkpoint = stored
    assert trainer.unreadable.count == 1
    restored = build(torn, context_of(tmp_path), checkpoint=checkpoint, **STATEFUL)
    tensors, metadata = restored.state_dict()
    assert equal(tensors, checkpoint.tensors)
    assert metadata == checkpoint.metadata
    assert advance(restored, 3) == advance(trainer, 3)
    assert equal(restored.state_dict()[0], trainer.state_dict()[0])
    assert restored.state == trainer.state


def test_other_images_start_the_search_for_the_best_again(
    torn: Path, tmp_path: Path, stored: tuple[Trainer, Checkpoint], caplog: pytest.LogCaptureFixture
) -> None:
    _, checkpoint = stored
    other = dataclasses.replace(checkpoint, metadata={**checkpoint.metadata, "images": "others"})
    trainer = build(torn, context_of(tmp_path), checkpoint=other, **STATEFUL)
    assert trainer.unreadable.count == 0
    assert trainer.state.best_loss is None
    assert trainer.state.step == 8
    assert "The images have changed since the run began" in caplog.text


def test_a_teacher_with_other_weights_is_refused(
    torn: Path, tmp_path: Path, stored: tuple[Trainer, Checkpoint]
) -> None:
    _, checkpoint = stored
    digests = [checkpoint.metadata["teachers"][0], "another"]
    other = dataclasses.replace(checkpoint, metadata={**checkpoint.metadata, "teachers": digests})
    with pytest.raises(RunError, match="the teacher others has other weights than when the run"):
        build(torn, context_of(tmp_path), checkpoint=other, **STATEFUL)


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_is_resumed_with_or_without_a_cache_as_it_was_started(
    images: Path, tmp_path: Path, cached: bool
) -> None:
    context, folders = context_of(tmp_path / "run"), (None, tmp_path / "cache")
    config = CacheConfig(crops=1)
    trainer = build(images, context, cache_teacher=folders[cached], cache=config)
    trainer.save()
    checkpoint = trainer.checkpoints.latest()
    word = "with" if cached else "without"
    with pytest.raises(RunError, match=f"started {word} --cache-teacher.*resume it {word} it"):
        build(
            images, context,
            cache_teacher=folders[not cached], checkpoint=checkpoint, cache=config,
        )  # fmt: skip


def test_a_run_counted_in_epochs_keeps_the_length_it_was_started_with(
    images: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {"steps": None, "epochs": 2.0}
    trainer = build(images, context_of(tmp_path), **changes)
    assert trainer.length == 11
    trainer.length = 9  # as fewer images would have made it
    trainer.save()
    checkpoint = trainer.checkpoints.latest()
    assert build(images, context_of(tmp_path), checkpoint=checkpoint, **changes).length == 9
