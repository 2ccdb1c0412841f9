"""Collections of made-up features, for tests that need no pictures."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from tests.data.pictures import small_model
from veca.data.listing import UNKNOWN
from veca.embed.config import EmbedConfig
from veca.embed.layout import Entry, Skipped
from veca.embed.record import ModelRecord, Record
from veca.embed.store import CollectionWriter, ShardContent

WIDTH = small_model().config.width


def wanted(**fields: Any) -> Record:
    """The record of a collection that is to be made."""
    model = ModelRecord(name="m", digest="d" * 64, untrained=True, config=small_model().config)
    config = EmbedConfig(budget=4, patches=True, precision="fp32", dtype="float32")
    return dataclasses.replace(Record(model=model, config=config), **fields)


def content(shard: int, first: int, count: int = 2, skipped: int = 1) -> ShardContent:
    """A shard of made-up features that its numbers decide."""
    random = np.random.default_rng(shard)
    entries = [
        Entry(
            index=first + row, path=f"/{first + row}.jpg", shard=shard, row=row, grid=(2, 3),
            width=48, height=32, num_bytes=10 + row, member=None, start=UNKNOWN,
        )
        for row in range(count)
    ]  # fmt: skip
    return ShardContent(
        random.normal(size=(count, WIDTH)).astype(np.float32),
        [random.normal(size=(WIDTH, 2, 3)).astype(np.float32) for _ in range(count)],
        entries,
        [Skipped(f"/bad{shard}-{number}.jpg", "is empty", 0) for number in range(skipped)],
    )


def filled(folder: Path, shards: int) -> CollectionWriter:
    """A collection with some shards."""
    folder.mkdir(exist_ok=True)
    writer = CollectionWriter(folder, wanted())
    while len(writer.record.shards) < shards:
        writer.commit(content(len(writer.record.shards), writer.record.count))
    return writer
