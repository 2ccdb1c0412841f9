"""The picture that a search starts from: what the user named, and its vector."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from veca.backbone.model import VECA
from veca.data.listing import UNKNOWN, ImageEntry, absolute, list_images, open_image, split_member
from veca.data.transforms import prepare
from veca.embed.collection import Collection
from veca.embed.errors import CollectionError
from veca.embed.models import ModelSource, find_model
from veca.runtime.device import pick_device


class Wanted(NamedTuple):
    """A picture to search with."""

    source: ImageEntry
    vector: Float[np.ndarray, " D"]

    is_member: bool
    """Whether its vector is the one that the collection has."""


def find_wanted(
    collection: Collection,
    image: str | os.PathLike[str],
    model: ModelSource | None = None,
    device: str = "auto",
) -> Wanted:
    """A picture by its path; one of the collection needs no model, nor to exist any more.

    The vector of another one is made by the collection's own model. `model` says where that is,
    if it has moved; any other model is refused.
    """
    index = collection.find(image)
    if index is not None and (source := collection.entry(index).source) and not _changed(source):
        return Wanted(source, collection.vectors[index], is_member=True)
    source = _source(image)
    chosen = _model(collection, model, device)
    config = collection.record.config
    with open_image(source) as file:
        pixels, _ = prepare(file, config.size, config.fit, patch_size=chosen.config.patch_size)
    weight = next(chosen.parameters())
    with torch.inference_mode():
        images = pixels[None].to(weight.device, weight.dtype)
        features = chosen(images, config.budget, config.ffn)
    return Wanted(source, features.image[0].float().cpu().numpy(), is_member=False)


def _changed(source: ImageEntry) -> bool:
    """Whether a file is there and is not the one that was embedded."""
    path = Path(source.name)
    return source.shard is None and path.exists() and path.stat().st_size != source.num_bytes


def _source(image: str | os.PathLike[str]) -> ImageEntry:
    """Where a picture lies that is not in the collection."""
    path = absolute(image)
    if not os.path.lexists(path) and split_member(os.fspath(image)):
        return list_images([image]).table[0]
    return ImageEntry(path, UNKNOWN, None, UNKNOWN)


def _model(collection: Collection, model: ModelSource | None, device: str) -> VECA:
    """The model that made the collection."""
    record = collection.record.model
    source = model or record.name
    if source is None:
        raise CollectionError(
            f"the model of {collection.folder} was in memory only when it was made, so a new "
            "picture cannot be embedded; name the model, or a picture of the collection."
        )
    try:
        chosen = find_model(source, pick_device(device))
    except (ValueError, OSError) as error:
        if model is not None:
            raise
        raise CollectionError(
            f"the model of the collection, {record.name}, cannot be loaded ({error}); say with "
            "--model where it is now."
        ) from error
    if chosen.digest != record.digest:
        raise CollectionError(
            f"the model {chosen.name} has the SHA-256 {chosen.digest[:12]}..., but the collection "
            f"was made with {record.name}, {record.digest[:12]}...; say with --model where that "
            "one is, or embed the pictures anew."
        )
    chosen.model.precision = collection.record.config.precision
    return chosen.model
