"""The pictures of a collection that are most like one: cosine similarity, in bounded memory."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from veca.embed.collection import Collection
from veca.embed.errors import CollectionError
from veca.embed.layout import Entry


class Neighbour(NamedTuple):
    """A picture that was found."""

    rank: int
    """From 1, the most similar."""

    similarity: float
    """Cosine of the angle between the vectors, within -1..1."""

    entry: Entry


def nearest(
    collection: Collection, vector: Float[np.ndarray, " D"], top: int = 12
) -> list[Neighbour]:
    """The pictures whose vectors point most nearly the same way; equals in the order of the index.

    Exact: every vector is compared, a block at a time.
    """
    if top < 1:
        raise CollectionError(f"top={top} asks for no picture; use 1 or more.")
    width = collection.vectors.shape[1]
    if vector.shape != (width,):
        raise CollectionError(
            f"the vector has the shape {vector.shape}, but those of the collection have "
            f"({width},); embed the picture with the collection's model."
        )
    rows, similarities = np.empty(0, np.int64), np.empty(0, np.float32)
    wanted = _unit(vector[None])[0]
    for start, block in collection.vectors.blocks():
        found = _unit(block) @ wanted
        rows = np.concatenate((rows, np.arange(start, start + len(found))))
        similarities = np.concatenate((similarities, found))
        best = np.argsort(-similarities, kind="stable")[:top]
        rows, similarities = rows[best], similarities[best]
    pairs = zip(rows.tolist(), similarities.tolist(), strict=True)
    return [
        Neighbour(rank, similarity, collection.entry(row))
        for rank, (row, similarity) in enumerate(pairs, start=1)
    ]


def _unit(vectors: Float[np.ndarray, "n D"]) -> Float[np.ndarray, "n D"]:
    """Vectors of length one in single precision; zeros stay zeros."""
    single = vectors.astype(np.float32)
    lengths = np.linalg.norm(single, axis=1, keepdims=True)
    return single / np.maximum(lengths, np.finfo(np.float32).tiny)
