"""Which pictures go through the model together.

Inputs are taken in windows of some thousands, one after the other; a window becomes a shard. Within
a window, pictures whose prepared sides agree (told by their headers, before anything is decoded)
make batches, and their features go back to their places. So memory is bounded by a window, order is
kept, and what a run computes does not depend on where an earlier one was stopped.
"""

import contextlib
from collections import defaultdict, deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from veca.data.images import ImageError, read_size
from veca.data.listing import ImageEntry, ImageTable, one_line, open_image
from veca.data.transforms import Fit, fitted

WINDOW = 4096
"""Inputs of a window at most."""

WINDOW_PATCHES = 2**18
"""Patches after which a window ends, 1,024 squares of 256 pixels: what a run loses when it is
stopped is then a matter of minutes, whatever the size of the pictures."""

WINDOW_BYTES = 2**27
"""Bytes of patch maps after which a window ends: they are kept in memory until it is done."""

MOST_PATCHES = 2**16
"""Patches that one picture may become."""

LENGTHY = 2
"""A batch has as many patches as if its pictures were so many times as long as high."""

THREADS = 8
"""Threads that read headers: most of that is waiting for the disk."""

CHUNK = 64
"""Headers that a thread reads at a time."""

Grid = tuple[int, int]


class Task(NamedTuple):
    """A batch to decode; one without pictures only says that its window was reached."""

    window: int

    places: NDArray[np.int64]
    """Places of the pictures in their window."""

    rows: NDArray[np.int64]
    """Their rows in the table of inputs."""


@dataclass
class Window:
    """Inputs that become a shard."""

    number: int
    rows: NDArray[np.int64]
    """Rows in the table of inputs, in order."""

    skipped: dict[int, str] = field(default_factory=dict)
    """Places of what cannot be read, with the reason."""

    batches: list[NDArray[np.int64]] = field(default_factory=list)
    """Places of the pictures that go through the model together."""

    def tasks(self) -> Iterator[Task]:
        """One for each batch, and one where there is none."""
        for places in self.batches or [np.empty(0, np.int64)]:
            yield Task(self.number, places, self.rows[places])


@dataclass(frozen=True, kw_only=True)
class Planner:
    """Cuts inputs into windows, and windows into batches."""

    table: ImageTable
    problems: Mapping[int, str]
    """Rows that are known to be no pictures."""

    size: int
    fit: Fit
    patch_size: int
    batch: int
    """Pictures of a batch at most."""

    map_bytes: int
    """Bytes that one patch takes in a stored map; 0 where maps are not stored."""

    def windows(self, rows: NDArray[np.int64]) -> Iterator[Window]:
        """Cut rows into windows; headers of the next window are read meanwhile."""
        number, first, patches = 0, 0, 0
        most = min(WINDOW_PATCHES, WINDOW_BYTES // max(1, self.map_bytes))
        grids: list[Grid | str] = []
        with contextlib.closing(self._grids(rows)) as found:
            for grid in found:
                grids.append(grid)
                patches += 0 if isinstance(grid, str) else grid[0] * grid[1]
                if len(grids) == WINDOW or patches >= most:
                    yield self._window(number, rows[first : first + len(grids)], grids)
                    number, first, patches = number + 1, first + len(grids), 0
                    grids = []
        if grids:
            yield self._window(number, rows[first:], grids)

    def _window(self, number: int, rows: NDArray[np.int64], grids: Sequence[Grid | str]) -> Window:
        """Sort the pictures of a window into batches."""
        window = Window(number, rows)
        buckets: defaultdict[Grid, list[int]] = defaultdict(list)
        for place, grid in enumerate(grids):
            if isinstance(grid, str):
                window.skipped[place] = grid
            else:
                buckets[grid].append(place)
        for grid, places in buckets.items():
            step = self._pictures_of_a_batch(grid)
            window.batches += [
                np.array(places[start : start + step]) for start in range(0, len(places), step)
            ]
        return window

    def _pictures_of_a_batch(self, grid: Grid) -> int:
        """Fewer than asked for where pictures are much longer than high."""
        square = max(1, self.size // self.patch_size) ** 2
        return max(1, min(self.batch, LENGTHY * self.batch * square // (grid[0] * grid[1])))

    def _grids(self, rows: NDArray[np.int64]) -> Generator[Grid | str, None, None]:
        """Rows and columns of patches of each input, or why it has none."""
        pool = ThreadPoolExecutor(THREADS, "headers")
        waiting: deque[Future[list[Grid | str]]] = deque()
        try:
            for start in range(0, len(rows), CHUNK):
                waiting.append(pool.submit(self._grids_of, rows[start : start + CHUNK]))
                if len(waiting) > WINDOW // CHUNK:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _grids_of(self, rows: NDArray[np.int64]) -> list[Grid | str]:
        """The same for some inputs."""
        return [self.problems.get(int(row)) or self._grid(self.table[int(row)]) for row in rows]

    def _grid(self, source: ImageEntry) -> Grid | str:
        """The same for one input."""
        if self.fit == "crop":  # all pictures get one shape, so there is no need to look
            side = self.size // self.patch_size
            return side, side
        try:
            with open_image(source) as file:
                width, height = read_size(file)
            grid = fitted((height, width), self.size, self.fit, self.patch_size).grid
        except (ImageError, OSError) as error:
            return one_line(error)
        if grid[0] * grid[1] > MOST_PATCHES:
            return (
                f"{width} x {height} pixels become {grid[0]:,} x {grid[1]:,} patches, more than "
                f"{MOST_PATCHES:,}; use a smaller size, or fit 'pad' or 'crop'."
            )
        return grid
