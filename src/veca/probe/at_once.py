"""Several settings of a model computed at the same time, each by a thread that waits for no other.

Threads that share a product wait for the slowest of them at every step, so that two are slower than
one as soon as a loader or anything else runs beside them. A thread with a setting to itself is not
held up: on two processors and three budgets of tiny, 76 views a second instead of 37.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from veca.probe.frozen import ProbeModel
from veca.probe.setting import Setting
from veca.runtime.threads import usable_processors

MOST = 4
"""Settings that are computed at the same time, each of which takes its own memory."""

Answer = TypeVar("Answer")


class AtOnce:
    """Does something for settings."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def each(self, settings: Sequence[Setting], work: Callable[[Setting], Answer]) -> list[Answer]:
        """What the work gives for each setting, in their order; the dearest is begun first."""
        dearest = sorted(range(len(settings)), key=lambda place: -(settings[place].budget or 0))
        begun = {place: self._pool.submit(work, settings[place]) for place in dearest}
        return [begun[place].result() for place in range(len(settings))]


@contextmanager
def settings_at_once(model: ProbeModel, num_settings: int, loaders: int) -> Iterator[AtOnce]:
    """Threads for so many settings, beside processes that decode pictures."""
    count = _at_once(model, num_settings)
    before, left = torch.get_num_threads(), usable_processors() - loaders
    torch.set_num_threads(max(1, min(before, left // count)))
    try:
        with ThreadPoolExecutor(count) as pool:
            yield AtOnce(pool)
    finally:
        torch.set_num_threads(before)


def _at_once(model: ProbeModel, num_settings: int) -> int:
    """How many settings are computed at the same time.

    Of networks that are not ours it is not known whether several threads may go through them.
    """
    if model.facts.kind != "veca" or model.device.type != "cpu":
        return 1
    return max(1, min(num_settings, MOST, torch.get_num_threads(), usable_processors()))
