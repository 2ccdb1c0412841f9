"""Saving a run: checkpoints to resume from, and the models that are published from it.

A save that fails, on a full disk say, is told and training goes on; the checkpoints before it stay
whole. Only when several in a row fail does the run stop, since nothing would be kept of it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from veca.distill.config import DistillConfig
from veca.distill.publish import publish
from veca.distill.run_folder import RunError, RunFolder
from veca.distill.state import gather
from veca.distill.target_scaling import Constants
from veca.distill.training import Training, published_tensors
from veca.runtime.snapshots import SnapshotError, Snapshots, refuse_non_finite
from veca.weights.card import Provenance

MOST_FAILURES = 3
"""Saves in a row that may fail."""


@dataclass(kw_only=True)
class Checkpoints:
    """Writes what a run keeps; the first process writes, all of them gather."""

    training: Training
    constants: list[Constants]
    fingerprint: str
    folder: RunFolder
    snapshots: Snapshots
    provenance: Provenance
    sync_logs: Callable[[], None]
    """Brings the logs to the disk, so that no checkpoint is ahead of them."""
    say: Callable[[str], None]
    failures: int = field(default=0, init=False)
    """Checkpoints in a row that could not be saved."""

    def save(self) -> bool:
        """Write a checkpoint and the model of this step; whether that worked."""
        tensors, facts = gather(self.training, self.constants, self.fingerprint)
        facts["provenance"] = self.provenance.known()
        weights = published_tensors(self.training)
        step = self.training.progress.step

        def write() -> None:
            self.sync_logs()
            refuse_non_finite(tensors)
            # The checkpoint comes last: one that says the run is finished must not be there
            # before the model is, or a kill between the two would leave an old one for good.
            self._publish(weights, self.folder.last)
            self.snapshots.save(step, tensors, facts)

        reason = self._attempt(f"the checkpoint of step {step:,}", write)
        self.failures = self.failures + 1 if reason else 0
        if self.failures >= MOST_FAILURES:
            raise RunError(
                f"{self.failures} saves in a row failed, the last for this reason: {reason}. Make "
                "room or repair the disk, then continue with --resume."
            )
        return not reason

    def save_last(self) -> None:
        """Write the checkpoint with which a run ends; there is no later one to make up for it."""
        if not self.save():
            raise RunError(
                f"the checkpoint of step {self.training.progress.step:,}, the last one, could not "
                "be saved; make room or repair the disk, then continue with --resume."
            )

    def publish_best(self) -> None:
        """Publish the weights of now as the best; what fails here stops no run."""
        weights = published_tensors(self.training)
        self._attempt("the best model", lambda: self._publish(weights, self.folder.best))

    def _publish(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Write a model that veca.load reads."""
        config: DistillConfig = self.training.config
        publish(weights, config, folder, self.provenance, self.training.efficiency.publish_adaptors)

    def _attempt(self, what: str, write: Callable[[], None]) -> str:
        """Write on the first process; every one learns why it failed, if it did."""
        reason = ""
        if self.training.workers.is_main:
            try:
                write()
            except (OSError, SnapshotError) as error:
                reason = " ".join(str(error).split()) or type(error).__name__
        reason = str(self.training.workers.broadcast_object(reason))
        if reason:
            self.say(f"Could not save {what} ({reason}); training goes on, older ones are whole.")
        return reason
