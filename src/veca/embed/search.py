"""Similarity search: the images of a collection that are most like a query."""

import functools
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from veca.data.listing import UNKNOWN, ImageEntry, absolute, list_images, split_member
from veca.embed.collection import Collection, CollectionError, ImageRow, in_threads
from veca.embed.embed import EmbedConfig, Embedder, ModelSource, decode_image

TINY = np.finfo(np.float32).tiny


class Query(NamedTuple):
    """An image to search with."""

    image: ImageEntry
    feature: Float[np.ndarray, " D"]


class Match(NamedTuple):
    """An image that was found."""

    rank: int
    """From 1, the most similar."""

    similarity: float
    """Cosine of the angle between the features, within -1..1."""

    image: ImageRow


def query_vector(
    collection: Collection,
    image: str | os.PathLike[str],
    model: ModelSource | None = None,
    device: str = "auto",
) -> Query:
    """Look an image up in the collection, or embed it with the model of the collection.

    Args:
        collection: where the image is looked up by its path; if it is there and has not changed,
            neither its file nor the model is needed.
        image: path of an image, also of a member of a tar file, as `photos.tar#beach/1.jpg`.
        model: the model of the collection, if it has moved; any other model is refused.
        device: where the model runs.
    """
    found = collection.find(image)
    if found is not None:
        shard, place = found
        rows = shard.rows()
        source = rows[place].source
        file = Path(source.name)
        changed = source.shard is None and file.exists() and file.stat().st_size != source.num_bytes
        if rows[place].error is None and not changed:
            readable = sum(row.error is None for row in rows[:place])
            return Query(source, shard.features()[readable])
    path = absolute(image)
    source = ImageEntry(path, UNKNOWN, None, UNKNOWN)
    if not os.path.lexists(path) and split_member(os.fspath(image)):
        source = list_images([image]).table[0]
    embedder = collection_embedder(collection, model, device)
    decoded = decode_image(source, embedder.config, embedder.backbone.patch_size)
    return Query(source, np.asarray(embedder([decoded])[0].feature))


def nearest(collection: Collection, feature: Float[np.ndarray, " D"], top: int = 12) -> list[Match]:
    """The images with the highest cosine similarity; equal ones in the order of the collection.

    Exact: every feature is compared, shard by shard.
    """
    if top < 1:
        raise CollectionError(f"top={top} is invalid; use at least 1.")
    if not len(collection):
        raise CollectionError(
            f"{collection.folder} has no image that could be read; add some with `veca embed`."
        )
    width = collection.meta.backbone["width"]
    if feature.shape != (width,):
        raise CollectionError(
            f"the query has the shape {feature.shape}, but features of the collection have "
            f"({width},); embed it with the model of the collection."
        )
    shards = collection.shards
    parts = in_threads(lambda shard: _cosines(shard.features(), feature), shards)
    similarities = np.concatenate(parts)
    starts = np.cumsum([0, *map(len, parts)])

    @functools.cache
    def readable(number: int) -> list[ImageRow]:
        return [row for row in shards[number].rows() if row.error is None]

    matches = []
    best = np.argsort(-similarities, kind="stable")[:top].tolist()
    for rank, place in enumerate(best, start=1):
        number = int(np.searchsorted(starts, place, side="right")) - 1
        image = readable(number)[place - int(starts[number])]
        matches.append(Match(rank, float(similarities[place]), image))
    return matches


def _cosines(
    features: Float[np.ndarray, "n D"], query: Float[np.ndarray, " D"]
) -> Float[np.ndarray, " n"]:
    """Cosine similarities in single precision; those of a zero vector are zero."""
    rows = torch.from_numpy(features).float().numpy()  # numpy converts half floats slowly
    vector = query.astype(np.float32)
    # Not a matrix product: that rounds equal rows differently, depending on their place.
    products = np.einsum("ij,j->i", rows, vector)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * np.linalg.norm(vector)
    cosines: NDArray[np.floating] = products / np.maximum(lengths, TINY)
    return cosines


def collection_embedder(collection: Collection, model: ModelSource | None, device: str) -> Embedder:
    """The model of the collection, with the settings of the collection."""
    meta = collection.meta
    source = meta.model if model is None else model
    if source is None:
        raise CollectionError(
            f"the model of {collection.folder} was never saved, so a new image cannot be embedded; "
            "name the model, or search with an image of the collection."
        )
    try:
        embedder = Embedder(source, EmbedConfig(**meta.settings), device)
    except (ValueError, OSError) as error:
        if model is not None:
            raise
        raise CollectionError(
            f"the model of the collection, {source}, cannot be loaded ({error}); pass its current "
            "path with --model."
        ) from error
    meta.check_same(embedder.meta, collection.folder)
    return embedder
