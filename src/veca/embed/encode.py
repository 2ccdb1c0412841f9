"""`veca.encode`: features of a list of pictures in one call.

For pictures that fit into memory; `embed_images` stores the features of any number of files.
"""

import math
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from veca.backbone.model import VECA, Features
from veca.data.images import ImageError, Source
from veca.data.transforms import MAX_PATCHES, Fit, prepare

MAX_WAITING = 4
"""Batches of prepared pictures that wait for others of their size; then the largest one runs."""


def encode(  # noqa: PLR0913 - what `prepare` and the model can be given
    model: VECA,
    images: Iterable[Source],
    *,
    size: int | None = 512,
    fit: Fit = "resize",
    budget: int | None = None,
    ffn: float | None = None,
    batch_size: int = 8,
    max_patches: int = MAX_PATCHES,
) -> list[Features]:
    """Features of pictures of any kind and size, one `Features` with B = 1 for each, in order.

    Pictures of one prepared size go through the model together, in evaluation and inference mode.
    The features are ordinary tensors on the model's device, without gradients.

    Args:
        model: as `veca.load` returns it.
        images: paths, bytes, open files, PIL images, numpy arrays or torch tensors.
        size: short side in pixels, as in `veca.prepare`; None keeps the resolution.
        fit: 'resize', 'crop' or 'pad', as in `veca.prepare`.
        budget: number of cores; by default that of the model.
        ffn: share of the hidden units.
        batch_size: pictures in a batch, at most.
        max_patches: of a picture, as in `veca.prepare`; as many may wait for a batch.

    Raises:
        ImageError: a picture cannot be used; the message begins with its place in the list.
    """
    _check(model, images, batch_size)
    found: dict[int, Features] = {}
    waiting: defaultdict[tuple[int, ...], dict[int, Tensor]] = defaultdict(dict)
    training, patch_size = model.training, model.config.patch_size
    model.eval()
    try:
        for number, image in enumerate(images):
            try:
                pixels = prepare(
                    image, size, fit, patch_size=patch_size, max_patches=max_patches
                ).pixels
            except ImageError as error:
                raise ImageError(f"images[{number}]: {error}") from error
            shape: tuple[int, ...] = pixels.shape
            waiting[shape][number] = pixels
            if len(waiting[shape]) < batch_size:
                areas = {
                    sides: len(group) * math.prod(sides[1:]) for sides, group in waiting.items()
                }
                many = sum(map(len, waiting.values())) == MAX_WAITING * batch_size
                if not many and sum(areas.values()) <= max_patches * patch_size**2:
                    continue
                shape = max(areas, key=areas.__getitem__)
            found |= _features(model, waiting.pop(shape), budget, ffn)
        for group in waiting.values():
            found |= _features(model, group, budget, ffn)
    finally:
        model.train(training)
    return [found[number] for number in sorted(found)]


def _features(
    model: VECA, group: Mapping[int, Tensor], budget: int | None, ffn: float | None
) -> dict[int, Features]:
    """Features of pictures of one size, by their places in the list."""
    weight = model.final_norm.weight
    with torch.inference_mode():
        batch = torch.stack(list(group.values())).to(weight.device, weight.dtype)
        *found, grid = model(batch, budget, ffn)
    # Copied out of inference mode, so that a head can be trained on them, and one by one, so that
    # features that are kept do not keep their batch.
    singles = [[row.clone() for row in part.split(1)] for part in found]
    rows = zip(group, *singles, strict=True)
    return {
        number: Features(cores, patches, points, grid) for number, cores, patches, points in rows
    }


def _check(model: VECA, images: object, batch_size: int) -> None:
    """Refuse anything that is not a model, a single picture, and an empty batch."""
    if not isinstance(model, VECA):
        raise ValueError(
            f"model is a {type(model).__name__}; pass a model, such as veca.load('veca-tiny')."
        )
    single = isinstance(images, str | bytes | os.PathLike | Image.Image)
    if isinstance(images, Tensor | np.ndarray):
        of_objects = isinstance(images, np.ndarray) and images.dtype.kind in "OU"  # such as paths
        single = images.ndim < 4 and not of_objects
    if single:
        raise ValueError(
            f"images is one picture (a {type(images).__name__}); pass a list, as in [image]."
        )
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} is invalid; use at least 1.")
