"""The record of a collection comes back as it was written, and nothing else passes for one."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.data.pictures import small_model
from veca.embed.config import EmbedConfig
from veca.embed.errors import CollectionError
from veca.embed.record import RECORD_NAME, ModelRecord, Record, read_record, write_record

CONFIG = EmbedConfig(budget=4, ffn=0.5, precision="bf16", patches=True)


def record(**fields: Any) -> Record:
    model = ModelRecord(name="m", digest="d", untrained=True, config=small_model().config)
    return Record(model=model, config=CONFIG, **fields)


def test_a_record_comes_back_as_it_was_written(tmp_path: Path) -> None:
    written = record(
        shards=(3, 0, 2), skipped=4, index_bytes=500, skipped_bytes=90, complete=True, command="c"
    )
    write_record(tmp_path, written)
    assert read_record(tmp_path) == written
    assert written.count == 5


def test_the_file_tells_people_what_they_ask_first(tmp_path: Path) -> None:
    write_record(tmp_path, record(shards=(3, 2)))
    content = json.loads((tmp_path / RECORD_NAME).read_text())
    told = {name: content[name] for name in ("count", "budget", "ffn", "size", "fit", "dtype")}
    assert told == {
        "count": 5, "budget": 4, "ffn": 0.5, "size": 256, "fit": "resize", "dtype": "float16",
    }  # fmt: skip
    assert content["model"]["weights_sha256"] == "d"


def test_collections_of_before_there_was_a_choice_are_fp32(tmp_path: Path) -> None:
    write_record(tmp_path, record())
    content = json.loads((tmp_path / RECORD_NAME).read_text())
    assert content.pop("precision") == "bf16"
    (tmp_path / RECORD_NAME).write_text(json.dumps(content))
    assert read_record(tmp_path).config.precision == "fp32"


def test_a_folder_without_a_record_is_no_collection(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"holds no collection .* veca embed"):
        read_record(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "[" * 100_000, "\x00", "NaN"])
def test_what_is_no_object_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text(text)
    with pytest.raises(CollectionError, match="no readable JSON"):
        read_record(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / RECORD_NAME).write_text('{"format": 2}')
    with pytest.raises(CollectionError, match="has the format 2, but this veca reads 1"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", "auto"), ("precision", 16), ("shards", [-1]), ("shards", [True]),
        ("shards", 3), ("shards", ["3"]), ("skipped", 1.5),
        ("index_bytes", None), ("complete", 1), ("command", 7), ("dtype", "int8"), ("fit", 3),
        ("size", "x"), ("budget", 1.5), ("model", []), ("model", {}), ("veca_version", None),
        ("patches", "no"),
    ],
)  # fmt: skip
def test_fields_that_veca_never_wrote_are_refused(name: str, value: Any, tmp_path: Path) -> None:
    write_record(tmp_path, record(shards=(3,)))
    path = tmp_path / RECORD_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(CollectionError, match="is not as veca wrote it"):
        read_record(tmp_path)


@pytest.mark.parametrize("name", ["shards", "model", "budget", "count"])
def test_a_field_that_is_missing_is_refused_where_it_is_needed(name: str, tmp_path: Path) -> None:
    write_record(tmp_path, record(shards=(3,)))
    path = tmp_path / RECORD_NAME
    content = json.loads(path.read_text())
    del content[name]
    path.write_text(json.dumps(content))
    if name == "count":  # the sum of the shards tells it
        assert read_record(tmp_path).count == 3
    else:
        with pytest.raises(CollectionError, match="is not as veca wrote it"):
            read_record(tmp_path)
