"""The training loop: validate, step, log, save, and leave in order when asked to.

Validation of step n happens before the update of step n, and after the last one. What is logged
depends on configuration and images alone, so a run that was killed and resumed logs again what it
had logged.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass

from veca.data.loader import Batch
from veca.distill.checkpoints import Checkpoints
from veca.distill.journal import Journal
from veca.distill.training import Training
from veca.distill.validation import Validation
from veca.runtime.shards import StoppedError


@dataclass(frozen=True, kw_only=True)
class Loop:
    """What a run needs beside its training."""

    training: Training
    validation: Validation
    checkpoints: Checkpoints
    journal: Journal
    asked_to_stop: Callable[[], bool]

    def run(self, feed: Generator[Batch, None, None]) -> bool:
        """Train to the end (True), or until asked to stop (False); either way all is saved."""
        training, progress = self.training, self.training.progress
        progress.finished = False  # it may be prolonged
        try:
            while progress.step < training.length:
                if progress.step % training.config.validate_every == 0:
                    with training.meter.aside():
                        self._validate()
                report = training.take_step(feed, self.asked_to_stop())
                self.journal.step(report)
                training.check_skips()
                if report.stop:
                    raise StoppedError
                if self._is_due(progress.step):
                    with training.meter.aside():
                        self.checkpoints.save()
            self._validate()
        except StoppedError:
            self.checkpoints.save_last()
            self.journal.say(f"Stopped at step {progress.step:,}; --resume continues it.")
            return False
        progress.finished = True
        self.checkpoints.save_last()
        return True

    def _is_due(self, step: int) -> bool:
        """Whether a checkpoint is to be saved now; the last step has its own at the end."""
        training = self.training
        return step % training.efficiency.save_every == 0 and step < training.length

    def _validate(self) -> None:
        """Score every budget, and publish the weights if they are the best so far."""
        rows = self.validation.rows()
        self.journal.validation(rows)
        losses = [row["loss"] for row in rows]
        if any(loss is None for loss in losses):
            self.journal.say("The validation loss is not finite; these weights are not kept.")
            return
        mean = sum(losses) / len(losses)
        progress = self.training.progress
        if progress.best_loss is None or mean < progress.best_loss:
            progress.best_loss, progress.best_step = mean, progress.step
            self.checkpoints.publish_best()
