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

What the outputs depend on is the key of the folder. Each chunk is compared with its hash when a run
first opens it, and computed again if it is damaged. Eight views are compared with the live teacher
whenever a cache is opened, since an image or a library can change without changing the key.
"""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.data.loader import BatchSpec, batches
from veca.distill.images import ImageSplit
from veca.distill.run_folder import RunContext, RunError
from veca.distill.targets import TEACHER_PIXELS, TeacherCache, find_margin
from veca.runtime.device import ResolvedPrecision, autocast
from veca.runtime.logging import logger, progress
from veca.runtime.shards import ShardStore, Task, fill, find_missing
from veca.runtime.signals import StoppedError
from veca.runtime.tensors import TensorFile
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

MAX_CPU_BATCH = 16
"""Views per batch on a CPU, where small ones are as fast: a stop takes effect between batches."""

FREE_SPACE_FACTOR = 1.05
"""Free disk space required, as a multiple of what will be written."""


def open_teacher_cache(
    root: Path,
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
        RunError: the disk is too small, or cached outputs differ from those of the teacher.
        FileError: a chunk cannot be written.
        LockedError: another run is filling the cache.
        StoppedError: some rank was asked to stop; finished chunks are used by the next run.
    """
    config = context.config
    if config.cache.crops < 1:
        raise RunError(f"crops={config.cache.crops} caches nothing; use 1 or more.")
    ranks = context.ranks
    precision = precision or context.options.resolved(ranks.device)
    stores = [
        {
            size: OutputStore(root, teacher.to(ranks.device), size, context, images, precision)
            for size in config.sizes
        }
        for teacher in teachers
    ]
    every = [store for by_size in stores for store in by_size.values()]
    missing = [store.find_missing() for store in every]
    if any(missing):
        ranks.on_main(lambda: _check_free_space(root, every, missing))
    for store, chunks in zip(every, missing, strict=True):
        store.fill(chunks)
    flags = torch.zeros(len(images.index), dtype=torch.int32)
    flags[sorted(set[int]().union(*(store.unreadable for store in every)))] = 1
    unreadable = int((ranks.all_reduce(flags) > 0).sum())
    if unreadable and ranks.is_main:
        logger.warning("%s images could not be read and were replaced by others.", unreadable)
    lookups = [{size: store.targets for size, store in by_size.items()} for by_size in stores]
    return TeacherCache(np.sort(images.training), config.cache.crops, lookups, precision)


def _check_free_space(
    root: Path, stores: Sequence["OutputStore"], missing: Sequence[Sequence[int]]
) -> None:
    """Log what will be written, and refuse to start on a disk without space for it."""
    views = [
        sum(len(store.items(chunk)) for chunk in chunks)
        for store, chunks in zip(stores, missing, strict=True)
    ]
    needed = sum(count * store.view_bytes for count, store in zip(views, stores, strict=True))
    existing = next(path for path in (root, *root.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    logger.info(
        "Computing teacher outputs of %s views in %s: %.2f of %.2f GB free.",
        f"{sum(views):,}", root, needed / 1e9, free / 1e9,
    )  # fmt: skip
    if free < FREE_SPACE_FACTOR * needed:
        raise RunError(
            f"the teacher outputs need {FREE_SPACE_FACTOR * needed / 1e9:.2f} GB, but {root} has "
            f"{free / 1e9:.2f} GB free; free disk space, choose another folder, or use fewer "
            "--cache.crops or --cache.dtype int8."
        )


class OutputStore(ShardStore):
    """Outputs of one teacher at one resolution, cached and live; an item is a view."""

    def __init__(  # noqa: PLR0913, PLR0917 - everything that cached outputs depend on
        self,
        root: Path,
        teacher: Teacher,
        resolution: int,
        context: RunContext,
        images: ImageSplit,
        precision: ResolvedPrecision,
    ) -> None:
        self.teacher, self.resolution, self.precision = teacher, resolution, precision
        self.config, self.context = context.config, context
        config = self.config
        self.index, self.images = images.index, np.sort(images.training)
        self.crops, self.dtype = config.cache.crops, config.cache.dtype
        self.margin = find_margin(config, [teacher])
        self.side = resolution // config.student.patch_size
        self.unreadable: set[int] = set()
        """Images that could not be read so far."""
        item = 1 if self.dtype == "int8" else 2
        self.view_bytes = 2 * teacher.image_width + item * self.side**2 * teacher.patch_width
        per_chunk = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // (self.crops * self.view_bytes)))
        super().__init__(
            root,
            self._facts(),
            count=len(self.images) * self.crops,
            chunk_size=per_chunk * self.crops,
            name=f"{teacher.name}-{resolution}px",
            lazy=True,
        )

    def _facts(self) -> dict[str, Any]:
        """Everything that outputs depend on, as plain JSON."""
        teacher, config = self.teacher, self.config
        if teacher.digest is None:
            raise RunError(
                f"the teacher {teacher.name} has no digest, which identifies cached outputs; "
                "define one, or omit --cache-teacher."
            )
        facts = {
            "format": FORMAT,
            "teacher": {"name": teacher.name, **teacher.identity(), "digest": teacher.digest},
            "resolution": self.resolution,
            "patch_size": config.student.patch_size,
            "precision": self.precision,
            "images": {
                "count": len(self.images),
                "names": self.index.fingerprint(),
                "numbers": _digest(self.images),
                "bytes": _digest(self.index.table.sizes[self.index.rows[self.images]]),
            },
            "views": dataclasses.asdict(config.views),
            "seed": config.cache.seed,
            "crops": self.crops,
            "dtype": self.dtype,
            **self.margin.facts(),
        }
        plain: dict[str, Any] = json.loads(json.dumps(facts))  # tuples become lists
        return plain

    def targets(self, views: NDArray[np.int64], device: torch.device) -> Targets:
        """The outputs of views, in single precision on a device; each chunk is opened once."""
        width, channels = self.teacher.image_width, self.teacher.patch_width
        dtype = torch.int8 if self.dtype == "int8" else torch.float16
        image = torch.empty((len(views), width), dtype=torch.float16)
        patches = torch.empty((len(views), self.side**2, channels), dtype=dtype)
        scales = torch.ones((len(views), 1, channels))
        chunks, rows = np.divmod(views, self.chunk_size)
        for chunk in np.unique(chunks).tolist():
            places = np.flatnonzero(chunks == chunk)
            with self.open(chunk) as file:
                file.read_into(image, "image", rows[places], places)
                file.read_into(patches, "patches", rows[places], places)
                if self.dtype == "int8":
                    scales[places, 0] = file.read("scales")
        return Targets(image.to(device).float(), patches.to(device) * scales.to(device))

    def open(self, chunk: int) -> TensorFile:
        """Open a chunk; one that is damaged is computed again."""
        try:
            return self._open(chunk)
        except OSError as error:
            reason = getattr(error, "reason", error)
            logger.warning("%s is computed again: %s.", self.path(chunk), reason)
            with closing(self._compute([Task(chunk, (0,))], stoppable=False)) as found:
                self.write(chunk, next(found)[0])
            return super().open(chunk)

    def find_missing(self) -> list[int]:
        """Chunks without a usable file; ranks share the work."""
        lacking = find_missing([self], self.context.ranks, self.context.stop)
        missing: list[int] = lacking[0].nonzero().flatten().tolist()
        return missing

    def fill(self, missing: list[int]) -> None:
        """Compare the outputs that exist with the live teacher, compute the rest, and log both."""
        ranks = self.context.ranks
        cosines = ranks.on_main(lambda: self.compare(missing))
        if missing:
            fill([self], self._compute, ranks, self.context.stop)
            cosines = cosines or ranks.on_main(lambda: self.compare([]))
        if ranks.is_main and cosines is not None:
            logger.info(
                "Cached outputs of %s at %d px: %s views as %s; mean cosine with live outputs "
                "%.4f (image), %.4f (patches).",
                self.teacher.name, self.resolution, f"{self.count:,}", self.dtype, *cosines,
            )  # fmt: skip

    def compare(self, missing: Sequence[int]) -> tuple[float, float] | None:
        """Mean cosines of some cached outputs with live ones; None where there are none.

        Raises:
            RunError: they differ.
        """
        views = np.arange(self.count)
        views = views[~np.isin(views // self.chunk_size, missing)]
        count = min(COMPARED_VIEWS, len(views))
        if not count:
            return None
        views = views[np.arange(count) * len(views) // count]
        live = self.outputs(self.batched(views), num_workers=0)
        wanted = [torch.cat(parts) for parts in zip(*live, strict=True)]
        cosines = []
        for found, target in zip(self.targets(views, wanted[0].device), wanted, strict=True):
            distance = (found - target).flatten(1).norm(dim=1)
            if (distance > MAX_DISTANCE * target.flatten(1).norm(dim=1)).any():
                raise RunError(
                    f"{self.folder} differs from the outputs of the teacher {self.teacher.name} "
                    "for these images: the images, the teacher or a library has changed; delete "
                    "this folder, or give --cache-teacher another one."
                )
            cosines.append(float(F.cosine_similarity(found, target, dim=-1, eps=1e-12).mean()))
        return cosines[0], cosines[1]

    def _compute(
        self, tasks: Sequence[Task], stoppable: bool = True
    ) -> Generator[dict[int, dict[str, Tensor]], None, None]:
        """The tensors of missing chunks, as `fill` wants them."""
        scales = self._find_scales() if self.dtype == "int8" else None
        batched = [self.batched(self.items(task.chunk)) for task in tasks]
        every = [views for some in batched for views in some]
        with closing(self.outputs(every, "views", stoppable=stoppable)) as outputs:
            for some in batched:
                packed = [pack(targets, scales) for targets in islice(outputs, len(some))]
                tensors = {name: torch.cat([part[name] for part in packed]) for name in packed[0]}
                yield {0: tensors if scales is None else {**tensors, "scales": scales}}

    def _find_scales(self) -> Float[Tensor, " channels"]:
        """Scales of int8: those of a chunk that exists, or new ones from a sample of all views."""
        for chunk in range(self.num_chunks):
            with suppress(OSError), self._open(chunk) as file:
                return file.read("scales")
        count = min(SAMPLE_VIEWS, self.count)
        generator = torch.Generator().manual_seed(0)
        largest = torch.zeros(self.teacher.patch_width)
        batched = self.batched(np.arange(count) * self.count // count)
        for targets in self.outputs(batched, "sampled views"):
            chosen = torch.randperm(targets.patches.shape[1], generator=generator)[:SAMPLE_PATCHES]
            patches = targets.patches.float().cpu()[:, chosen]
            largest = torch.maximum(largest, patches.abs().amax((0, 1)))
        return int8_scales(largest)

    def batched(self, views: range | NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Split views into batches for the teacher."""
        pixels = (self.resolution + 2 * self.margin.pixels) ** 2
        size = max(1, self.context.options.teacher_batch * TEACHER_PIXELS // pixels)
        if self.context.ranks.device.type == "cpu":
            size = min(size, MAX_CPU_BATCH)
        numbers = np.asarray(views, np.int64)
        return np.split(numbers, range(size, len(numbers), size))

    def outputs(
        self,
        batched: Sequence[NDArray[np.int64]],
        unit: str | None = None,
        *,
        num_workers: int | None = None,
        stoppable: bool = True,
    ) -> Generator[Targets, None, None]:
        """Live outputs of each batch of views; with a `unit`, progress is shown."""
        shown = unit is not None and self.context.show_progress and self.context.ranks.is_main
        crops = (np.divmod(views, self.crops) for views in batched)
        specs = (BatchSpec(0, 0, self.images[at], ids, self.resolution) for at, ids in crops)
        loaded = batches(
            self.index,
            specs,
            seed=self.config.cache.seed,
            config=self.config.views,
            num_workers=self.context.options.workers if num_workers is None else num_workers,
            replacements=self.images,
            margin=self.margin.loaded,
        )
        total = sum(map(len, batched))
        with closing(loaded), progress(total, unit or "", shown=shown) as tracker:
            for batch in loaded:
                if stoppable and self.context.stop():
                    raise StoppedError
                self.unreadable.update(batch.unreadable)
                found = self._ask(batch.images, batch.task)
                tracker.advance(len(batch.images))
                yield found

    def _ask(self, images: Tensor, task: BatchSpec) -> Targets:
        """The teacher's outputs of a batch in single precision, all of them finite."""
        device = self.context.ranks.device
        with torch.no_grad(), autocast(device, self.precision):
            found = self.margin.ask(self.teacher, images.to(device), (self.side, self.side))
        finite = found.image.isfinite().all(1) & found.patches.isfinite().flatten(1).all(1)
        if not finite.all():
            image = int(task.indices[int((~finite).nonzero()[0])])
            raise RunError(
                f"the teacher {self.teacher.name} returns values that are not finite for "
                f"{self.index[image].name}; remove this image, or use another teacher."
            )
        return Targets(found.image.float(), found.patches.float())


def int8_scales(largest: Float[Tensor, " channels"]) -> Float[Tensor, " channels"]:
    """The scale of each channel, given its largest absolute value in a sample."""
    scales = largest * (HEADROOM / MAX_INT8)
    smallest = float(scales.max()) * MIN_SCALE
    return scales.clamp(min=smallest) if smallest > 0 else torch.ones_like(scales)


def pack(targets: Targets, scales: Float[Tensor, " channels"] | None) -> dict[str, Tensor]:
    """Outputs as they are stored: in half precision, patches as int8 where scales are given."""
    image, patches = (part.clamp(-MAX_HALF, MAX_HALF).half().cpu() for part in targets)
    if scales is not None:
        steps = (targets.patches / scales.to(targets.patches.device)).round()
        patches = steps.clamp(-MAX_INT8, MAX_INT8).to(torch.int8).cpu()
    return {"image": image, "patches": patches}


def _digest(numbers: Int[np.ndarray, " count"]) -> str:
    return hashlib.sha256(np.ascontiguousarray(numbers, "<i8").data).hexdigest()
