"""Where a run lies on disk.

config.json       the whole configuration, the command, versions
metrics.jsonl     losses: nothing in it depends on the clock, so equal runs write equal rows
speed.jsonl       images per second, waiting, memory
unreadable.jsonl  images that could not be read, with the reason
checkpoints/      all that a resume needs; the last two
best/, last/      models that veca.load reads
summary.html      the curves
index             the list of images, so that a resume need not look for them again
"""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veca.distill.config import DistillConfig, Efficiency
from veca.runtime import VERSION, VecaError
from veca.runtime.files import make_folder, write_atomic

MAY_CHANGE = frozenset({"images", "validation", "validate_every", "max_unreadable", "max_skips"})
"""Fields that a resumed run may have otherwise: images may have moved, if they are the same."""


class RunError(VecaError, ValueError):
    """A run that cannot start or continue: what was got, what is allowed, what to do."""


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def config(self) -> Path:
        """The configuration."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """Losses, a row a line."""
        return self.path / "metrics.jsonl"

    @property
    def speed(self) -> Path:
        """Speeds, a row a line."""
        return self.path / "speed.jsonl"

    @property
    def unreadable(self) -> Path:
        """Images that could not be read."""
        return self.path / "unreadable.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def best(self) -> Path:
        """The model with the lowest validation loss."""
        return self.path / "best"

    @property
    def last(self) -> Path:
        """The model of the last checkpoint."""
        return self.path / "last"

    def index(self, purpose: str) -> Path:
        """The list of images to train or to validate on."""
        return self.path / "index" / f"{purpose}.images"

    def holds_a_run(self) -> bool:
        """Whether a run was begun here."""
        return any(path.exists() for path in (self.config, self.metrics, self.checkpoints))

    def prepare(self, resume: bool) -> None:
        """Make the folder, or refuse one whose run would be lost."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; give a folder for the run.")
        if self.holds_a_run() and not resume:
            raise RunError(
                f"{self.path} already holds a run; add --resume to continue it, or choose another "
                "folder."
            )
        make_folder(self.path)

    def write_config(
        self, config: DistillConfig, efficiency: Efficiency, command: str | None
    ) -> None:
        """Write what is run, for people and for a later resume."""
        facts = {
            "veca": VERSION,
            "command": command,
            "config": as_json(config),
            "efficiency": as_json(efficiency),
        }
        text = json.dumps(facts, indent=2)
        write_atomic(self.config, [f"{text}\n".encode()])

    def start_logs(self) -> None:
        """Remove the logs of a run that was stopped before its first checkpoint."""
        for path in (self.metrics, self.speed, self.unreadable):
            path.unlink(missing_ok=True)


def as_json(config: DistillConfig | Efficiency) -> dict[str, Any]:
    """A configuration as it stands in a file."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(config)))
    return found


def check_same_run(config: DistillConfig, stored: Mapping[str, Any], step: int) -> None:
    """Refuse to continue a run with another configuration than it was begun with."""
    wanted, stored = as_json(config), _completed(stored, config)
    differing = [
        name
        for name in sorted(set(wanted) | set(stored))
        if wanted.get(name) != stored.get(name) and name not in MAY_CHANGE
    ]
    if differing == ["steps"] and config.schedule.kind == "constant-decay":
        if config.steps is not None and config.steps < step:
            raise RunError(
                f"the run has taken {step:,} steps, more than the {config.steps:,} that are asked "
                f"for; ask for {step:,} or more."
            )
        return
    if differing:
        name = differing[0]
        advice = "leave it as it was, or begin another run with --start"
        if name == "steps" and len(differing) == 1:
            advice = (
                "the length is part of a cosine schedule; keep it, or use --schedule.kind "
                "constant-decay from the start for runs that can be prolonged"
            )
        raise RunError(
            f"the run was begun with {name}={stored.get(name)!r}, but asked for is "
            f"{wanted.get(name)!r}; {advice}."
        )


def _completed(stored: Mapping[str, Any], config: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """A stored configuration with the defaults of fields, at any depth, that came after it.

    A default is what was done before a field was there.
    """
    found = dict(stored)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in found and dataclasses.is_dataclass(value):
            found[field.name] = _completed(found[field.name], value)
        elif field.name not in found and field.default is not dataclasses.MISSING:
            found[field.name] = json.loads(json.dumps(field.default))
        elif field.name not in found and field.default_factory is not dataclasses.MISSING:
            default = dataclasses.asdict(field.default_factory())
            found[field.name] = json.loads(json.dumps(default))
    return found
