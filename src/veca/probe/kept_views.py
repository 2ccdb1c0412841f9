"""Batches of training views with their features: of views that are kept, or drawn at every step.

Kept are a few views of each picture, drawn once and for all. Their features are computed once, for
all seeds and for later runs, which makes small sets quick; seeds then differ in the head's first
weights and in the order of views, not in the views.
"""

import itertools
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Shaped, UInt8
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.loader import sample_order
from veca.data.sets.dataset import Split
from veca.probe.dense_reading import Pair, load_pair, naming, read_all, target_facts
from veca.probe.feature_cache import (
    ArrayStore,
    Content,
    Missing,
    StoreError,
    fill_stores,
    model_facts,
    picture_facts,
)
from veca.probe.features import Place, settings_at_once
from veca.probe.models import Frozen, FrozenModel
from veca.probe.rows import Setting
from veca.probe.transforms import DenseCrop
from veca.runtime.device import seed_for

FORMAT = 1
"""Rises when the same facts would give other views or features."""

AT_ONCE = 16
"""Views that go through the model together, so that features depend neither on `Place.batch` nor on
what was kept before. Device, threads and libraries may still change their last bits."""

BLOCK = 64
"""Views of a file; a multiple of `AT_ONCE`."""

MEMORY = 2**31
"""Kept features of up to so many bytes are read into memory before a fit."""

LARGEST_HALF = 65504.0
"""The largest number of half precision; what lies beyond becomes this."""

FEATURES = Frozen._fields
"""Names of what is cached of a crop for each setting."""

TARGETS = ("targets",)
"""Names of what is kept of a view once."""


class ViewRecipe(NamedTuple):
    """How training views of a task are drawn."""

    facts: Mapping[str, Any]
    """All that they depend on, as plain values."""

    make: Callable[[Pair, random.Random], DenseCrop]
    """One view; a function of a module, so that worker processes can have it."""


class Drawn(NamedTuple):
    """A view to be drawn."""

    picture: int
    """Its number in the split."""

    seed: int


class Views(NamedTuple):
    """Some views, stacked."""

    images: UInt8[Tensor, "b 3 h w"]

    targets: Shaped[Tensor, "b h w"]


class DenseBatch(NamedTuple):
    """This rank's part of the images of a step."""

    features: Mapping[Setting, Frozen]

    targets: Shaped[Tensor, "b height width"]

    part: slice
    """Which images of the whole batch they are."""


class Batches(NamedTuple):
    """Which batches a fit gets."""

    pictures: NDArray[np.int64]
    """The training pictures that it may see."""

    size: int

    seed: int


def part_of_batch(size: int, place: Place) -> slice:
    """The pictures of a batch that are this worker's."""
    workers = place.workers
    if size < workers.world_size:
        raise DataError(
            f"a batch of {size} pictures cannot be shared by {workers.world_size} workers; start fewer."
        )
    return slice(
        workers.rank * size // workers.world_size, (workers.rank + 1) * size // workers.world_size
    )


class Source(NamedTuple):
    """Where training views come from, and what looks at them."""

    model: FrozenModel

    settings: Sequence[Setting]

    split: Split

    recipe: ViewRecipe

    place: Place

    def observed(self, images: UInt8[Tensor, "b 3 h w"], setting: Setting) -> Frozen:
        """What the model says of views, if it says numbers."""
        frozen = self.model.observe(images.to(self.place.workers.device), setting)
        if not (frozen.image.isfinite().all() and frozen.patches.isfinite().all()):
            raise StoreError(
                f"{self.model.name} gives numbers that are not finite for training views; use "
                "another model."
            )
        return frozen

    def views(self, tasks: Iterable[Sequence[Drawn]]) -> Generator[Views, None, None]:
        """The views of each task."""
        return read_all(partial(_draw, self.split, self.recipe.make), tasks, self.place.loaders)


def live_batches(source: Source, wanted: Batches, steps: int) -> Iterator[DenseBatch]:
    """Batches of new views; each is decoded once and goes through the model at every setting."""
    place = source.place
    part = part_of_batch(wanted.size, place)

    def tasks() -> Iterator[list[Drawn]]:
        for step in range(steps):
            places, epochs = sample_order(len(wanted.pictures), wanted.size, step, wanted.seed)
            drawn = zip(wanted.pictures[places][part].tolist(), epochs[part].tolist(), strict=True)
            yield [
                Drawn(index, seed_for(wanted.seed, epoch * len(source.split) + index, "view"))
                for index, epoch in drawn
            ]

    at_once = settings_at_once(source.model, len(source.settings), place.loaders)
    with at_once as several, closing(source.views(tasks())) as views:
        for images, targets in views:
            found = several.each(source.settings, partial(source.observed, images))
            features = dict(zip(source.settings, found, strict=True))
            yield DenseBatch(features, targets.to(place.workers.device), part)


class KeptViews:
    """Views of a split whose features are on the disk: view v of picture i is item v * N + i."""

    def __init__(self, source: Source, views: int) -> None:
        """Compute what is not there yet."""
        self._source, self._views = source, views
        self._settings = list(dict.fromkeys(source.settings))
        model, split, place = source.model, source.split, source.place
        facts = {
            "format": FORMAT,
            "kept": "dense training views",
            "pictures": picture_facts(split),
            "targets": target_facts(split),
            "views": {"count": views, **source.recipe.facts},
        }
        about = [
            {**facts, "model": model_facts(model), "setting": setting._asdict()}
            for setting in self._settings
        ]
        notes = {"model": model.name, "split": split.name}
        self._stores = [
            ArrayStore(place.folder, each, views * len(split), BLOCK, notes=notes)
            for each in (*about, facts)
        ]
        fill_stores(self._stores, self._parts, place.workers, place.tell, shown=place.shown)
        self._held: dict[tuple[int, str], Tensor] = {}
        if self._bytes() <= MEMORY:
            for row, store in enumerate(self._stores):
                for name in TARGETS if row == len(self._settings) else FEATURES:
                    self._held[row, name] = store.stacked(name)

    def batches(self, wanted: Batches) -> Iterator[DenseBatch]:
        """Batches without end; every view comes once before one comes again."""
        place = self._source.place
        part = part_of_batch(wanted.size, place)
        starts = np.arange(self._views)[:, None] * len(self._source.split)
        items = (starts + wanted.pictures).reshape(-1)
        for step in itertools.count():
            places, _ = sample_order(len(items), wanted.size, step, wanted.seed)
            rows = items[places][part]
            features = {
                setting: Frozen(*(self._gathered(number, name, rows) for name in FEATURES))
                for number, setting in enumerate(self._settings)
            }
            yield DenseBatch(features, self._gathered(len(self._settings), *TARGETS, rows), part)

    def _gathered(self, row: int, name: str, items: NDArray[np.int64]) -> Tensor:
        """Tensors of some items of a store."""
        held = self._held.get((row, name))
        found = self._stores[row].gather(name, items) if held is None else held[items]
        return found.to(self._source.place.workers.device)

    def _bytes(self) -> int:
        """Of all that is kept."""
        return sum(
            store.path(block).stat().st_size
            for store in self._stores
            for block in range(store.num_blocks)
        )

    def _parts(self, missing: Sequence[Missing]) -> Iterator[tuple[range, dict[int, Content]]]:
        """Features and targets of missing blocks, some views at a time."""
        turns = [
            (wanted, range(start, min(start + AT_ONCE, wanted.items.stop)))
            for wanted in missing
            for start in range(wanted.items.start, wanted.items.stop, AT_ONCE)
        ]
        tasks = [[self._drawn(item) for item in items] for _, items in turns]
        source, last = self._source, len(self._settings)
        at_once = settings_at_once(source.model, last, source.place.loaders)
        with at_once as several, closing(source.views(tasks)) as views:
            for (wanted, items), found in zip(turns, views, strict=True):
                rows = [row for row in wanted.stores if row < last]
                settings = [self._settings[row] for row in rows]
                contents = several.each(settings, partial(self._content, found.images))
                yield items, {**dict(zip(rows, contents, strict=True)), last: self._told(found)}

    def _content(self, images: UInt8[Tensor, "b 3 h w"], setting: Setting) -> Content:
        """What is kept of some views for one setting."""
        count = len(images)
        if count < AT_ONCE:
            images = torch.cat((images, images[-1:].expand(AT_ONCE - count, -1, -1, -1)))
        found = self._source.observed(images, setting)
        return {"patches": halved(found.patches[:count]), "image": found.image[:count].cpu()}

    def _told(self, views: Views) -> Content:
        """What is kept of some views once."""
        return {"targets": views.targets}

    def _drawn(self, item: int) -> Drawn:
        """The view that an item is."""
        return Drawn(item % len(self._source.split), seed_for(0, item, "kept view"))


def halved(values: Tensor) -> Tensor:
    """Features in half precision, in the memory of the CPU."""
    return values.clamp(-LARGEST_HALF, LARGEST_HALF).half().cpu()


def _draw(
    split: Split, make: Callable[[Pair, random.Random], DenseCrop], tasks: Sequence[Drawn]
) -> Views:
    """Some views of a split."""
    views = []
    for task in tasks:
        pair = load_pair(split, task.picture)
        with naming(split.image(task.picture).name):
            views.append(make(pair, random.Random(task.seed)))
    sizes = {tuple(view.target.shape) for view in views}
    if len(sizes) > 1:
        raise DataError(f"training views have several sizes, such as {sorted(sizes)[:2]}.")
    return Views(
        torch.stack([view.image for view in views]), torch.stack([view.target for view in views])
    )
