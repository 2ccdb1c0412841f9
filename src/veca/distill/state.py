"""All that a resume needs, gathered and put back together."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from veca.distill.run_folder import RunError, as_json
from veca.distill.target_scaling import Constants
from veca.distill.training import Progress, Training, load_student, student_tensors
from veca.runtime import VERSION
from veca.runtime.device import (
    ResolvedPrecision,
    random_states,
    resolve_precision,
    restore_random_states,
)
from veca.runtime.distributed import Ranks
from veca.runtime.snapshots import Snapshot
from veca.teacher.teacher import Teacher

FORMAT = 1


def gather(
    training: Training, constants: list[Constants], fingerprint: str
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and facts of a run between two steps; every process must ask."""
    random_tensors, random_facts = random_states()
    groups: dict[str, Mapping[str, Tensor]] = {
        "student": student_tensors(training),
        "optimizer": training.optimizers.tensors(),
        "average": {} if training.average is None else training.average.tensors(),
        "scaling": training.source.scalings.state_dict(),
        "constants": _constant_tensors(constants),
        "random": random_tensors,
        "unreadable": {"images": training.unreadable.tensor()},
    }
    tensors = {
        f"{group}/{name}": tensor.detach().cpu()
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    facts = {
        "format": FORMAT,
        "veca": VERSION,
        "torch": torch.__version__,
        "config": as_json(training.config),
        "length": training.length,
        "cached_teacher": training.cache is not None,
        "precision": training.precision,
        "kept_in": None if training.cache is None else training.cache.precision,
        "progress": dataclasses.asdict(training.progress),
        "optimizer": training.optimizers.facts(),
        "average_updates": 0 if training.average is None else training.average.updates,
        "random": random_facts,
        "images": fingerprint,
        "teachers": _digests(training),
    }
    return tensors, facts


class Stored:
    """A checkpoint in the memory of every process."""

    def __init__(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.facts = facts
        self._tensors = tensors

    def group(self, name: str) -> dict[str, Tensor]:
        """The tensors of one part of a run."""
        start = f"{name}/"
        return {
            key.removeprefix(start): tensor
            for key, tensor in self._tensors.items()
            if key.startswith(start)
        }

    @property
    def progress(self) -> Progress:
        """How far the run had come."""
        return Progress(**self.facts["progress"])

    def precision(self, device: torch.device) -> ResolvedPrecision:
        """What the run computed with when it was saved.

        Checkpoints of before 2026-11-18 do not tell; then only GPUs computed in bf16.
        """
        then: ResolvedPrecision = (
            resolve_precision("auto", device) if device.type == "cuda" else "fp32"
        )
        found: ResolvedPrecision = self.facts.get("precision", then)
        return found

    def kept_in(self, device: torch.device) -> ResolvedPrecision | None:
        """What its kept teacher outputs were computed with; None where it keeps none."""
        if not self.facts["cached_teacher"]:
            return None
        found: ResolvedPrecision = self.facts.get("kept_in", self.precision(device))
        return found

    @property
    def constants(self) -> list[Constants]:
        """The best constant answers to the teachers."""
        found = self.group("constants")
        return [
            Constants(found[f"{number}/image"], found[f"{number}/patches"])
            for number in range(len(found) // 2)
        ]


def received(snapshot: Snapshot | None, workers: Ranks) -> Stored | None:
    """The first process's checkpoint in every process: they need not share a disk."""
    found = snapshot.tensors() if snapshot is not None else {}
    told = None
    if snapshot is not None:
        shapes = {name: [list(value.shape), str(value.dtype)] for name, value in found.items()}
        told = {"facts": dict(snapshot.facts), "tensors": shapes}
    told = workers.broadcast_object(told)
    if told is None:
        return None
    if told["facts"].get("format") != FORMAT:
        raise RunError(
            f"the checkpoint has format {told['facts'].get('format')}, but this veca "
            f"({VERSION}) reads {FORMAT}; resume with the version that wrote it."
        )
    tensors = {}
    for name, (shape, dtype) in told["tensors"].items():
        kind = getattr(torch, dtype.removeprefix("torch."))
        tensor = found[name] if name in found else torch.empty(shape, dtype=kind)
        tensors[name] = workers.broadcast(tensor.to(workers.device)).cpu()
    return Stored(tensors, told["facts"])


def restore(training: Training, stored: Stored, fingerprint: str) -> None:
    """Put a run back to where it was between two steps; `fingerprint` is that of its images."""
    _check_cache(stored.facts["cached_teacher"], training.cache is not None)
    _check_teachers(training, stored)
    if training.config.steps is None:  # the length is that of the images it was begun with
        training.length = stored.facts["length"]
    load_student(training, stored.group("student"))
    training.optimizers.load(stored.group("optimizer"), stored.facts["optimizer"])
    if training.average is not None:
        training.average.load(stored.group("average"), stored.facts["average_updates"])
    training.source.scalings.load_state_dict(stored.group("scaling"))
    training.progress = stored.progress
    if stored.facts["images"] == fingerprint:
        training.unreadable.load(stored.group("unreadable")["images"])
    else:  # numbers mean other images now, and the best was scored on others
        training.progress.best_loss = training.progress.best_step = None
    restore_random_states(stored.group("random"), stored.facts["random"])


def _check_teachers(training: Training, stored: Stored) -> None:
    """Refuse teachers that are not those of before."""
    for name, before, now in zip(
        training.config.teacher, stored.facts["teachers"], _digests(training), strict=True
    ):
        if before is not None and now is not None and before != now:
            raise RunError(
                f"the teacher {name} has other weights than when the run was begun; bring back "
                "the old ones, or begin another run with --start."
            )


def _digests(training: Training) -> list[str | None]:
    """What stands for the weights of each teacher, where that is known."""
    return [cast(Teacher, teacher).digest for teacher in training.source.teachers]


def _check_cache(before: bool, now: bool) -> None:
    """Refuse to go on with other views and targets than before."""
    if before != now:
        raise RunError(
            f"the run was begun {'with' if before else 'without'} --cache-teacher, which decides "
            f"its views and targets; resume it {'with' if before else 'without'} it too."
        )


def _constant_tensors(constants: list[Constants]) -> dict[str, Tensor]:
    """The constant answers by name."""
    return {
        f"{number}/{name}": tensor
        for number, answer in enumerate(constants)
        for name, tensor in zip(("image", "patches"), answer, strict=True)
    }
