"""The live objects of a small run that is built but not begun, for tests that take single steps."""

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import torch

from tests.distill.runs import ALONE, TINY, PixelTeacher, small_config
from veca.backbone.model import VECA
from veca.data.loader import Batch
from veca.distill.adaptors import Adaptor
from veca.distill.config import Efficiency
from veca.distill.feed import Pictures, tasks, training_batches
from veca.distill.run_folder import RunFolder
from veca.distill.setup import Place, build_training, find_pictures
from veca.distill.student import Student
from veca.distill.training import StepReport, Training
from veca.runtime.distributed import Ranks

CPU = torch.device("cpu")
ONE = Ranks(device=CPU)


class Built(NamedTuple):
    """A run before its first step."""

    training: Training
    pictures: Pictures
    place: Place

    def feed(self) -> Generator[Batch, None, None]:
        """The batches of the steps that are left."""
        training = self.training
        found = tasks(
            training.config,
            training.efficiency,
            self.pictures.training,
            training.workers,
            steps=range(training.progress.step, training.length),
            length=training.length,
            crops=None if training.cache is None else training.cache.crops,
        )
        cached = training.cache is not None
        seed = training.config.cache.seed if cached else training.config.seed
        return training_batches(
            self.pictures,
            found,
            training.config,
            training.efficiency,
            seed,
            margin=training.source.margin,
            give_margin=not cached,
        )

    def advance(self, steps: int) -> list[StepReport]:
        """Take some steps."""
        with closing(self.feed()) as feed:
            return [self.training.take_step(feed, False) for _ in range(steps)]


def place_of(
    folder: Path,
    workers: Ranks = ONE,
    say: Callable[[str], None] = lambda _: None,
    cache: Path | None = None,
) -> Place:
    """Where a run is set up."""
    run_folder = RunFolder(folder)
    run_folder.prepare(resume=True)
    return Place(
        folder=run_folder,
        workers=workers,
        say=say,
        asked_to_stop=lambda: False,
        cache_folder=cache,
    )


def build(
    images: Path,
    place: Place,
    efficiency: Efficiency = ALONE,
    **changes: Any,
) -> Built:
    """The small run of `runs.py` with its teacher."""
    config = small_config(images, **changes)
    pictures = find_pictures(config, place)
    teachers = [PixelTeacher(name) for name in config.teacher]
    return Built(build_training(config, efficiency, pictures, teachers, place), pictures, place)


def small_student(seed: int = 0) -> Student:
    """A student for one teacher, with weights of chance."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        student = Student(VECA(TINY), [Adaptor(TINY.width, 12, 20, "linear")])
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return student
