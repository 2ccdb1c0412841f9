"""The state of a training run on disk: the newest verified checkpoints, one file each.

`step-000000120.safetensors` is written by `save_tensors`: one rename is the commit, so a process
that is killed or a disk that is full leaves every earlier checkpoint as it was. When a run resumes,
the newest file is compared with its SHA-256; where it is damaged, the one before it is taken.
"""

import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.runtime import VecaError
from veca.runtime.files import make_folder
from veca.runtime.tensors import load_tensors, remove_temporary_files, save_tensors

FORMAT = 2
"""Raised when older versions would misread a checkpoint; 1 was a folder of three files."""

KEEP = 2
"""Checkpoints that stay, so that there is another one if the newest is damaged."""

FREE_SPACE_FACTOR = 1.2
"""Free disk space that a save requires, as a multiple of its size."""

FILE_NAME = re.compile(r"step-(\d{9,})\.safetensors")

logger = logging.getLogger("veca")


class CheckpointError(VecaError, OSError):
    """A checkpoint that cannot be saved or loaded."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A verified state."""

    step: int
    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, Any]


def load_checkpoint(path: Path) -> Checkpoint:
    """Load and verify one checkpoint; raises CheckpointError where it cannot be used."""
    try:
        tensors, header = load_tensors(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be loaded: {error}") from error
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has checkpoint format {header.get('format')!r}, and this version of veca "
            f"reads {FORMAT}; use the version that wrote it, or start a new run."
        )
    return Checkpoint(step=header["step"], path=path, tensors=tensors, metadata=header["metadata"])


class CheckpointManager:
    """The checkpoints of a run, of which the newest `KEEP` verified ones are kept.

    Any process may call `latest`; only one at a time may save.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._verified: set[int] = set()
        """Steps whose files this process has written or verified."""

    def path(self, step: int) -> Path:
        """The file of a step."""
        return self.folder / f"step-{step:09d}.safetensors"

    def save(self, step: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> Path:
        """Save the state of a step; an older state of the same step is replaced.

        When this returns, the file is durable. A CheckpointError leaves all others as they were.
        NaN and infinity are refused.
        """
        refuse_non_finite(tensors)
        header = {"format": FORMAT, "step": step, "metadata": dict(metadata)}
        try:
            make_folder(self.folder)
            remove_temporary_files(self.folder)
            needed = int(FREE_SPACE_FACTOR * sum(tensor.nbytes for tensor in tensors.values()))
            free = shutil.disk_usage(self.folder).free
            if free < needed:
                raise OSError(f"it needs {needed / 1e6:,.1f} MB, {free / 1e6:,.1f} MB are free")
            save_tensors(self.path(step), tensors, header)
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} could not be saved in {self.folder} ({error}); "
                "older checkpoints are intact: check the disk."
            ) from error
        self._verified.add(step)
        self._prune(step)
        return self.path(step)

    def latest(self) -> Checkpoint | None:
        """Load the newest checkpoint that verifies; None where there is none at all.

        Each damaged one is passed over with a warning; it is an error if all are damaged.
        """
        steps = sorted(self._steps(), reverse=True)
        for step in steps:
            try:
                checkpoint = load_checkpoint(self.path(step))
                if checkpoint.step != step:
                    raise CheckpointError(f"{self.path(step)} is a copy of step {checkpoint.step}.")
            except CheckpointError as error:
                logger.warning("Skipping a checkpoint: %s", error)
            else:
                self._verified.add(step)
                return checkpoint
        if steps:
            raise CheckpointError(
                f"none of the {len(steps)} checkpoints in {self.folder} can be used; restore one "
                "from a copy, or start a new run in another folder."
            )
        return None

    def _steps(self) -> set[int]:
        """Steps that have a file, whether it is damaged or not."""
        found = (FILE_NAME.fullmatch(path.name) for path in self.folder.glob("step-*"))
        steps = ((int(match[1]), match[0]) for match in found if match)
        return {step for step, name in steps if self.path(step).name == name}  # 0-padded as ours

    def _prune(self, saved: int) -> None:
        """Delete files older than the newest `KEEP` verified ones, as far as that is possible."""
        with suppress(OSError):
            steps = self._steps()
            self._verified &= steps
            kept = sorted(self._verified, reverse=True)[:KEEP]
            if len(kept) < KEEP:
                return
            for step in steps - {saved}:
                if step < kept[-1]:
                    with suppress(OSError):
                        self.path(step).unlink()


def refuse_non_finite(tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for a state with NaN or infinity: training cannot continue from it."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # The extremes show every NaN and infinity and need no memory.
        if not all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor.detach())):
            raise CheckpointError(
                f"the checkpoint was not saved: the tensor {name!r} has non-finite values; resume "
                "from the last checkpoint, and lower the learning rate if it happens again."
            )
