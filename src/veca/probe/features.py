"""Features of images, computed once.

Several settings of a model computed at the same time, each by a thread that waits for no other.

Threads that share a product wait for the slowest of them at every step, so that two are slower than
one as soon as a loader or anything else runs beside them. A thread with a setting to itself is not
held up: on two processors and three budgets of tiny, 76 views a second instead of 37.

The vectors that heads of classes see, by setting: on the disk, and few of them in memory.

Features of a frozen model for the pictures of a split: computed once, kept on disk, shared.

Every model sees the same views by the same code. A picture is decoded once for all settings that
lack it, by worker processes, and goes through the model in batches that depend neither on what was
kept before nor on how many processes there are: a run that was stopped, or several processes, end
with the same bits. Another `batch`, device or number of threads may change the last ones.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from veca.data.augment import ViewConfig
from veca.data.listing import ImageIndex
from veca.data.loader import Batch, BatchSpec, batches
from veca.data.sets.dataset import Split
from veca.probe.feature_cache import (
    ArrayStore,
    Content,
    Missing,
    StoreError,
    fill_stores,
    model_facts,
    picture_facts,
    unreadable,
)
from veca.probe.models import FrozenModel
from veca.probe.protocols import Feature
from veca.probe.rows import Setting
from veca.runtime.device import ResolvedPrecision, usable_processors
from veca.runtime.distributed import Ranks

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
def settings_at_once(model: FrozenModel, num_settings: int, loaders: int) -> Iterator[AtOnce]:
    """Threads for so many settings, beside processes that decode pictures."""
    count = _at_once(model, num_settings)
    before, left = torch.get_num_threads(), usable_processors() - loaders
    torch.set_num_threads(max(1, min(before, left // count)))
    try:
        with ThreadPoolExecutor(count) as pool:
            yield AtOnce(pool)
    finally:
        torch.set_num_threads(before)


def _at_once(model: FrozenModel, num_settings: int) -> int:
    """How many settings are computed at the same time.

    Of networks that are not ours it is not known whether several threads may go through them.
    """
    if model.facts.kind != "veca" or model.device.type != "cpu":
        return 1
    return max(1, min(num_settings, MOST, torch.get_num_threads(), usable_processors()))


FORMAT = 1
"""Rises when the same facts would give other features."""

IMAGE_BLOCK = 128
"""Pictures of a block."""

NUMBER_BYTES = 4
"""Of a number of a vector, in single precision."""


@dataclass(frozen=True, kw_only=True)
class ViewPlan:
    """Which views of each picture a model sees."""

    resolution: int
    """Sides in pixels; a model whose stride does not divide them gets the next smaller ones."""

    margin: int | float = 1.125
    """Short side of the picture, before the center view is cut, in sides of the view."""

    views: int = 0
    """Random views of each picture, of varied scale and half of them mirrored; 0 is the center."""

    area: tuple[float, float] = (0.08, 1.0)
    """Least and greatest share of the picture in a random view."""

    seed: int = 0
    """Of the random views."""

    def __post_init__(self) -> None:
        """Refuse what is no plan."""
        if self.resolution < 1 or self.views < 0:
            raise StoreError(
                f"resolution={self.resolution} with views={self.views} is no plan; use at least 1 "
                "pixel, and 0 or more views."
            )
        self.config()

    def config(self) -> ViewConfig:
        """How the views are made."""
        return ViewConfig(
            crop="random-resized" if self.views else "resized",
            margin=float(self.margin),
            area=self.area,
            trivial_augment=False,
        )

    def facts(self) -> dict[str, Any]:
        """What decides the views besides their sides; center views are the same for every seed."""
        found = {"margin": float(self.margin), "views": self.views}
        return {**found, "area": list(self.area), "seed": self.seed} if self.views else found


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how features are computed and kept."""

    folder: Path
    """Of the stores."""

    workers: Ranks

    loaders: int = 2
    """Processes that decode pictures for each worker; 0 decodes in the worker itself."""

    batch: int = 32
    """Views that go through the model together, at most."""

    precision: ResolvedPrecision = "fp32"
    """What models compute with; the one thing here that features do depend on."""

    tell: Callable[[str], None]
    """Gets sentences for people."""

    shown: bool = True
    """Whether to show how far it has come."""

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        if self.batch < 1 or self.loaders < 0:
            raise StoreError(
                f"batch={self.batch} with loaders={self.loaders} cannot be; use a batch of 1 or "
                "more, and 0 or more loaders."
            )


class ImageFeatures(NamedTuple):
    """Vectors of R views: of the N pictures, or view v of picture i in row v * N + i."""

    image: Float[Tensor, "R DI"]

    patch_mean: Float[Tensor, "R DP"]


class KeptFeatures:
    """The vectors of a split by setting: they lie on the disk, and are read when asked for."""

    def __init__(self, stores: Mapping[Setting, ArrayStore]) -> None:
        self._stores = stores
        self.settings = tuple(stores)

    def __getitem__(self, setting: Setting) -> ImageFeatures:
        """All of a setting."""
        return ImageFeatures(
            *(self.side_by_side(setting, [name]) for name in ImageFeatures._fields)
        )

    def side_by_side(self, setting: Setting, names: Sequence[str]) -> Float[Tensor, "R D"]:
        """Vectors of some names of `ImageFeatures`, each after the one before; others stay away."""
        store = self._stores[setting]
        views, widths = self._shape(setting, names)
        found = torch.empty((views, store.count, sum(widths)))
        for name, part in zip(names, found.split(widths, dim=2), strict=True):
            for items, vectors in store.blocks(name):
                # Kept picture by picture, wanted view by view.
                part[:, items.start : items.stop] = vectors.transpose(0, 1)
        return found.flatten(0, 1)

    def num_bytes(self, setting: Setting, names: Sequence[str]) -> int:
        """What `side_by_side` takes."""
        views, widths = self._shape(setting, names)
        return NUMBER_BYTES * views * self._stores[setting].count * sum(widths)

    def _shape(self, setting: Setting, names: Sequence[str]) -> tuple[int, list[int]]:
        """Views of a picture, and the widths of vectors."""
        first = self._stores[setting].item(0)
        return len(first[names[0]]), [first[name].shape[1] for name in names]


def image_features(
    model: FrozenModel,
    settings: Sequence[Setting],
    split: Split,
    plan: ViewPlan,
    place: Place,
) -> KeptFeatures:
    """The image feature of every view, and the mean of its patch features, in single precision.

    What is not kept is computed now, for all settings in one pass; nothing stays in memory.
    """
    return KeptFeatures(_Pass(model, split, plan, place).filled(settings))


class _Pass:
    """One way through the pictures of a split, for the settings of a model that lack them."""

    def __init__(self, model: FrozenModel, split: Split, plan: ViewPlan, place: Place) -> None:
        """Plan it."""
        self.model = model
        self.split = split
        self.plan = plan
        self.place = place
        self.side = model.round_down_to_patch(plan.resolution)
        self.views = max(1, plan.views)
        """Views of a picture."""
        together = max(1, min(IMAGE_BLOCK, place.batch // self.views))
        self.pictures = _evenly(IMAGE_BLOCK, together)
        """Pictures that are decoded and computed together."""
        self.lot = _evenly(self.pictures * self.views, place.batch)
        """Views that go through the model at once: always as many, so that none of their bits
        depends on how many pictures there are."""

    def filled(self, settings: Sequence[Setting]) -> dict[Setting, ArrayStore]:
        """A store for each setting, computed as far as it was not kept."""
        chosen, facts = list(dict.fromkeys(settings)), self._facts()
        notes = {"model": self.model.name, "split": self.split.name}
        stores = [
            ArrayStore(
                self.place.folder,
                {**facts, "setting": setting._asdict()},
                len(self.split),
                IMAGE_BLOCK,
                notes=notes,
            )
            for setting in chosen
        ]

        def compute(missing: Sequence[Missing]) -> Iterator[tuple[range, dict[int, Content]]]:
            return self._parts(missing, chosen)

        place = self.place
        fill_stores(stores, compute, place.workers, place.tell, shown=place.shown)
        return dict(zip(chosen, stores, strict=True))

    def _facts(self) -> dict[str, Any]:
        """Everything on which the features depend, but the setting."""
        return {
            "format": FORMAT,
            "kept": "vectors",
            "model": model_facts(self.model),
            "pictures": picture_facts(self.split),
            "views": {"side": self.side, **self.plan.facts()},
        }

    def _parts(
        self, missing: Sequence[Missing], settings: Sequence[Setting]
    ) -> Iterator[tuple[range, dict[int, Content]]]:
        """The features of missing blocks, some pictures at a time."""
        turns = [
            (wanted, range(start, min(start + self.pictures, wanted.items.stop)))
            for wanted in missing
            for start in range(wanted.items.start, wanted.items.stop, self.pictures)
        ]
        pictures = self.split.images
        found = batches(
            ImageIndex(pictures, np.arange(len(pictures)), pictures.keys),
            (self._task(turn, items) for turn, (_, items) in enumerate(turns)),
            seed=self.plan.seed,
            config=self.plan.config(),
            num_workers=self.place.loaders,
            training=self.plan.views > 0,
        )
        at_once = settings_at_once(self.model, len(settings), self.place.loaders)
        with at_once as several, closing(found):
            for batch in found:
                self._check_readable(batch)
                wanted, items = turns[batch.task.step]
                content = several.each(
                    [settings[row] for row in wanted.stores], partial(self._content, batch)
                )
                yield items, dict(zip(wanted.stores, content, strict=True))

    def _task(self, turn: int, items: range) -> BatchSpec:
        """The views of some pictures, picture by picture."""
        return BatchSpec(
            turn,
            0,
            np.repeat(np.asarray(items, np.int64), self.views),
            np.tile(np.arange(self.views), len(items)),
            self.side,
        )

    def _check_readable(self, batch: Batch) -> None:
        """Refuse to go on without a picture, or with another one in its place."""
        for picture, reason in batch.unreadable.items():
            raise unreadable(self.split.image(picture), reason)

    def _content(self, batch: Batch, setting: Setting) -> Content:
        """What is kept of some pictures."""
        lots = [
            self._observed(batch, start, setting) for start in range(0, len(batch.images), self.lot)
        ]
        whole = ImageFeatures(*(torch.cat(parts) for parts in zip(*lots, strict=True)))
        return {name: part.unflatten(0, (-1, self.views)) for name, part in whole._asdict().items()}

    def _observed(self, batch: Batch, start: int, setting: Setting) -> ImageFeatures:
        """What the model says of some views of a batch."""
        views = batch.images[start : start + self.lot]
        frozen = self.model.observe(_padded(views, self.lot), setting)
        image, patches = (part[: len(views)] for part in frozen)
        finite = image.isfinite().all(1) & patches.isfinite().flatten(1).all(1)
        if not finite.all():
            place = start + int((~finite).nonzero()[0])
            name = self.split.image(int(batch.task.indices[place])).name
            raise StoreError(
                f"{self.model.name} gives numbers that are not finite for {name}; take this "
                "picture out of the set, or use another model."
            )
        return ImageFeatures(image.cpu(), patches.flatten(2).mean(2).cpu())


def _evenly(total: int, most: int) -> int:
    """The size of as few equal parts of at most `most` as make up a total; the last may lack."""
    return -(-total // -(-total // most))


def _padded(images: UInt8[Tensor, "B 3 R R"], count: int) -> UInt8[Tensor, "L 3 R R"]:
    """So many images: those given, and the last of them again."""
    if len(images) == count:
        return images
    return torch.cat((images, images[-1:].expand(count - len(images), -1, -1, -1)))


PARTS: Mapping[Feature, tuple[str, ...]] = {
    "image": ("image",),
    "patch-mean": ("patch_mean",),
    "image+patch-mean": ("image", "patch_mean"),
}
"""Names of `ImageFeatures` that a head sees side by side."""


def side_by_side(features: ImageFeatures, feature: Feature) -> Tensor:
    """The vectors that a head sees, of features in memory."""
    return torch.cat([getattr(features, name) for name in PARTS[feature]], dim=1)


class Vectors:
    """The vectors of a part of a set; those that were asked for last stay in memory, no others.

    Who asks for the next ones should have let go of the last.
    """

    def __init__(self, kept: KeptFeatures, feature: Feature) -> None:
        self._kept, self._names = kept, PARTS[feature]
        self._held: dict[Setting, Tensor] = {}

    def __getitem__(self, setting: Setting) -> Tensor:
        """Those of one setting."""
        return self.together([setting])[setting]

    def together(self, settings: Sequence[Setting]) -> dict[Setting, Tensor]:
        """Those of several settings."""
        if not self._held.keys() >= set(settings):
            self._held = {}  # before others are read
            self._held = {
                setting: self._kept.side_by_side(setting, self._names) for setting in settings
            }
        return {setting: self._held[setting] for setting in settings}

    def groups(self, most: int) -> list[list[Setting]]:
        """The settings in their order, in groups of at most so many bytes, or of one setting."""
        found: list[list[Setting]] = []
        left = 0
        for setting in self._kept.settings:
            size = self._kept.num_bytes(setting, self._names)
            if size > left or not found:
                found.append([])
                left = most
            found[-1].append(setting)
            left -= size
        return found
