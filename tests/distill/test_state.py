"""What a checkpoint holds: everything that a step changes, or a resume would notice."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.distill.built import ONE, Built, build, place_of
from tests.distill.runs import pictures
from veca.distill.config import CacheConfig, DistillConfig, Efficiency
from veca.distill.meter import Meter
from veca.distill.run_folder import RunError
from veca.distill.setup import fit_to_teachers
from veca.distill.state import Stored, gather, received, restore
from veca.distill.target_scaling import Constants
from veca.distill.teacher_cache import TeacherCache
from veca.runtime.distributed import Ranks
from veca.runtime.files import JsonlWriter
from veca.runtime.snapshots import Snapshots

NO_STATE = (DistillConfig, Efficiency, Meter, Ranks, JsonlWriter, TeacherCache)
"""What no step changes, or what only the clock does."""

NOT_KEPT = ("_reasons", "_told", "_index", "_path")
"""Of unreadable images: the list of them, which lies on the disk."""


def live_state(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor and plain value below an object, whatever objects lie between."""
    if isinstance(value, Tensor | int | float | str) or value is None:
        yield path, value
    elif not isinstance(value, NO_STATE):
        for name, member in members(value, path).items():
            yield from live_state(member, f"{path}.{name}")


def members(value: Any, path: str) -> dict[Any, Any]:
    """What an object holds, by name or place."""
    if isinstance(value, nn.Module):
        return {
            "parameters": dict(value.named_parameters()),
            "buffers": dict(value.named_buffers()),
        }
    if isinstance(value, Optimizer):  # its rate is an argument of every step
        return dict(value.state_dict()["state"])
    if isinstance(value, dict):
        named = all(isinstance(key, str | int) for key in value)
        return value if named else dict(enumerate(value.values()))
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if type(value).__module__.startswith("veca."):
        return {name: member for name, member in vars(value).items() if name not in NOT_KEPT}
    raise TypeError(f"{path} is a {type(value).__name__}: say whether it has state")


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and one == other


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures, one of which cannot be read."""
    folder = pictures(tmp_path_factory.mktemp("images"))
    (folder / "0003.png").write_bytes(b"no picture")
    return folder


def built(images: Path, out: Path) -> Built:
    """A run with everything that has state."""
    return build(images, place_of(out), ema=0.9, teacher=("pixels", "others"), steps=30)


@pytest.fixture(scope="module")
def trained(images: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Built, Stored]:
    """A run after some steps, and its checkpoint, through the disk."""
    run = built(images, tmp_path_factory.mktemp("trained"))
    constants = fit_to_teachers(run.training, run.pictures, lambda: False)
    run.advance(8)
    progress = run.training.progress
    progress.skipped, progress.consecutive_skips = 3, 1
    progress.best_loss, progress.best_step = 0.1 + 0.2, 4
    tensors, facts = gather(run.training, constants, run.pictures.fingerprint)
    snapshots = Snapshots(run.place.folder.checkpoints)
    snapshots.save(progress.step, tensors, facts)
    stored = received(snapshots.newest(print), ONE)
    assert stored is not None
    return run, stored


def test_a_restored_run_has_every_value_of_the_one_that_was_stored(
    images: Path, tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    run, stored = trained
    assert run.training.unreadable.count == 1
    fresh = built(images, tmp_path)
    before = {
        path: value.clone() if isinstance(value, Tensor) else value
        for path, value in live_state(fresh.training)
    }
    restore(fresh.training, stored, fresh.pictures.fingerprint)
    wanted, found = dict(live_state(run.training)), dict(live_state(fresh.training))
    assert found.keys() == wanted.keys()
    assert [path for path in wanted if not same(found[path], wanted[path])] == []

    # All parts of a run had changed, so that none could be forgotten unseen.
    changed = {
        path for path in wanted if path not in before or not same(before[path], wanted[path])
    }
    for part in (".student.parameters.backbone", ".student.parameters.adaptors", ".optimizers",
                 ".average._values", ".average.updates", ".source.buffers.scalings.0.",
                 ".source.buffers.scalings.1.", ".unreadable._flags", ".progress.step",
                 ".progress.skipped", ".progress.consecutive_skips", ".progress.best_loss",
                 ".progress.best_step"):  # fmt: skip
        assert any(path.startswith(part) for path in changed), part


def test_a_restored_run_takes_the_next_steps_of_the_one_that_was_stored(
    images: Path, tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    run, stored = trained
    fresh = built(images, tmp_path)
    restore(fresh.training, stored, fresh.pictures.fingerprint)
    again = built(images, tmp_path)
    restore(again.training, stored, again.pictures.fingerprint)
    assert fresh.advance(3) == again.advance(3)
    wanted, found = dict(live_state(again.training)), dict(live_state(fresh.training))
    assert [path for path in wanted if not same(found[path], wanted[path])] == []
    assert run.training.progress.step == 8  # nothing is shared with the run that was stored


def drawn() -> list[float]:
    """One number of each source of chance."""
    return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002


@pytest.mark.compiled  # the shape hook draws from Python's numbers itself
def test_every_source_of_chance_goes_on(
    images: Path, tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    run, _ = trained
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(7)
    tensors, facts = gather(run.training, [], "")
    wanted = drawn()
    fresh = built(images, tmp_path)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(8)
    restore(fresh.training, Stored(tensors, facts), "")
    assert drawn() == wanted


def test_the_constant_answers_come_back(trained: tuple[Built, Stored]) -> None:
    run, _ = trained
    constants = [
        Constants(torch.randn(3, dtype=torch.float64), torch.randn(4, dtype=torch.float64))
        for _ in range(11)
    ]
    found = Stored(*gather(run.training, constants, "")).constants
    assert len(found) == 11
    for one, other in zip(found, constants, strict=True):
        assert torch.equal(one.image, other.image)
        assert torch.equal(one.patches, other.patches)


def test_a_checkpoint_tells_what_it_belongs_to(trained: tuple[Built, Stored]) -> None:
    run, stored = trained
    assert stored.facts["images"] == run.pictures.fingerprint
    assert stored.facts["config"]["teacher"] == ["pixels", "others"]
    assert stored.facts["length"] == 30
    assert stored.progress == run.training.progress


def test_no_checkpoint_is_received_as_none() -> None:
    assert received(None, ONE) is None


def test_a_checkpoint_of_another_format_is_refused(
    tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    run, _ = trained
    tensors, facts = gather(run.training, [], "")
    snapshots = Snapshots(tmp_path)
    snapshots.save(8, tensors, {**facts, "format": 99})
    with pytest.raises(RunError, match=r"has format 99, but this veca .* reads 1; resume with"):
        received(snapshots.newest(print), ONE)


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_goes_on_with_kept_teacher_outputs_as_it_began(
    images: Path, tmp_path: Path, cached: bool
) -> None:
    kept = tmp_path / "kept"
    changes: dict[str, Any] = {"cache": CacheConfig(crops=1)}
    begun = build(images, place_of(tmp_path / "a", cache=kept if cached else None), **changes)
    stored = Stored(*gather(begun.training, [], ""))
    restore(begun.training, stored, "")
    other = build(images, place_of(tmp_path / "b", cache=None if cached else kept), **changes)
    words = "with" if cached else "without"
    with pytest.raises(RunError, match=f"begun {words} --cache-teacher.*resume it {words} it too"):
        restore(other.training, stored, "")


def test_numbers_of_unreadable_images_are_forgotten_where_the_images_are_others(
    images: Path, tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    _, stored = trained
    fresh = built(images, tmp_path)
    restore(fresh.training, stored, "other images")
    assert fresh.training.unreadable.count == 0
    assert fresh.training.progress.best_loss is None
    assert fresh.training.progress.step == 8


def test_a_teacher_with_other_weights_is_refused(
    images: Path, tmp_path: Path, trained: tuple[Built, Stored]
) -> None:
    run, stored = trained
    fresh = built(images, tmp_path)
    fresh.training.source.teachers[1].get_buffer("patch").mul_(-1)
    with pytest.raises(RunError, match="the teacher others has other weights than when the run"):
        restore(fresh.training, stored, run.pictures.fingerprint)


def test_a_run_that_is_counted_in_epochs_keeps_the_length_it_was_begun_with(
    images: Path, tmp_path: Path
) -> None:
    run = build(images, place_of(tmp_path), steps=None, epochs=2.0)
    stored = Stored(*gather(run.training, [], ""))
    assert run.training.length == 11
    run.training.length = 99  # as more images would make it
    restore(run.training, stored, "")
    assert run.training.length == 11


def test_checkpoints_that_do_not_tell_their_precision_were_fp32_on_a_cpu() -> None:
    cpu = torch.device("cpu")
    old = Stored({}, {"cached_teacher": True})
    assert (old.precision(cpu), old.kept_in(cpu)) == ("fp32", "fp32")
    new = Stored({}, {"cached_teacher": True, "precision": "fp32", "kept_in": "bf16"})
    assert (new.precision(cpu), new.kept_in(cpu)) == (
        "fp32",
        "bf16",
    )
    assert Stored({}, {"cached_teacher": False}).kept_in(cpu) is None
