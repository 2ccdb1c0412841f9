"""The order of things in a run: validate, step, save, and leave when asked to."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.distill.built import Built, build, place_of
from tests.distill.runs import ALONE, pictures
from veca.distill.checkpoints import Checkpoints
from veca.distill.journal import Journal
from veca.distill.live import SilentLive
from veca.distill.loop import Loop
from veca.distill.training import NonFiniteError, Training
from veca.distill.validation import Validation
from veca.runtime.shards import StoppedError
from veca.runtime.snapshots import Snapshots
from veca.weights.card import Provenance

Events = list[tuple[str, int]]


@dataclass(kw_only=True)
class NotedCheckpoints(Checkpoints):
    """Writes nothing, but notes when it would."""

    events: Events

    def save(self) -> bool:
        """Note it."""
        name = "finished" if self.training.progress.finished else "save"
        self.events.append((name, self.training.progress.step))
        return True

    def publish_best(self) -> None:
        """Note it."""
        self.events.append(("best", self.training.progress.step))


class ScriptedValidation(Validation):
    """Finds the losses that it is told."""

    def __init__(self, training: Training, losses: Sequence[float | None], events: Events) -> None:
        self.training, self.losses, self.events = training, list(losses), events

    def rows(self) -> list[dict[str, Any]]:
        """Two budgets around the next loss; an empty script stops the run."""
        step = self.training.progress.step
        self.events.append(("validate", step))
        if not self.losses:
            raise StoppedError
        loss = self.losses.pop(0)
        found = [None, 1.0] if loss is None else [loss - 0.1, loss + 0.1]
        return [
            {"kind": "validation", "step": step, "budget": budget, "ffn": 1.0, "resolution": 32,
             "loss": value}
            for budget, value in zip((2, 4), found, strict=True)
        ]  # fmt: skip


class Told(SilentLive):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__(0)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        """Keep it."""
        self.said.append(text)


class Rig:
    """A loop whose parts note what they are asked."""

    def __init__(
        self,
        run: Built,
        losses: Sequence[float | None],
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.events: Events = []
        self.live = Told()
        self.run = run
        self.journal = Journal(run.place.folder, self.live, run.training.meter, {}, None)
        checkpoints = NotedCheckpoints(
            training=run.training,
            constants=[],
            fingerprint="",
            folder=run.place.folder,
            snapshots=Snapshots(run.place.folder.checkpoints),
            provenance=Provenance(),
            sync_logs=lambda: None,
            say=self.live.say,
            events=self.events,
        )
        self.loop = Loop(
            training=run.training,
            validation=ScriptedValidation(run.training, losses, self.events),
            checkpoints=checkpoints,
            journal=self.journal,
            asked_to_stop=asked_to_stop,
        )

    def go(self) -> bool:
        """Run to the end."""
        with closing(self.journal), closing(self.run.feed()) as feed:
            return self.loop.run(feed)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two dozen pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def built(images: Path, out: Path, save_every: int = 3, **changes: Any) -> Built:
    """A run of seven steps that validates every four."""
    efficiency = replace(ALONE, save_every=save_every)
    return build(images, place_of(out), efficiency, **{"steps": 7, "validate_every": 4, **changes})


def test_a_run_validates_saves_and_publishes_in_this_order(images: Path, tmp_path: Path) -> None:
    rig = Rig(built(images, tmp_path), [3.0, 2.0, 1.0])
    assert rig.go()
    assert rig.events == [
        ("validate", 0), ("best", 0),
        ("save", 3),
        ("validate", 4), ("best", 4),
        ("save", 6),
        ("validate", 7), ("best", 7),
        ("finished", 7),
    ]  # fmt: skip
    assert rig.live.said[0] == "Validation before step 0 at 32 px: 2 cores 2.9000, 4 cores 3.1000"


def test_the_last_step_is_saved_once(images: Path, tmp_path: Path) -> None:
    rig = Rig(built(images, tmp_path, save_every=7), [1.0, 1.0, 1.0])
    assert rig.go()
    assert [event for event in rig.events if event[0] != "validate"] == [
        ("best", 0), ("finished", 7),
    ]  # fmt: skip


def test_only_a_lower_mean_is_published_as_the_best(images: Path, tmp_path: Path) -> None:
    rig = Rig(built(images, tmp_path, validate_every=2), [2.0, 3.0, 1.0, 1.0, 0.5])
    assert rig.go()
    assert [step for name, step in rig.events if name == "best"] == [0, 4, 7]
    progress = rig.run.training.progress
    assert progress.best_loss == pytest.approx(0.5)
    assert progress.best_step == 7


def test_weights_whose_loss_is_not_finite_are_not_kept(images: Path, tmp_path: Path) -> None:
    rig = Rig(built(images, tmp_path), [None, 2.0, None])
    assert rig.go()
    assert [step for name, step in rig.events if name == "best"] == [4]
    assert (
        rig.live.said.count("The validation loss is not finite; these weights are not kept.") == 2
    )


def test_a_run_that_is_asked_to_stop_ends_after_the_step_and_saves_it(
    images: Path, tmp_path: Path
) -> None:
    run = built(images, tmp_path)
    rig = Rig(run, [1.0], lambda: run.training.progress.step == 1)
    assert not rig.go()
    assert rig.events == [("validate", 0), ("best", 0), ("save", 2)]
    assert rig.live.said[-1] == "Stopped at step 2; --resume continues it."


@pytest.mark.parametrize(
    ("losses", "events"),
    [
        ([], [("validate", 0), ("save", 0)]),
        ([1.0], [("validate", 0), ("best", 0), ("save", 3), ("validate", 4), ("save", 4)]),
        ([1.0, 1.0], [("validate", 0), ("best", 0), ("save", 3), ("validate", 4), ("save", 6),
                      ("validate", 7), ("save", 7)]),
    ],
)  # fmt: skip
def test_a_run_that_is_asked_to_stop_while_it_validates_saves_and_validates_again_later(
    images: Path, tmp_path: Path, losses: list[float], events: Events
) -> None:
    run = built(images, tmp_path)
    rig = Rig(run, losses)
    assert not rig.go()
    assert rig.events == events
    assert not run.training.progress.finished
    again = Rig(run, [0.5, 0.5, 0.5])
    assert again.go()
    assert again.events[0] == ("validate", events[-1][1])
    assert again.events[-1] == ("finished", 7)


def test_a_run_that_is_prolonged_is_not_finished_until_its_new_end(
    images: Path, tmp_path: Path
) -> None:
    run = built(images, tmp_path)
    run.training.progress.step, run.training.progress.finished = 5, True
    rig = Rig(run, [1.0])
    assert rig.go()
    assert rig.events == [("save", 6), ("validate", 7), ("best", 7), ("finished", 7)]


def test_too_many_skips_end_the_run_without_a_checkpoint(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate = Training._accumulate
    monkeypatch.setattr(
        Training, "_accumulate", lambda self, *given: accumulate(self, *given) * float("nan")
    )
    rig = Rig(built(images, tmp_path, max_skips=1, save_every=1), [1.0])
    with pytest.raises(NonFiniteError, match="2 steps in a row"):
        rig.go()
    assert rig.events == [("validate", 0), ("best", 0), ("save", 1)]
    assert sum("was skipped" in text for text in rig.live.said) == 2
