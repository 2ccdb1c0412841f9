"""What training costs on this machine: the loop beside bare passes, and images per second.

For each size and resolution a real run is set up (real images, teacher, workers, logs, average) and
takes stretches of steps without a pause, each followed by bare forward and backward passes of the
same student at the same budgets while nothing else runs. What the loop adds is the time of a step
without teacher and optimizer, over that of the bare pass.

    python benchmarks/training_cost.py --images DIR --out build/training-cost
"""

import argparse
import dataclasses
import io
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from veca.analysis.machine import this_machine
from veca.data.loader import Batch
from veca.distill.feed import tasks, training_batches
from veca.distill.journal import Journal
from veca.distill.live import Live
from veca.distill.losses import distillation_losses
from veca.distill.run_folder import RunFolder
from veca.distill.setup import (
    Place,
    build_training,
    find_pictures,
    find_teachers,
    fit_to_teachers,
)
from veca.distill.tensorboard import open_tensorboard
from veca.distill.training import Training
from veca.recipes.distill import RECIPES
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets
from veca.train.schedules import draw_budget, draw_share


class Clock:
    """Adds up the seconds within calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - start

        return timed


def bare_pass(training: Training, images: torch.Tensor, targets: list[Targets], step: int) -> float:
    """Seconds of a forward and backward pass of the student with its losses, nothing else."""
    config = training.config
    budget = draw_budget(config.student, config.seed, step)
    share = draw_share(config.student, config.seed, step)
    start = time.perf_counter()
    said = training.student(images, budget, share)[0]
    distillation_losses(said.image, said.patches, targets[0]).total(config.loss).backward()
    seconds = time.perf_counter() - start
    training.optimizers.zero_grad()
    return seconds


def measure(arguments: argparse.Namespace, size: str, pixels: int, folder: Path) -> dict[str, Any]:
    """One row: a size at a resolution, with the teacher live, or with its outputs kept."""
    recipe = RECIPES["tiny"]()
    backbone = RECIPES[size]().config.backbone
    config = dataclasses.replace(
        recipe.config, backbone=backbone, images=arguments.images, resolution=pixels,
        batch=arguments.batch, steps=10_000, statistics_images=32, validation_images=32,
    )  # fmt: skip
    efficiency = dataclasses.replace(recipe.efficiency, device="cpu", workers=arguments.workers)
    workers = Ranks(device=torch.device("cpu"))
    cache = arguments.cache or None
    place = Place(
        folder=RunFolder(folder), workers=workers, say=print, asked_to_stop=lambda: False,
        cache_folder=cache,
    )  # fmt: skip
    pictures = find_pictures(config, place)
    teachers = find_teachers(config, None)
    training = build_training(config, efficiency, pictures, teachers, place)
    fit_to_teachers(training, pictures, lambda: False)
    teacher, optimizer, waiting = Clock(), Clock(), Clock()
    training._targets = teacher.around(training._targets)  # type: ignore[method-assign]
    training.optimizers.step = optimizer.around(training.optimizers.step)  # type: ignore[method-assign]
    crops = None if training.cache is None else training.cache.crops
    ratios, whole, count = [], 0.0, 0
    for number in range(arguments.rounds + 1):
        if number == 1:  # the round before was to get warm
            for clock in (teacher, optimizer, waiting):
                clock.seconds = 0.0
        before = teacher.seconds + optimizer.seconds
        first = training.progress.step
        found = tasks(config, efficiency, pictures.training, workers,
                      steps=range(first, 10_000), length=10_000, crops=crops)  # fmt: skip
        seed = config.seed if crops is None else config.cache.seed
        with closing(training_batches(pictures, found, config, efficiency, seed)) as feed:
            batch, seconds = _stretch(training, feed, waiting, arguments.steps, folder)
        own = seconds - (teacher.seconds + optimizer.seconds - before)
        bare = _bare(training, batch, range(first, first + arguments.steps))
        if number:
            ratios.append(own / bare)
            whole, count = whole + seconds, count + arguments.steps
    return {
        "loop_over_bare": statistics.median(ratios),
        "loop_over_bare_all": ratios,
        "images_per_second": count * config.batch / whole,
        "share_teacher": teacher.seconds / whole,
        "share_optimizer": optimizer.seconds / whole,
        "share_waiting_for_data": waiting.seconds / whole,
        "steps": count,
    }


def _stretch(
    training: Training,
    feed: Generator[Batch, None, None],
    waiting: Clock,
    steps: int,
    folder: Path,
) -> tuple[Batch, float]:
    """Real steps without a pause, with all logs; a batch of them, and the seconds they took.

    The first batch is decoded before the clock starts, as in a run that is under way.
    """
    last = next(feed)
    held = _held(last, feed, waiting)
    live = Live(10_000, Console(file=io.StringIO()))
    board = open_tensorboard(folder / "tensorboard", training.progress.step)
    with closing(Journal(RunFolder(folder), live, training.meter, {}, board)) as journal:
        start = time.perf_counter()
        for _ in range(steps):
            journal.step(training.take_step(held, False))
        seconds = time.perf_counter() - start
    return last, seconds


def _held(
    first: Batch, feed: Generator[Batch, None, None], waiting: Clock
) -> Generator[Batch, None, None]:
    """A batch in hand, then those of the feed, with the waiting counted."""
    yield first
    while True:
        yield waiting.around(next)(feed)


def _bare(training: Training, batch: Batch, steps: range) -> float:
    """Seconds of bare passes at the budgets of these steps, with nothing running beside them."""
    side = training.config.student.patch_size
    grid = (batch.images.shape[2] // side, batch.images.shape[3] // side)
    targets = training.source(batch.images, grid)
    return sum(bare_pass(training, batch.images, targets, step) for step in steps)


def main() -> None:
    """Measure what the flags say, and write results.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sizes", default="tiny,small")
    parser.add_argument("--pixels", default="128,224,256")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cache", type=Path, default=None)
    arguments = parser.parse_args()
    rows = []
    for size, pixels in itertools.product(arguments.sizes.split(","), arguments.pixels.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            row = measure(arguments, size, int(pixels), Path(folder))
        rows.append({"size": size, "pixels": int(pixels), "kept": arguments.cache is not None,
                     "batch": arguments.batch, "workers": arguments.workers,
                     "threads": torch.get_num_threads(), **row})  # fmt: skip
        print(json.dumps(rows[-1]), flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    facts = {"machine": str(this_machine()), "rows": rows}
    (arguments.out / "results.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
