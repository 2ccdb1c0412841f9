"""`collection.json`: what a collection is, and how much of it is there.

The file is replaced in one step after everything it speaks of has reached the disk, so it is the
commit of each shard: shards beyond its list and bytes beyond its counts are leftovers of a run that
was stopped, and nobody reads them.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

from veca.backbone.config import BackboneConfig
from veca.embed.config import EmbedConfig
from veca.embed.errors import CollectionError
from veca.runtime import VERSION
from veca.runtime.device import ResolvedPrecision
from veca.runtime.files import write_atomic
from veca.weights.format import config_from_json

RECORD_NAME = "collection.json"

FORMAT = 1
"""Rises when older versions of veca could misread newer collections."""

MOST_BYTES = 50_000_000
"""Larger files were not written by veca: a record has about ten bytes for each shard."""


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """The model of a collection."""

    name: str | None
    """By which it is found again; None for one that was in memory only."""

    digest: str
    """SHA-256 of its configuration and weights."""

    untrained: bool
    config: BackboneConfig


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of the file."""

    model: ModelRecord

    config: EmbedConfig
    """With the budget that was used (None stands for a full-attention model) and the precision that
    was computed with, never 'auto'."""

    shards: tuple[int, ...] = ()
    """Pictures in each shard; 0 where every picture was skipped, which leaves no file."""

    skipped: int = 0
    """Inputs that could not be read."""

    index_bytes: int = 0
    """Length of the index, of which more may lie on the disk after a run was stopped."""

    skipped_bytes: int = 0
    """Length of the list of skipped inputs."""

    complete: bool = False
    """Whether the last run came to the end of its inputs."""

    command: str | None = None
    """The command of the last run."""

    version: str = VERSION
    """The version of veca that wrote last."""

    @property
    def count(self) -> int:
        """Pictures in the collection."""
        return sum(self.shards)


def write_record(folder: Path, record: Record) -> None:
    """Commit."""
    model = record.model
    content = {
        "format": FORMAT,
        "veca_version": record.version,
        "model": {
            "name": model.name,
            "weights_sha256": model.digest,
            "untrained": model.untrained,
            "backbone": dataclasses.asdict(model.config),
        },
        **dataclasses.asdict(record.config),
        "count": record.count,
        "skipped": record.skipped,
        "complete": record.complete,
        "command": record.command,
        "shards": list(record.shards),
        "index_bytes": record.index_bytes,
        "skipped_bytes": record.skipped_bytes,
    }
    write_atomic(folder / RECORD_NAME, [json.dumps(content, indent=2).encode(), b"\n"])


def read_record(folder: Path) -> Record:
    """The record of a collection that anyone may have written."""
    path = folder / RECORD_NAME
    content = _content(path)
    try:
        model = content["model"]
        return Record(
            model=ModelRecord(
                name=_typed(model["name"], str | None),
                digest=_typed(model["weights_sha256"], str),
                untrained=_typed(model["untrained"], bool),
                config=config_from_json(model["backbone"], str(path)),
            ),
            config=_config(content),
            shards=tuple(_count(rows) for rows in content["shards"]),
            skipped=_count(content["skipped"]),
            index_bytes=_count(content["index_bytes"]),
            skipped_bytes=_count(content["skipped_bytes"]),
            complete=_typed(content["complete"], bool),
            command=_typed(content["command"], str | None),
            version=_typed(content["veca_version"], str),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CollectionError(
            f"{path} is not as veca wrote it ({type(error).__name__}: {error}); restore it, or "
            "embed the pictures anew into another folder."
        ) from error


def _content(path: Path) -> dict[str, Any]:
    """The JSON object of a format that is known."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(MOST_BYTES))
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__}, not an object")
    except FileNotFoundError as error:
        raise CollectionError(
            f"{path.parent} holds no collection (it has no {path.name}); make one with veca embed."
        ) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise CollectionError(
            f"{path} holds no readable JSON ({error}); restore it, or embed the pictures anew "
            "into another folder."
        ) from error
    if content.get("format") != FORMAT:
        raise CollectionError(
            f"{path} has the format {content.get('format')!r}, but this veca reads {FORMAT}; "
            "update veca, or embed the pictures anew."
        )
    return content


def _config(content: dict[str, Any]) -> EmbedConfig:
    """The choices that a collection was made with."""
    return EmbedConfig(
        budget=_typed(content["budget"], int | None),
        ffn=_typed(content["ffn"], float | int | None),
        size=_typed(content["size"], int),
        fit=_typed(content["fit"], str),
        precision=_resolved(content.get("precision", "fp32")),  # older ones had no other
        dtype=_typed(content["dtype"], str),
        patches=_typed(content["patches"], bool),
    )


def _resolved(value: object) -> ResolvedPrecision:
    """A precision that was computed with."""
    if value not in get_args(ResolvedPrecision):
        raise TypeError(f"{value!r} is no precision that was computed with")
    return cast(ResolvedPrecision, value)


def _typed(value: Any, kind: Any) -> Any:  # noqa: ANN401 - JSON
    """The value, if it is of this kind."""
    if not isinstance(value, kind):
        raise TypeError(f"{value!r} is not of the type {kind}")
    return value


def _count(value: object) -> int:
    """A whole number of 0 or more."""
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value
