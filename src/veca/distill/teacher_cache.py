"""Teacher outputs from disk instead of from the teacher (`--cache-teacher DIR`).

A few views of each training image are cached, drawn once with a seed of their own. The student is
trained on exactly these views, since a view follows from (seed, crop, image), and the teacher,
which costs most of a step, does not run any more.

DIR/efficientnet-lite2-128px-0123456789abcdef/   a `ShardStore` per teacher and resolution
    facts.json                                   everything the outputs depend on
    chunk-00000.safetensors                      `image`, `patches` and `scales` of some views

View v is crop `v % crops` of image `v // crops`. Image features are stored in half precision, patch
features in half precision or as int8 with one scale per channel, since channels differ in size by a
factor of a hundred.

A cache that is wrong without notice is worse than none: what the outputs depend on is the key of
the folder, each chunk is compared with its hash when a run first opens it, and eight views are
compared with the live teacher whenever a cache is opened, since an image or a library can change
without changing the key.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.data.listing import ImageIndex
from veca.data.loader import BatchSpec, batches
from veca.distill.config import DistillConfig, RunOptions
from veca.distill.images import ImageSplit
from veca.distill.run_folder import RunContext
from veca.distill.targets import TEACHER_PIXELS, Margin, find_margin
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision, autocast
from veca.runtime.distributed import Ranks
from veca.runtime.logging import logger, progress
from veca.runtime.shards import ShardStore, StoppedError, Task, fill, find_missing
from veca.teacher.teacher import Targets, Teacher

FORMAT = 3
"""Part of the key; increased when the meaning of stored outputs changes."""

CHUNK_IMAGES = 512
"""Images whose views form a chunk, unless they exceed `CHUNK_BYTES`."""

CHUNK_BYTES = 128 * 2**20
"""Largest size of a chunk of more than one image: a chunk is in memory while it is written."""

SAMPLE_VIEWS = 512
"""Views from which the scales of int8 are computed."""

SAMPLE_PATCHES = 32
"""Patches of each of these views that are looked at."""

HEADROOM = 1.25
"""Range of int8 in that of the sample; values beyond it are clipped."""

MIN_SCALE = 1e-3
"""Smallest scale of a channel in the largest one: a channel that is almost constant in the sample
may vary elsewhere, and then hardly matters beside the others."""

MAX_INT8 = 127
MAX_HALF = 65504.0

COMPARED_VIEWS = 8
"""Cached views that are compared with the live teacher whenever a cache is opened."""

MAX_DISTANCE = 0.3
"""Largest distance of cached from live outputs, in the norm of the latter: int8 reaches 0.01,
bfloat16 a few hundredths, another image or teacher about 1."""

MAX_BATCH = {"cpu": 16}
"""Views per batch by type of device: `stop` is polled between batches, and on a CPU small ones are
as fast."""

MAX_BATCH_ELSEWHERE = 128

SPARE_ROOM = 1.05
"""Free disk space required, in what will be written."""


class CacheError(VecaError, ValueError):
    """Teacher outputs that cannot be cached or used."""


class TeacherCache:
    """Outputs of every teacher for the views of a training run."""

    def __init__(
        self,
        images: NDArray[np.int64],
        crops: int,
        stores: Sequence[Mapping[int, "OutputStore"]],
        precision: ResolvedPrecision,
    ) -> None:
        """Use complete stores, one for each teacher and resolution; image numbers are sorted."""
        self.crops = crops
        """Views of each image; `BatchSpec.crop_ids` are below it."""
        self.precision: ResolvedPrecision = precision
        """What the teachers computed in."""
        self._images = images
        self._stores = stores

    def lookup(self, task: BatchSpec, device: torch.device) -> list[Targets]:
        """Each teacher's outputs for the views of a batch, in single precision."""
        places = np.minimum(np.searchsorted(self._images, task.indices), len(self._images) - 1)
        known = (self._images[places] == task.indices) & (task.crop_ids < self.crops)
        if not known.all():
            raise CacheError(f"image {task.indices[~known][0]} is not cached in the asked view.")
        views = places * self.crops + task.crop_ids
        return [stores[task.resolution].targets(views, device) for stores in self._stores]


def open_teacher_cache(  # noqa: PLR0913 - everything that cached outputs depend on
    root: Path,
    config: DistillConfig,
    options: RunOptions,
    context: RunContext,
    *,
    images: ImageSplit,
    teachers: Sequence[Teacher],
    precision: ResolvedPrecision | None = None,
) -> TeacherCache:
    """Open the cache of a run, and compute what it lacks; every rank must call this.

    Training must load its views by `batches` with `config.cache.seed`, crops as `crop_ids`,
    `replacements=images.training` and the loaded pixels of the margin: then it sees the cached
    views, also in place of unreadable images. Several runs can share the folder `root`.
    A resumed run passes the `precision` of its cached outputs, others compute in their own.

    Raises:
        CacheError: the disk is too small, or cached outputs differ from those of the teacher.
        ShardError: a chunk is damaged or cannot be written, or another run is filling the cache.
        StoppedError: some rank was asked to stop; finished chunks are used by the next run.
    """
    if config.cache.crops < 1:
        raise CacheError(f"crops={config.cache.crops} caches nothing; use 1 or more.")
    ranks, cached = context.ranks, np.sort(images.training)
    precision = precision or options.resolved(ranks.device)
    margin = find_margin(config, teachers)
    unreadable: set[int] = set()
    sources = [
        LiveOutputs(
            teacher=teacher.to(ranks.device),
            resolution=size,
            config=config,
            options=options,
            context=context,
            index=images.index,
            images=cached,
            margin=margin,
            precision=precision,
            unreadable=unreadable,
        )
        for teacher in teachers
        for size in config.sizes
    ]
    stores = [OutputStore(root, source) for source in sources]
    missing = [_missing(store, context) for store in stores]
    if any(missing):
        ranks.on_main(lambda: _check_room(root, stores, missing))
    for store, source, chunks in zip(stores, sources, missing, strict=True):
        _complete(store, source, chunks)
    _log_unreadable(unreadable, len(images.index), ranks)
    sizes = len(config.sizes)
    by_teacher = [stores[at : at + sizes] for at in range(0, len(stores), sizes)]
    return TeacherCache(
        cached,
        config.cache.crops,
        [dict(zip(config.sizes, some, strict=True)) for some in by_teacher],
        precision,
    )


def _missing(store: "OutputStore", context: RunContext) -> list[int]:
    """Chunks without a usable file; ranks share the work."""
    lacking = find_missing([store], context.ranks, context.stop)
    missing: list[int] = lacking[0].nonzero().flatten().tolist()
    return missing


def _complete(store: "OutputStore", live: "LiveOutputs", missing: list[int]) -> None:
    """Compare the outputs that exist with the live teacher, compute the rest, and log both."""
    ranks = live.context.ranks
    cosines = ranks.on_main(lambda: _compare(store, live, missing))
    if missing:
        scales = ranks.on_main(lambda: _scales(store, live, missing))
        fill([store], partial(_compute, store, live, scales), ranks, live.context.stop)
        cosines = cosines or ranks.on_main(lambda: _compare(store, live, []))
    if ranks.is_main and cosines is not None:
        logger.info(
            "Cached outputs of %s at %d px: %s views as %s; mean cosine with live outputs %.4f "
            "(image), %.4f (patches).",
            live.teacher.name, live.resolution, f"{store.count:,}", store.dtype, *cosines,
        )  # fmt: skip


def _compute(
    store: "OutputStore", live: "LiveOutputs", scales: Tensor | None, tasks: Sequence[Task]
) -> Iterator[dict[int, dict[str, Tensor]]]:
    """The tensors of missing chunks, as `fill` wants them."""
    batched = [live.batches(store.items(task.chunk)) for task in tasks]
    total = sum(len(store.items(task.chunk)) for task in tasks)
    with (
        closing(live.outputs(batch for some in batched for batch in some)) as outputs,
        progress(total, "views", shown=live.show_progress) as tracker,
    ):
        for some in batched:
            packed = []
            for targets in islice(outputs, len(some)):
                packed.append(pack(targets, scales))
                tracker.advance(len(targets.image))
            tensors = {name: torch.cat([part[name] for part in packed]) for name in packed[0]}
            yield {0: tensors if scales is None else {**tensors, "scales": scales}}


def _scales(
    store: "OutputStore", live: "LiveOutputs", missing: Sequence[int]
) -> Float[Tensor, " channels"] | None:
    """Scales of int8: those of the chunks that exist, or new ones from a sample of all views."""
    if store.dtype != "int8":
        return None
    present = sorted(set(range(store.num_chunks)) - set(missing))
    if present:
        return store.read(present[0], ["scales"])["scales"]
    count = min(SAMPLE_VIEWS, live.count)
    views = np.arange(count) * live.count // count
    draw = torch.Generator().manual_seed(0)
    largest = torch.zeros(store.channels)
    with progress(count, "sampled views", shown=live.show_progress) as tracker:
        for targets in live.outputs(live.batches(views)):
            chosen = torch.randperm(targets.patches.shape[1], generator=draw)[:SAMPLE_PATCHES]
            patches = targets.patches.float().cpu()[:, chosen]
            largest = torch.maximum(largest, patches.abs().amax((0, 1)))
            tracker.advance(len(targets.image))
    return int8_scales(largest)


def int8_scales(largest: Float[Tensor, " channels"]) -> Float[Tensor, " channels"]:
    """The scale of each channel, given its largest absolute value in a sample."""
    scales = largest * (HEADROOM / MAX_INT8)
    smallest = float(scales.max()) * MIN_SCALE
    return scales.clamp(min=smallest) if smallest > 0 else torch.ones_like(scales)


def _compare(
    store: "OutputStore", live: "LiveOutputs", missing: Sequence[int]
) -> tuple[float, float] | None:
    """Mean cosines of some cached outputs with live ones; None where there are none.

    Raises:
        CacheError: they differ.
    """
    views = _spread(store, missing)
    if not len(views):
        return None
    live_parts = live.outputs(live.batches(views), num_workers=0)
    wanted = [torch.cat(parts) for parts in zip(*live_parts, strict=True)]
    cached = store.targets(views, live.device)
    for found, target in zip(cached, wanted, strict=True):
        distance = (found - target).flatten(1).norm(dim=1)
        if (distance > MAX_DISTANCE * target.flatten(1).norm(dim=1)).any():
            raise CacheError(
                f"{store.folder} differs from the outputs of the teacher {live.teacher.name} for "
                "these images: the images, the teacher or a library has changed; delete this "
                "folder, or give --cache-teacher another one."
            )
    image, patches = (
        float(F.cosine_similarity(found, target, dim=-1, eps=1e-12).mean())
        for found, target in zip(cached, wanted, strict=True)
    )
    return image, patches


def _spread(store: ShardStore, missing: Sequence[int]) -> NDArray[np.int64]:
    """Some views, spread over the chunks that exist; all of these but the last are full."""
    present = np.setdiff1d(np.arange(store.num_chunks), missing)
    total = sum(len(store.items(chunk)) for chunk in present.tolist())
    count = min(COMPARED_VIEWS, total)
    chunks, rows = np.divmod(np.arange(count) * total // max(1, count), store.chunk_size)
    return present[chunks] * store.chunk_size + rows


def _check_room(
    root: Path,
    stores: Sequence["OutputStore"],
    missing: Sequence[Sequence[int]],
) -> None:
    """Log what will be written, and refuse to start on a disk without space for it."""
    views = needed = 0
    for store, chunks in zip(stores, missing, strict=True):
        count = sum(len(store.items(chunk)) for chunk in chunks)
        views += count
        needed += count * store.view_bytes
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    logger.info(
        "Computing teacher outputs of %s views in %s: %s of %s free.",
        f"{views:,}", root, _size(needed), _size(free),
    )  # fmt: skip
    if free < SPARE_ROOM * needed:
        raise CacheError(
            f"the teacher outputs need {_size(SPARE_ROOM * needed)}, but {root} has {_size(free)} "
            "free; free disk space, choose another folder, or use fewer --cache.crops or "
            "--cache.dtype int8."
        )


def _size(num_bytes: int | float) -> str:
    """Bytes for people."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _log_unreadable(images: set[int], count: int, ranks: Ranks) -> None:
    """Log how many images could not be read on any rank."""
    flags = torch.zeros(count, dtype=torch.int32)
    flags[sorted(images)] = 1
    total = int((ranks.all_reduce(flags) > 0).sum())
    if total and ranks.is_main:
        logger.warning("%s images could not be read and were replaced by others.", f"{total:,}")


class OutputStore(ShardStore):
    """Outputs of one teacher at one resolution; an item is a view."""

    def __init__(self, root: Path, live: "LiveOutputs") -> None:
        cache, teacher = live.config.cache, live.teacher
        self.image_width = teacher.image_width
        self.patches = live.side**2
        self.channels = teacher.patch_width
        self.dtype = cache.dtype
        images = min(CHUNK_IMAGES, CHUNK_BYTES // (cache.crops * self.view_bytes))
        super().__init__(
            root,
            cache_facts(live),
            count=live.count,
            chunk_size=max(1, images) * cache.crops,
            name=f"{teacher.name}-{live.resolution}px",
            lazy=True,
        )

    @property
    def view_bytes(self) -> int:
        """Bytes of one view."""
        size = 1 if self.dtype == "int8" else 2
        return 2 * self.image_width + size * self.patches * self.channels

    def targets(self, views: NDArray[np.int64], device: torch.device) -> Targets:
        """The outputs of views, in single precision on a device; each chunk is opened once."""
        dtype = torch.int8 if self.dtype == "int8" else torch.float16
        image = torch.empty((len(views), self.image_width), dtype=torch.float16)
        patches = torch.empty((len(views), self.patches, self.channels), dtype=dtype)
        scales = torch.ones((len(views), 1, self.channels))
        chunks, rows = np.divmod(views, self.chunk_size)
        for chunk in np.unique(chunks).tolist():
            places = np.flatnonzero(chunks == chunk)
            with self.open(chunk) as file:
                file.read_into(image, "image", rows[places], places)
                file.read_into(patches, "patches", rows[places], places)
                if self.dtype == "int8":
                    scales[places, 0] = file.read("scales")
        return Targets(image.to(device).float(), patches.to(device) * scales.to(device))


def pack(targets: Targets, scales: Float[Tensor, " channels"] | None) -> dict[str, Tensor]:
    """Outputs as they are stored: in half precision, patches as int8 where scales are given."""
    image, patches = (part.clamp(-MAX_HALF, MAX_HALF).half().cpu() for part in targets)
    if scales is not None:
        steps = (targets.patches / scales.to(targets.patches.device)).round()
        patches = steps.clamp(-MAX_INT8, MAX_INT8).to(torch.int8).cpu()
    return {"image": image, "patches": patches}


@dataclass(frozen=True, kw_only=True)
class LiveOutputs:
    """Outputs of a teacher at one resolution, computed now."""

    teacher: Teacher
    resolution: int
    config: DistillConfig
    options: RunOptions
    context: RunContext
    index: ImageIndex
    images: NDArray[np.int64]
    """Sorted numbers of the images; view v belongs to image v // crops."""
    margin: Margin
    precision: ResolvedPrecision
    unreadable: set[int] = field(default_factory=set)
    """Images that could not be read so far."""

    @property
    def device(self) -> torch.device:
        """Where the teacher computes."""
        return self.context.ranks.device

    @property
    def show_progress(self) -> bool:
        """Whether this rank shows progress bars."""
        return self.context.show_progress and self.context.ranks.is_main

    @property
    def count(self) -> int:
        """Views of all images."""
        return len(self.images) * self.config.cache.crops

    @property
    def side(self) -> int:
        """Patches of the student in each direction."""
        return self.resolution // self.config.student.patch_size

    def batches(self, views: range | NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Split views into batches for the teacher."""
        pixels = (self.resolution + 2 * self.margin.pixels) ** 2
        size = max(1, self.options.teacher_batch * TEACHER_PIXELS // pixels)
        size = min(size, MAX_BATCH.get(self.device.type, MAX_BATCH_ELSEWHERE))
        numbers = np.asarray(views, np.int64)
        return np.split(numbers, range(size, len(numbers), size))

    def outputs(
        self, batched: Iterable[NDArray[np.int64]], num_workers: int | None = None
    ) -> Generator[Targets, None, None]:
        """The outputs of each batch of views, in single precision."""
        loaded = batches(
            self.index,
            (self._spec(views) for views in batched),
            seed=self.config.cache.seed,
            config=self.config.views,
            num_workers=self.options.workers if num_workers is None else num_workers,
            replacements=self.images,
            margin=self.margin.loaded,
        )
        with closing(loaded):
            for batch in loaded:
                if self.context.stop():
                    raise StoppedError
                self.unreadable.update(batch.unreadable)
                yield self._ask(batch.images, batch.task)

    def _spec(self, views: NDArray[np.int64]) -> BatchSpec:
        places, crops = np.divmod(views, self.config.cache.crops)
        return BatchSpec(0, 0, self.images[places], crops, self.resolution)

    def _ask(self, images: Tensor, task: BatchSpec) -> Targets:
        """The teacher's outputs of a batch, all of them finite."""
        with torch.no_grad(), autocast(self.device, self.precision):
            found = self.margin.ask(self.teacher, images.to(self.device), (self.side, self.side))
        finite = found.image.isfinite().all(1) & found.patches.isfinite().flatten(1).all(1)
        if not finite.all():
            image = int(task.indices[int((~finite).nonzero()[0])])
            raise CacheError(
                f"the teacher {self.teacher.name} returns values that are not finite for "
                f"{self.index[image].name}; remove this image, or use another teacher."
            )
        return Targets(found.image.float(), found.patches.float())


def cache_facts(live: LiveOutputs) -> dict[str, Any]:
    """Everything that cached outputs depend on, as plain JSON."""
    teacher, index, cache = live.teacher, live.index, live.config.cache
    if teacher.digest is None:
        raise CacheError(
            f"the teacher {teacher.name} has no digest, which identifies cached outputs; define "
            "one, or omit --cache-teacher."
        )
    facts = {
        "format": FORMAT,
        "teacher": {"name": teacher.name, **teacher.identity(), "digest": teacher.digest},
        "resolution": live.resolution,
        "patch_size": live.config.student.patch_size,
        "precision": live.precision,
        "images": {
            "count": len(live.images),
            "names": index.fingerprint(),
            "numbers": _digest(live.images),
            "bytes": _digest(index.table.sizes[index.rows[live.images]]),
        },
        "views": dataclasses.asdict(live.config.views),
        "seed": cache.seed,
        "crops": cache.crops,
        "dtype": cache.dtype,
        **live.margin.facts(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(facts))  # tuples become lists
    return plain


def _digest(numbers: Int[np.ndarray, " count"]) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").data).hexdigest()
