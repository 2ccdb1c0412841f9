"""Collections of made-up features, for tests that need no images."""

import dataclasses
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from veca.embed.collection import Collection, CollectionMeta, CollectionWriter, ImageRow
from veca.embed.embed import EmbedConfig

WIDTH = 8
SOURCE = "/photos"


def meta(model_sha256: str = "d" * 64, **settings: Any) -> CollectionMeta:
    """What a collection is made with."""
    config = EmbedConfig(budget=4, precision="fp32", dtype="float32", patches=True)
    return CollectionMeta(
        model="m",
        model_sha256=model_sha256,
        untrained=True,
        backbone={"width": WIDTH},
        settings=asdict(dataclasses.replace(config, **settings)),
    )


def made_up_rows(shard: int, count: int = 4) -> list[ImageRow]:
    """Rows that the number of the shard decides; the second one could not be read."""
    random = np.random.default_rng(shard)
    rows = [
        ImageRow(
            path=f"{SOURCE}/{shard}/{number}.jpg",
            num_bytes=10 + number,
            tar_offset=None,
            width=48,
            height=32,
            sha256=f"{shard}{number}" * 32,
            feature=random.normal(size=WIDTH).astype(np.float32),
            patch_map=random.normal(size=(WIDTH, 2, 3)).astype(np.float32),
        )
        for number in range(count)
    ]
    if count > 1:
        rows[1] = ImageRow(rows[1].path, 11, None, error="is empty")
    return rows


def written(
    folder: Path, shards: Sequence[Sequence[ImageRow]], about: CollectionMeta | None = None
) -> Collection:
    """A collection with these shards."""
    folder.mkdir(exist_ok=True)
    writer = CollectionWriter(folder, about or meta())
    dtype = writer.meta.settings["dtype"]
    for number, rows in zip(writer.plan(len(shards)), shards, strict=True):
        typed = [row._replace(feature=_as_type(row.feature, dtype)) for row in rows]
        writer.write(number, SOURCE, typed)
    return Collection.open(folder)


def _as_type(feature: np.ndarray | None, dtype: str) -> np.ndarray | None:
    return None if feature is None else feature.astype(dtype)


def with_features(features: np.ndarray, shard: int = 0) -> list[ImageRow]:
    """Rows with these features, all of which could be read."""
    first = made_up_rows(shard, count=1)[0]
    return [
        first._replace(path=f"{SOURCE}/{shard}/{number}.jpg", feature=feature)
        for number, feature in enumerate(features.astype(np.float32))
    ]
