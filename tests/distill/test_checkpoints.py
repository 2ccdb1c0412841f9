"""Saving: what is written, in which order, and what happens when it cannot be."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import veca
from tests.distill.built import CPU, build, place_of
from tests.distill.runs import pictures
from veca.distill.checkpoints import MOST_FAILURES, Checkpoints
from veca.distill.run_folder import RunError
from veca.distill.setup import fit_to_teachers
from veca.distill.training import published_tensors
from veca.runtime.distributed import Ranks
from veca.runtime.snapshots import Snapshots
from veca.weights.card import Provenance


class FailingSnapshots(Snapshots):
    """Checkpoints on a disk that is full for a while."""

    left = 0
    """Saves that will fail yet."""

    def save(self, *arguments: Any, **options: Any) -> Path:
        """Save, or find the disk full."""
        self.left -= 1
        if self.left >= 0:
            raise OSError(errno.ENOSPC, "No space left\non device")
        return super().save(*arguments, **options)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def checkpoints_of(
    images: Path, out: Path, sync_logs: Callable[[], None] = lambda: None, **changes: Any
) -> tuple[Checkpoints, list[str]]:
    """The checkpoints of a run that has taken a step, and what they say."""
    said: list[str] = []
    run = build(images, place_of(out), **changes)
    constants = fit_to_teachers(run.training, run.pictures, lambda: False)
    run.advance(1)
    found = Checkpoints(
        training=run.training,
        constants=constants,
        fingerprint=run.pictures.fingerprint,
        folder=run.place.folder,
        snapshots=FailingSnapshots(run.place.folder.checkpoints),
        provenance=Provenance(teacher="pixels"),
        sync_logs=sync_logs,
        say=said.append,
    )
    return found, said


def steps_in(folder: Path) -> list[str]:
    """Names of the checkpoints in a run."""
    return sorted(path.name for path in (folder / "checkpoints").glob("step-*"))


def test_a_save_writes_the_logs_then_the_model_and_a_checkpoint(
    images: Path, tmp_path: Path
) -> None:
    seen: list[list[str]] = []
    found, said = checkpoints_of(images, tmp_path, lambda: seen.append(steps_in(tmp_path)))
    found.save()
    assert seen == [[]]  # no checkpoint is ahead of the logs
    assert steps_in(tmp_path) == ["step-000000001"]
    model = veca.load(tmp_path / "last")
    student = found.training.student.backbone
    for name, tensor in student.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert not (tmp_path / "best").exists()
    found.publish_best()
    assert veca.load(tmp_path / "best").config == model.config
    assert said == []


def test_a_kill_before_the_checkpoint_leaves_the_new_model_and_no_finished_run(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, _ = checkpoints_of(images, tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(found.snapshots), "save", killed)
    with pytest.raises(KeyboardInterrupt):
        found.save()
    assert steps_in(tmp_path) == []  # a resume takes these steps again and publishes anew
    assert (tmp_path / "last" / "model.safetensors").is_file()


def test_the_average_is_what_is_published_and_the_weights_are_what_is_resumed(
    images: Path, tmp_path: Path
) -> None:
    found, _ = checkpoints_of(images, tmp_path, ema=0.9)
    found.save()
    snapshot = found.snapshots.newest(print)
    assert snapshot is not None
    name = "backbone.final_norm.bias"
    average, own = published_tensors(found.training)[name], found.training.student
    stored = snapshot.tensors()
    assert torch.equal(stored[f"student/{name}"], own.get_parameter(name))
    assert torch.equal(stored[f"average/{name}"], average)
    assert not torch.equal(average, own.get_parameter(name))
    published = veca.load(tmp_path / "last").final_norm.bias
    assert torch.equal(published, average)


def test_failures_in_a_row_are_told_and_the_third_stops_the_run(
    images: Path, tmp_path: Path
) -> None:
    found, said = checkpoints_of(images, tmp_path)
    assert isinstance(found.snapshots, FailingSnapshots)
    found.snapshots.left = MOST_FAILURES - 1
    for _ in range(MOST_FAILURES - 1):
        found.save()
    found.save()  # there is room again, and nothing is held against it
    assert found.failures == 0
    assert steps_in(tmp_path) == ["step-000000001"]
    reason = r"\[Errno 28\] No space left on device"
    assert len(said) == MOST_FAILURES - 1
    assert said[0].startswith(
        "Could not save the checkpoint of step 1 ([Errno 28] No space left on"
    )

    found.snapshots.left = MOST_FAILURES
    for _ in range(MOST_FAILURES - 1):
        found.save()
    with pytest.raises(
        RunError, match=rf"3 saves in a row failed.*{reason}\. Make room .*--resume"
    ):
        found.save()
    assert steps_in(tmp_path) == ["step-000000001"]


def test_a_model_that_can_be_published_excuses_no_checkpoint_that_cannot_be_saved(
    images: Path, tmp_path: Path
) -> None:
    found, _ = checkpoints_of(images, tmp_path)
    assert isinstance(found.snapshots, FailingSnapshots)
    found.snapshots.left = MOST_FAILURES
    for _ in range(MOST_FAILURES - 1):
        found.save()
        found.publish_best()
    with pytest.raises(RunError, match="3 saves in a row failed"):
        found.save()


def test_only_the_first_process_writes(images: Path, tmp_path: Path) -> None:
    found, said = checkpoints_of(images, tmp_path)
    found.training.workers = Ranks(rank=1, world_size=2, device=CPU)
    found.save()
    found.publish_best()
    assert steps_in(tmp_path) == []
    assert not (tmp_path / "last").exists()
    assert not (tmp_path / "best").exists()
    assert said == []


def test_weights_that_are_not_finite_are_neither_saved_nor_published(
    images: Path, tmp_path: Path
) -> None:
    found, said = checkpoints_of(images, tmp_path)
    found.save()
    before = (tmp_path / "last" / "model.safetensors").read_bytes()
    with torch.no_grad():
        found.training.student.get_parameter("backbone.final_norm.bias")[0] = float("nan")
    found.training.progress.step += 1
    found.save()
    assert "final_norm.bias' has numbers that are not finite" in said[0]
    assert steps_in(tmp_path) == ["step-000000001"]
    assert (tmp_path / "last" / "model.safetensors").read_bytes() == before


def test_a_run_whose_last_checkpoint_cannot_be_saved_does_not_end_as_if_it_were(
    images: Path, tmp_path: Path
) -> None:
    found, _ = checkpoints_of(images, tmp_path)
    assert isinstance(found.snapshots, FailingSnapshots)
    found.snapshots.left = 1
    with pytest.raises(RunError, match=r"the last one, could not be saved; make room .*--resume"):
        found.save_last()
    found.save_last()
    assert steps_in(tmp_path) == ["step-000000001"]
