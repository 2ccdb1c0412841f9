"""Time of a forward pass, so measured that the times of one report can be compared."""

import random
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from veca.probe.frozen import ProbeModel
from veca.probe.setting import Setting

MOST_SECONDS = 60.0
"""No further round begins after so long."""


def milliseconds(
    models: Sequence[tuple[ProbeModel, Setting]],
    sides: tuple[int, int],
    rounds: int = 7,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median time for one image of this height and width, for each model at its setting.

    Each side is brought to the nearest that fits a model's stride and is not larger. Everybody
    takes part in every round, in an order that is drawn anew: what slows the machine for a while
    slows all, so ratios hold where times do not.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} measures nothing; use at least 1.")
    calls = [_call(model, sides, setting) for model, setting in models]
    for call in calls:
        call()  # the first one also loads kernels and reserves memory
    order, draw = list(range(len(calls))), random.Random(0)
    samples: list[list[float]] = [[] for _ in calls]
    begin = clock()
    for _ in range(rounds):
        draw.shuffle(order)
        for number in order:
            start = clock()
            calls[number]()
            samples[number].append(1000 * (clock() - start))
        if clock() - begin > MOST_SECONDS:
            break
    return [statistics.median(found) for found in samples]


def _call(model: ProbeModel, sides: tuple[int, int], setting: Setting) -> Callable[[], None]:
    """A function that returns when the features of one image are there."""
    height, width = (model.fitted_side(side) for side in sides)
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8, generator=draw)
    image = image.to(model.device)

    def observe() -> None:
        model.observe(image, setting)
        if model.device.type != "cpu":
            torch.accelerator.synchronize(model.device)

    return observe
