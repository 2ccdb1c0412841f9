"""What training costs on this machine: the loop beside bare passes, and images per second.

For each size and resolution a real run is set up (real images, teacher, workers, logs, average) and
takes stretches of steps without a pause, each followed by bare forward and backward passes of the
same student at the same budgets while nothing else runs. What the loop adds is the time of a step
without teacher and optimizer, over that of the bare pass.

    python benchmarks/training_cost.py --images DIR --out build/training-cost
"""

import argparse
import dataclasses
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

from veca.analysis.machine import this_machine
from veca.data.loader import Batch
from veca.distill.losses import distillation_losses
from veca.distill.run import build_trainer
from veca.distill.run_folder import RunContext, RunFolder
from veca.distill.trainer import Trainer
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


def bare_pass(trainer: Trainer, images: torch.Tensor, targets: list[Targets], step: int) -> float:
    """Seconds of a forward and backward pass of the student with its losses, nothing else."""
    config = trainer.config
    budget = draw_budget(config.student, config.seed, step)
    share = draw_share(config.student, config.seed, step)
    start = time.perf_counter()
    pred = trainer.student(images, budget, share)[0]
    distillation_losses(pred.image, pred.patches, targets[0]).total(config.loss).backward()
    seconds = time.perf_counter() - start
    trainer.optimizers.zero_grad()
    return seconds


def measure(arguments: argparse.Namespace, size: str, pixels: int, folder: Path) -> dict[str, Any]:
    """One row: a size at a resolution, with the teacher live, or with its outputs kept."""
    recipe = RECIPES["tiny"]()
    backbone = RECIPES[size]().config.backbone
    config = dataclasses.replace(
        recipe.config, backbone=backbone, images=arguments.images, resolution=pixels,
        batch=arguments.batch, steps=10_000, statistics_images=32, validation_images=32,
    )  # fmt: skip
    options = dataclasses.replace(recipe.options, device="cpu", workers=arguments.workers)
    ranks = Ranks(device=torch.device("cpu"))
    context = RunContext(config=config, options=options, folder=RunFolder(folder), ranks=ranks)
    trainer = build_trainer(context, cache_teacher=arguments.cache)
    trainer.fit_targets()
    teacher, optimizer, waiting = Clock(), Clock(), Clock()
    trainer._targets = teacher.around(trainer._targets)  # type: ignore[method-assign]
    trainer.optimizers.step = optimizer.around(trainer.optimizers.step)  # type: ignore[method-assign]
    ratios, whole, count = [], 0.0, 0
    for number in range(arguments.rounds + 1):
        if number == 1:  # the round before was to get warm
            for clock in (teacher, optimizer, waiting):
                clock.seconds = 0.0
        before = teacher.seconds + optimizer.seconds
        first = trainer.state.step
        with closing(trainer.batches()) as feed:
            batch, seconds = _stretch(trainer, feed, waiting, arguments.steps)
        own = seconds - (teacher.seconds + optimizer.seconds - before)
        bare = _bare(trainer, batch, range(first, first + arguments.steps))
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
    trainer: Trainer,
    feed: Generator[Batch, None, None],
    waiting: Clock,
    steps: int,
) -> tuple[Batch, float]:
    """Real steps without a pause, with all logs; a batch of them, and the seconds they took.

    The first batch is decoded before the clock starts, as in a run that is under way.
    """
    last = next(feed)
    held = _held(last, feed, waiting)
    start = time.perf_counter()
    for _ in range(steps):
        row, _ = trainer.train_step(held)
        trainer.metrics.step(row, trainer.config.batch)
    seconds = time.perf_counter() - start
    return last, seconds


def _held(
    first: Batch, feed: Generator[Batch, None, None], waiting: Clock
) -> Generator[Batch, None, None]:
    """A batch in hand, then those of the feed, with the waiting counted."""
    yield first
    while True:
        yield waiting.around(next)(feed)


def _bare(trainer: Trainer, batch: Batch, steps: range) -> float:
    """Seconds of bare passes at the budgets of these steps, with nothing running beside them."""
    side = trainer.config.student.patch_size
    grid = (batch.images.shape[2] // side, batch.images.shape[3] // side)
    targets = trainer.source(batch.images, grid)
    return sum(bare_pass(trainer, batch.images, targets, step) for step in steps)


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
