"""The files of a run, the rules for resuming it, and the models it publishes.

config.json       configuration, command and versions
metrics.jsonl     losses; nothing in it depends on the clock, so equal runs write equal rows
speed.jsonl       images per second, data wait, memory
unreadable.jsonl  images that could not be read, with the reason
checkpoints/      everything that a resume needs; the last two
best/, last/      models for veca.load
tensorboard/      the metrics again, where TensorBoard is installed
curves.png        the losses, drawn at the end where matplotlib is installed
index/            the list of images
"""

import dataclasses
import datetime
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA
from veca.distill.config import DistillConfig, RunOptions
from veca.runtime import VERSION, VecaError
from veca.runtime.distributed import Ranks
from veca.runtime.files import make_folder, write_atomic
from veca.runtime.tensors import save_tensors
from veca.teacher.registry import TEACHERS
from veca.teacher.teacher import Teacher
from veca.weights.card import NOT_RECORDED, Provenance
from veca.weights.checkpoint import model_info, save

MAY_CHANGE = frozenset({"images", "validation", "validate_every", "max_unreadable", "max_skips"})
"""Fields that may differ when a run is resumed: images may have moved, if they are the same."""

REMOVED = {"temperature": 2.0, "anchor_temperature": 0.1, "matrices": "normuon", "matrix_rate": 1.0}
"""Stored fields that this version lacks, by the values that had its behavior if not 0 or off."""

BACKBONE, ADAPTORS = "backbone.", "adaptors."
ADAPTORS_NAME = "adaptors.safetensors"
BEFORE = "; before that: "


class RunError(VecaError, ValueError):
    """A run that cannot start or continue."""


class RunFolder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.unreadable = path / "unreadable.jsonl"
        self.checkpoints = path / "checkpoints"
        self.best, self.last = path / "best", path / "last"

    def index(self, split: str) -> Path:
        """The list of training or validation images."""
        return self.path / "index" / f"{split}.images"

    def prepare(self, resume: bool) -> None:
        """Create the folder, or refuse one whose run would be overwritten."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; give a folder for the run.")
        has_run = any(path.exists() for path in (self.config, self.metrics, self.checkpoints))
        if has_run and not resume:
            raise RunError(
                f"{self.path} already contains a run; add --resume to continue it, or choose "
                "another folder."
            )
        make_folder(self.path)

    def begin(
        self, config: DistillConfig, options: RunOptions, command: str | None, resuming: bool
    ) -> None:
        """Write the configuration; a new run removes logs of one without a checkpoint."""
        if not resuming:
            for path in (self.metrics, self.path / "speed.jsonl", self.unreadable):
                path.unlink(missing_ok=True)
        content = {
            "veca": VERSION,
            "command": command,
            "config": as_json(config),
            "options": as_json(options),
        }
        write_atomic(self.config, [f"{json.dumps(content, indent=2)}\n".encode()])


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """Context of a run: configuration, options, folder, ranks and stop flag."""

    config: DistillConfig
    options: RunOptions = RunOptions()  # noqa: RUF009 - it is frozen
    folder: RunFolder
    ranks: Ranks
    stop: Callable[[], bool] = lambda: False
    """Whether this process was asked to stop."""
    resume: bool = False
    """Whether an earlier run in the folder may be continued."""
    show_progress: bool = False


def as_json(config: DistillConfig | RunOptions) -> dict[str, Any]:
    """A configuration as plain JSON."""
    content: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return content


def check_same_config(config: DistillConfig, stored: Mapping[str, Any], step: int) -> None:
    """Refuse to resume a run with another configuration than it was started with."""
    # The default of a field is the behavior of versions that lack it.
    defaults = as_json(DistillConfig(backbone=BackboneConfig()))
    given, stored = as_json(config), _updated(defaults, stored)
    differing = [
        name
        for name in sorted(set(given) | set(stored))
        if given.get(name) != stored.get(name) and name not in MAY_CHANGE
    ]
    if not differing:
        return
    name = differing[0]
    advice = "keep it, or start another run with --start"
    if differing == ["steps"] and config.schedule.kind == "constant-decay":
        if config.steps is None or config.steps >= step:
            return
        advice = f"the run has already taken {step:,}: use {step:,} or more"
    elif differing == ["steps"]:
        advice = (
            "a cosine schedule depends on the length: keep it, or use --schedule.kind "
            "constant-decay from the start for runs to be extended"
        )
    raise RunError(
        f"the run was started with {name}={stored.get(name)!r}, got {given.get(name)!r}; {advice}."
    )


def _updated(defaults: dict[str, Any], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults with stored values, at any depth; a field that was removed may be stored as off."""
    stored = {
        name: value
        for name, value in stored.items()
        if name in defaults or (value and value != REMOVED.get(name))
    }
    nested = {
        name: _updated(defaults[name], value)
        for name, value in stored.items()
        if isinstance(value, dict) and name in defaults
    }
    return {**defaults, **stored, **nested}


def publish(
    tensors: Mapping[str, Tensor],
    config: DistillConfig,
    folder: Path,
    provenance: Provenance,
    adaptors: bool,
) -> None:
    """Save the backbone of a student, given by its full tensors, and its adaptors if asked for."""
    with torch.device("meta"):
        model = VECA(config.student)
    weights = {
        name.removeprefix(BACKBONE): tensor.detach().cpu()
        for name, tensor in tensors.items()
        if name.startswith(BACKBONE)
    }
    model.load_state_dict(weights, assign=True)
    (folder / ADAPTORS_NAME).unlink(missing_ok=True)  # they would belong to other weights
    save(model, folder, provenance=provenance)
    if adaptors:
        chosen = {name: value for name, value in tensors.items() if name.startswith(ADAPTORS)}
        save_tensors(folder / ADAPTORS_NAME, chosen)


def provenance_of(
    config: DistillConfig, teachers: Sequence[Teacher], images: int, command: str | None
) -> Provenance:
    """Provenance for the model card; the license of the weights is up to their owner.

    A model to start from contributes its own teachers, images, history and terms.
    """
    before = (None if config.start is None else model_info(config.start).provenance) or Provenance()
    names = (before.teacher or "").split(", ") if before.teacher else []
    known = (before.teacher_licence or "").split(", ") if before.teacher_licence else []
    earlier = itertools.zip_longest(names, known[: len(names)], fillvalue=NOT_RECORDED)
    licenses = {teacher.name: teacher.licence or NOT_RECORDED for teacher in teachers}
    licenses = {**dict(earlier), **licenses}
    order = dict.fromkeys([*(teacher.name for teacher in teachers), *names])

    data = [f"{images:,} unlabeled images ({_source(config.images or 'not named')})"]
    data += before.data.split(BEFORE) if before.data else []
    terms = [before.licence and f"licence {before.licence}", before.notes]
    notes = ". ".join(filter(None, terms))
    return Provenance(
        teacher=", ".join(order),
        teacher_licence=", ".join(licenses[name] for name in order),
        data=BEFORE.join(part for part, _ in itertools.groupby(data)),
        recipe=_chained(", ".join(_description(config)), before.recipe),
        command=_chained(command, before.command),
        seed=config.seed,
        date=today(),
        notes=f"Of the model it started from: {notes}" if notes else None,
    )


def _chained(now: str | None, before: str | None) -> str | None:
    """A field of this run followed by that of the run it started from."""
    return now if before is None else f"{now or NOT_RECORDED}{BEFORE}{before}"


def _source(images: str) -> str:
    """The last part of a path; of a pattern everything from its first wildcard on."""
    parts = Path(images).parts or Path(images).resolve().parts  # '.' has none
    wild = next((at for at, part in enumerate(parts) if set(part) & set("*?[")), len(parts) - 1)
    return "/".join(parts[wild:])


def _description(config: DistillConfig) -> Iterator[str]:
    """The recipe, and what makes the weights differ from what its name says."""
    yield config.recipe
    if config.attention == "full":
        yield "full attention"
    if config.slices is not None and config.start is None:
        licence = TEACHERS[config.slices.partition("@")[0]].licence
        yield f"initialized with slices of the weights of {config.slices} ({licence})"
    if config.teacher_margin:
        yield f"teachers see a {config.teacher_surroundings} margin of {config.teacher_margin} px"


def today() -> str:
    """The date, such as 2026-05-12."""
    return datetime.datetime.now(tz=datetime.UTC).date().isoformat()
