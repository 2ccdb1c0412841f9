"""The pictures of an embedded collection that are most like one on the page."""

from contextlib import suppress
from pathlib import Path

import numpy as np

from veca.data.images import DecodedImage, ImageError, decode
from veca.data.listing import open_image
from veca.data.transforms import check_result, fitted, resampled
from veca.embed.collection import Collection, ImageRow
from veca.embed.embed import Embedder, PreparedImage
from veca.embed.search import collection_embedder, nearest
from veca.explore.session import THUMBNAIL_SIDE, MissingError, Neighbor, jpeg

TOP = 12
"""Neighbors to show."""


class Neighbors:
    """A collection and its model."""

    def __init__(self, folder: Path) -> None:
        """Open and verify a collection; its model is loaded when it is first needed."""
        self.collection = Collection.open(folder)
        self._embedder: Embedder | None = None

    def __str__(self) -> str:
        """The name of its folder, as the page shows it."""
        return self.collection.folder.resolve().name

    @property
    def model(self) -> str | None:
        """Name or path of the model that the page can show; None for an exported or unsaved one."""
        meta = self.collection.meta
        return None if "runtime" in meta.settings else meta.model

    def nearest(self, decoded: DecodedImage) -> list[Neighbor]:
        """The most similar pictures, the best first."""
        if self._embedder is None:
            self._embedder = collection_embedder(self.collection, None, "auto")
        config, patch_size = self._embedder.config, self._embedder.backbone.patch_size
        geometry = fitted(decoded.sides, config.size, config.fit, patch_size)
        check_result(geometry)
        row = ImageRow("the picture on the page", None, None)
        image = PreparedImage(row, resampled(decoded, geometry).numpy(), geometry)
        feature = np.asarray(self._embedder([image])[0].feature)
        found = []
        for match in nearest(self.collection, feature, TOP):
            thumbnail = b""
            with suppress(ImageError, OSError), open_image(match.image.source) as file:
                thumbnail = jpeg(decode(file, min_side=THUMBNAIL_SIDE), THUMBNAIL_SIDE)
            found.append(Neighbor(match.image.path, match.similarity, thumbnail))
        return found

    def read(self, path: str) -> bytes:
        """The file of a picture of the collection; no other file is read."""
        found = self.collection.find(path)
        if found is None:
            raise MissingError("The collection has no picture of this path.")
        shard, place = found
        with open_image(shard.rows()[place].source) as file:
            return Path(file).read_bytes() if isinstance(file, str) else file.read()
