"""What a picture costs on its way through the backbones of a job."""

from collections.abc import Sequence
from typing import NamedTuple

from veca.probe.measured import Found
from veca.probe.setting import Setting
from veca.probe.speed import milliseconds


class Cost(NamedTuple):
    """Of one picture through a backbone."""

    milliseconds: float | None
    gflops: float | None


def costs_of(found: Sequence[Found], rounds: int) -> dict[tuple[str, int, Setting], Cost]:
    """By model, resolution and setting; times are taken in turns, and none with 0 rounds."""
    costs: dict[tuple[str, int, Setting], Cost] = {}
    for resolution in dict.fromkeys(one.resolution for one in found):
        wanted = {
            (one.who.asked, resolution, one.measured.setting): one.who.model
            for one in found
            if one.resolution == resolution
        }
        pairs = [(model, key[2]) for key, model in wanted.items()]
        times: Sequence[float | None] = [None] * len(pairs)
        if rounds:
            times = milliseconds(pairs, (resolution, resolution), rounds)
        for (key, model), time in zip(wanted.items(), times, strict=True):
            side = model.fitted_side(resolution)
            costs[key] = Cost(time, model.gflops((side, side), key[2]))
    return costs
