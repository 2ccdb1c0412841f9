"""Features of a window, brought from batches of one size back into the order of the inputs."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from veca.backbone.features import Features
from veca.data.listing import ImageTable
from veca.embed.config import EmbedConfig
from veca.embed.decoding import Decoded
from veca.embed.errors import CollectionError
from veca.embed.layout import Entry, Skipped
from veca.embed.store import ShardContent
from veca.embed.windows import Window


class Gathering:
    """A window that fills up."""

    def __init__(self, window: Window, table: ImageTable, config: EmbedConfig, width: int) -> None:
        num_inputs = len(window.rows)
        self._window = window
        self._table = table
        self._dtype = config.dtype
        self._stores_maps = config.patches
        self._skipped = dict(window.skipped)
        self._vectors = np.zeros((num_inputs, width), config.dtype)
        self._maps: dict[int, Float[np.ndarray, "D rows columns"]] = {}
        self._grids = np.zeros((num_inputs, 2), np.int64)
        self._originals = np.zeros((num_inputs, 2), np.int64)
        self._missing = max(1, len(window.batches))

    def is_full(self) -> bool:
        """Whether every batch has arrived."""
        return not self._missing

    def add(self, decoded: Decoded, features: Sequence[Features]) -> int:
        """Take the features of a batch, group by group, and tell how many inputs that settles."""
        self._skipped |= decoded.skipped
        for group, found in zip(decoded.groups, features, strict=True):
            self._vectors[group.places] = _stored(found.image, self._dtype)
            self._grids[group.places] = found.grid
            self._originals[group.places] = group.originals
            if self._stores_maps:
                maps = _stored(found.patch_map, self._dtype)
                self._maps |= zip(group.places.tolist(), map(np.copy, maps), strict=True)
        self._missing -= 1
        settled = len(decoded.skipped) + sum(len(group.places) for group in decoded.groups)
        return settled + (len(self._window.skipped) if self.is_full() else 0)

    def content(self, shard: int, first: int) -> ShardContent:
        """The shard with this number, whose first picture has this index in the collection."""
        kept = [place for place in range(len(self._window.rows)) if place not in self._skipped]
        return ShardContent(
            vectors=self._vectors[kept],
            maps=[self._maps[place] for place in kept] if self._stores_maps else [],
            entries=list(self._entries(kept, shard, first)),
            skipped=[self._skipped_at(place) for place in sorted(self._skipped)],
        )

    def _entries(self, kept: Sequence[int], shard: int, first: int) -> Iterator[Entry]:
        """A line of the index for each picture."""
        for row, place in enumerate(kept):
            source = self._table[int(self._window.rows[place])]
            rows, columns = self._grids[place].tolist()
            height, width = self._originals[place].tolist()
            yield Entry(
                index=first + row,
                path=source.name,
                shard=shard,
                row=row,
                grid=(rows, columns),
                width=width,
                height=height,
                num_bytes=source.num_bytes,
                member=source.member,
                start=source.start,
            )

    def _skipped_at(self, place: int) -> Skipped:
        """A line of the list of what was skipped."""
        source = self._table[int(self._window.rows[place])]
        return Skipped(source.name, self._skipped[place], source.num_bytes)


def _stored(numbers: Tensor, dtype: str) -> np.ndarray:
    """Features as they stand in a shard."""
    stored = numbers.to(getattr(torch, dtype))
    if not bool(stored.isfinite().all()):
        fits = bool(numbers.isfinite().all())
        advice = (
            "are too large for float16; use dtype float32."
            if fits
            else "are not finite; check its weights with veca info."
        )
        raise CollectionError(f"the features that this model gives {advice}")
    return stored.cpu().numpy()
