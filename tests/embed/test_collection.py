"""Collections are plain Parquet for other tools, and any damage to them is detected."""

import dataclasses
import importlib
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import veca.embed
from veca.embed.collection import (
    Collection,
    CollectionError,
    CollectionMeta,
    CollectionWriter,
    DamagedShardError,
    ImageRow,
    check_folder,
    relative_name,
)
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


SHARDS = (made_up_rows(0), made_up_rows(1, count=3))


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    """Two shards of four and three rows, one of which in each is an error."""
    return written(tmp_path / "out", SHARDS)


def readable() -> list[ImageRow]:
    return [row for rows in SHARDS for row in rows if row.error is None]


def test_a_collection_reads_back_what_was_written(collection: Collection) -> None:
    assert len(collection) == 5
    assert collection.paths == [row.path for row in readable()]
    expected = np.stack([row.feature for row in readable() if row.feature is not None])
    np.testing.assert_array_equal(collection.features(), expected)
    plain = [row._replace(feature=None, patch_map=None) for rows in SHARDS for row in rows]
    assert list(collection.rows()) == plain
    assert collection.meta == meta()
    assert collection.missing == 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_pandas_polars_duckdb_and_pyarrow_read_the_same_rows(dtype: str, tmp_path: Path) -> None:
    collection = written(tmp_path / "out", SHARDS, meta(dtype=dtype))
    folder, pattern = str(collection.folder), f"{collection.folder}/*.parquet"
    names = [f"{shard}/{row}.jpg" for shard, count in enumerate((4, 3)) for row in range(count)]
    features = collection.features()
    select = "SELECT path, error, feature FROM '{}' ORDER BY path"
    found: list[tuple[list[str], list[Any]]] = []
    frame = pd.read_parquet(folder)
    found.append((frame["path"].tolist(), frame["feature"].dropna().tolist()))
    table = pl.read_parquet(pattern)
    found.append((table["path"].to_list(), table["feature"].drop_nulls().to_list()))
    rows = duckdb.sql(select.format(pattern)).fetchall()
    found.append(([row[0] for row in rows], [row[2] for row in rows if row[2] is not None]))
    arrow = pq.read_table(folder, page_checksum_verification=True)
    found.append((arrow["path"].to_pylist(), arrow["feature"].drop_null().to_pylist()))
    for paths, vectors in found:
        assert paths == names
        np.testing.assert_array_equal(np.array([list(v) for v in vectors], dtype), features)
    assert [row[1] for row in rows] == [None, "is empty", None, None, None, "is empty", None]
    assert arrow.schema.field("feature").type.list_size == WIDTH
    assert arrow.schema.field("feature").type.value_type == pa.from_numpy_dtype(dtype)


def test_a_query_in_sql_finds_the_nearest_images(collection: Collection) -> None:
    pattern = f"{collection.folder}/*.parquet"
    kind = f"FLOAT[{WIDTH}]"
    nearest = duckdb.sql(
        f"SELECT b.path FROM '{pattern}' a, '{pattern}' b WHERE a.path = '1/2.jpg' AND "
        "b.error IS NULL ORDER BY "
        f"array_cosine_similarity(a.feature::{kind}, b.feature::{kind}) DESC"
    ).fetchall()
    features = collection.features()
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    order = np.argsort(-(unit @ unit[4]), kind="stable")
    assert [f"{SOURCE}/{path}" for (path,) in nearest] == [collection.paths[at] for at in order]


def test_every_page_has_a_checksum_that_readers_verify(collection: Collection) -> None:
    path = collection.shards[0].path
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # within a page
    with pytest.raises(OSError, match=r"(?i)crc"):
        pq.read_table(pa.BufferReader(bytes(data)), page_checksum_verification=True)
    path.write_bytes(data)  # after the collection was opened
    with pytest.raises(DamagedShardError, match=r"shard-00000.parquet is damaged"):
        collection.paths  # noqa: B018 - reading is what fails


def test_an_image_is_found_by_its_path(collection: Collection) -> None:
    for path in (f"{SOURCE}/1/2.jpg", f"{SOURCE}/0/../1/2.jpg"):
        found = collection.find(path)
        assert found is not None
        assert (found[0].number, found[1]) == (1, 2)
    assert collection.find("2.jpg") is None


def test_patch_maps_belong_to_their_images(collection: Collection) -> None:
    for row in readable():
        np.testing.assert_array_equal(collection.patch_map(row.path), row.patch_map)
    with pytest.raises(CollectionError, match=r"has no image nothing.jpg"):
        collection.patch_map("nothing.jpg")


def test_a_collection_without_patch_maps_says_how_to_get_them(tmp_path: Path) -> None:
    collection = written(tmp_path / "out", SHARDS, meta(patches=False))
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["shard-00000.parquet", "shard-00001.parquet"]
    with pytest.raises(CollectionError, match=r"has no patch maps; embed .* with --patches"):
        collection.patch_map(SHARDS[0][0].path)


@pytest.mark.parametrize(
    ("name", "tar", "stored"),
    [
        ("/photos/a/b.jpg", None, "a/b.jpg"),
        ("/other/b.jpg", None, "../other/b.jpg"),
        ("/photos/s.tar#x//../b.jpg", "/photos/s.tar", "s.tar#x//../b.jpg"),
        ("/photos/\udcff.jpg", None, "\uf7ff.jpg"),
    ],
)
def test_paths_are_stored_relative_to_the_source_folder(
    name: str, tar: str | None, stored: str, tmp_path: Path
) -> None:
    assert relative_name(SOURCE, name, tar) == stored
    row = made_up_rows(0)[0]._replace(path=name, tar_offset=512 if tar else None)
    collection = written(tmp_path / "out", [[row]], meta(patches=False))
    assert collection.paths == [name]
    assert collection.shards[0].source == SOURCE
    assert collection.shards[0].rows()[0].source.shard == tar
    found = collection.find(name)
    assert found is not None
    assert found[1] == 0


def test_exchanged_and_copied_files_are_damage(collection: Collection) -> None:
    first, second = (shard.path for shard in collection.shards)
    shutil.copy(first, second)
    with pytest.raises(DamagedShardError, match=r"shard-00001.parquet .* copy of shard 0"):
        Collection.open(collection.folder)
    maps = [shard.patches_path for shard in collection.shards]
    shutil.copy(*maps)
    assert CollectionWriter(collection.folder, meta()).damaged()
    written(collection.folder.parent / "other", [made_up_rows(5)])
    shutil.copy(collection.folder.parent / "other" / maps[0].name, maps[0])
    writer = CollectionWriter(collection.folder, meta())
    assert not writer.shards
    assert any("belongs to another shard" in problem for problem in writer.damaged())
    maps[0].unlink()
    with pytest.raises(DamagedShardError, match=r"_patches-00000.* is missing"):
        collection.shards[0].verify_patches()


def test_deleted_shards_are_counted_and_their_numbers_are_used_again(tmp_path: Path) -> None:
    collection = written(tmp_path / "out", [made_up_rows(number) for number in range(4)])
    for number in (1, 3):
        collection.shards[number].path.unlink()
    assert Collection.open(collection.folder).missing == 2
    assert CollectionWriter(collection.folder, meta()).plan(3) == [1, 3, 4]


def test_shards_of_different_models_or_settings_do_not_mix(tmp_path: Path) -> None:
    written(tmp_path / "a", SHARDS)
    with pytest.raises(CollectionError, match=r"a was made with budget 4, not with budget 2; use"):
        CollectionWriter(tmp_path / "a", meta(budget=2))
    with pytest.raises(CollectionError, match=r"model m \(SHA-256 dddddddddddd\.\.\.\), not with"):
        CollectionWriter(tmp_path / "a", meta("e" * 64))
    written(tmp_path / "b", SHARDS, meta("e" * 64))
    shutil.copy(tmp_path / "b" / "shard-00001.parquet", tmp_path / "a")
    with pytest.raises(CollectionError, match=r"shard-00001\.parquet was made with model m"):
        Collection.open(tmp_path / "a")


def test_leftovers_of_a_killed_write_are_removed_by_the_next_run(collection: Collection) -> None:
    (collection.folder / ".shard-00002.parquet.12345678.tmp").write_bytes(b"half")
    CollectionWriter(collection.folder, meta())
    assert not list(collection.folder.glob(".*.tmp"))
    assert len(Collection.open(collection.folder).shards) == 2


def test_folders_of_other_things_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match="has no collection"):
        Collection.open(tmp_path)
    check_folder(tmp_path)
    check_folder(tmp_path / "new")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(CollectionError, match=r"has other files \(notes\.txt\)"):
        check_folder(tmp_path)
    with pytest.raises(CollectionError, match="is a file"):
        check_folder(tmp_path / "notes.txt")


def test_a_missing_pyarrow_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "veca.embed.collection")
    with pytest.raises(ValueError, match=r"pip install 'veca\[embed\]'"):
        importlib.import_module("veca.embed.collection")


def test_public_names_are_imported_when_they_are_used() -> None:
    assert veca.embed.Collection is Collection
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = veca.embed.nothing
