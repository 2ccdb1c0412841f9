"""The images of a run: training and validation split, batches of every step, unreadable ones.

Batches are a pure function of configuration and step, so a run that is resumed in the middle of an
epoch, or on another number of ranks, gets the batches it would have had.
"""

import random
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veca.data.images import DataError
from veca.data.listing import ImageIndex, split_train_val
from veca.data.loader import BatchSpec, sample_order
from veca.distill.config import DistillConfig
from veca.distill.run_folder import RunContext, RunError, RunFolder
from veca.runtime.files import JsonlWriter, read_jsonl
from veca.runtime.logging import logger
from veca.train.schedules import draw_resolution

UNKNOWN_REASON = "found earlier, or by another process"
"""Reason of an image that this process has not tried to read."""


@dataclass(frozen=True, kw_only=True)
class ImageSplit:
    """Training and validation images, as numbers of an index."""

    index: ImageIndex
    training: NDArray[np.int64]
    validation_index: ImageIndex
    validation: NDArray[np.int64]

    @property
    def fingerprint(self) -> str:
        """Hash of the names of all images in order."""
        return f"{self.index.fingerprint()}/{self.validation_index.fingerprint()}"


def find_images(context: RunContext) -> ImageSplit:
    """List and split the images; rank 0 lists them first, the others read its list if they can."""
    config = context.config
    if config.images is None:
        raise RunError("--images is missing; give a folder, tar shards, a list file or a pattern.")
    ranks = context.ranks
    if not ranks.is_main:
        ranks.barrier()
    # A resumed run uses its list, and other ranks use that of rank 0.
    stored = context.resume or not ranks.is_main
    split = _split(config, config.images, context.folder, stored)
    if ranks.is_main:
        ranks.barrier()
    if not len(split.validation) or not len(split.training):
        raise RunError(
            f"{config.images} has {len(split.index)} images, of which {len(split.training)} are "
            f"left for training and {len(split.validation)} for validation; give more images, or "
            "validation images with --validation."
        )
    if ranks.any(ranks.broadcast_object(split.fingerprint) != split.fingerprint):
        raise RunError(
            f"ranks found different images in {config.images}; give all of them the same files."
        )
    for problem in split.index.problems:
        logger.warning("%s", problem)
    return split


def _split(config: DistillConfig, images: str, folder: RunFolder, stored: bool) -> ImageSplit:
    path = folder.index("training")
    index = ImageIndex.load_or_list(images, path, resume=stored, exclude=folder.path)
    training, validation = split_train_val(index, config.validation_images)
    validation_index = index
    if config.validation is not None:
        path = folder.index("validation")
        validation_index = ImageIndex.load_or_list(config.validation, path, resume=stored)
        every = np.arange(len(validation_index))
        validation = _subset(validation_index, every, config.validation_images)
        training = _without(index, validation_index, validation)
    return ImageSplit(
        index=index,
        training=_subset(index, training, config.most_images),
        validation_index=validation_index,
        validation=validation,
    )


def _subset(index: ImageIndex, images: NDArray[np.int64], size: int | None) -> NDArray[np.int64]:
    """At most `size` images, sorted, chosen by the hashes of their names."""
    if size is None or size >= len(images):
        return images
    return np.sort(images[np.argsort(index.keys[images], kind="stable")[:size]])


def _without(
    index: ImageIndex, validation_index: ImageIndex, validation: NDArray[np.int64]
) -> NDArray[np.int64]:
    """All images of an index but those for validation, where folders overlap."""
    names = index.table.keys[index.rows]
    others = validation_index.table.keys[validation_index.rows[validation]]
    common = np.isin(names, others)
    if common.any():
        count = int(common.sum())
        logger.warning("%d validation images are excluded from the training images.", count)
    return np.flatnonzero(~common)


def check_batch(context: RunContext) -> None:
    """Refuse a batch without equal parts, whose mean would differ."""
    batch, accumulate = context.config.batch, context.options.accumulate
    parts = context.ranks.world_size * accumulate
    if batch % parts:
        raise ValueError(
            f"batch={batch} does not split into {context.ranks.world_size} ranks x "
            f"{accumulate} accumulated parts; use a multiple of {parts}."
        )


def batch_specs(
    context: RunContext,
    training: NDArray[np.int64],
    steps: range,
    length: int,
    crops: int | None = None,
) -> Iterator[BatchSpec]:
    """The parts of this rank's share of each step's batch; `crops` counts cached views."""
    config = context.config
    for step in steps:
        places, epochs = sample_order(len(training), config.batch, step, config.seed)
        resolution = draw_resolution(config.phases, config.seed, step, length)
        mine = context.ranks.split(config.batch)
        images, draws = training[places[mine]], epochs[mine]
        if crops is not None:
            pairs = zip(images.tolist(), draws.tolist(), strict=True)
            keys = (f"crop/{config.seed}/{epoch}/{image}" for image, epoch in pairs)
            draws = np.array([random.Random(key).randrange(crops) for key in keys], np.int64)
        parts = (np.array_split(numbers, context.options.accumulate) for numbers in (images, draws))
        for part, (some, their_draws) in enumerate(zip(*parts, strict=True)):
            yield BatchSpec(step, part, some, their_draws, resolution)


class UnreadableImages:
    """Counts images that could not be read, over all ranks."""

    def __init__(self, index: ImageIndex, total: int, context: RunContext) -> None:
        self._index, self._ranks = index, context.ranks
        self._path, share = context.folder.unreadable, context.config.max_unreadable
        self._share = share
        self._limit = 0 if share == 0 else max(1, int(share * total))
        self._flags = torch.zeros(len(index), dtype=torch.int32)
        self._reasons: dict[int, str] = {}
        self._listed: set[int] = set()

    @property
    def count(self) -> int:
        """Unreadable images so far."""
        return int(self._flags.sum())

    def note(self, found: dict[int, str]) -> int:
        """Add images that this rank could not read, with reasons; return the number of new ones."""
        new = {image: why for image, why in found.items() if not self._flags[image]}
        self._reasons.update(new)
        self._flags[list(new)] = 1
        return len(new)

    def synchronize(self) -> None:
        """Merge the counts of all ranks, list new images, and raise if there are too many."""
        self._flags = (self._ranks.all_reduce(self._flags.clone()) > 0).to(torch.int32)
        if self._ranks.is_main:
            self._list()
        if self.count > self._limit:
            reason = next(iter(self._reasons.values()), UNKNOWN_REASON)
            raise DataError(
                f"{self.count:,} images cannot be read ({reason}), more than the allowed share of "
                f"{self._share:g}; unreadable.jsonl in the run folder lists them: repair or remove "
                "them, or raise --max-unreadable."
            )

    def tensor(self) -> Tensor:
        """Their numbers, for a checkpoint."""
        return self._flags.nonzero().flatten()

    def load(self, numbers: Tensor) -> None:
        """Continue with those of a checkpoint, which are listed already."""
        self._flags[numbers] = 1
        self._listed.update(numbers.tolist())

    def _list(self) -> None:
        """Write new ones that the file lacks; a killed run may have written some."""
        new = [image for image in self.tensor().tolist() if image not in self._listed]
        if not new:
            return
        with suppress(OSError), closing(JsonlWriter(self._path)) as lines:  # later, if disk is full
            present = {row["image"] for row in read_jsonl(self._path)}
            for image in new:
                if (name := self._index[image].name) not in present:
                    reason = self._reasons.get(image, UNKNOWN_REASON)
                    lines.write({"image": name, "reason": reason})
            self._listed.update(new)
