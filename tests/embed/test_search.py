"""Matches are those that comparing every pair gives; contact sheets show them."""

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.pictures import encoded, saved_model, small_model, write_pictures, write_shard
from tests.embed.test_collection import SOURCE, WIDTH, made_up_rows, meta, with_features, written
from veca.data.images import ImageError
from veca.data.listing import UNKNOWN, ImageEntry
from veca.data.transforms import prepare
from veca.embed import contact_sheet as sheet
from veca.embed.collection import Collection, CollectionError, ImageRow
from veca.embed.contact_sheet import (
    CAPTION,
    GAP,
    MARGIN,
    TILE,
    contact_sheet,
    num_columns,
    write_sheet,
)
from veca.embed.embed import EmbedConfig, ModelSource, embed_images
from veca.embed.search import Match, nearest, query_vector
from veca.runtime.device import Precision

PLAIN = meta(patches=False)


def collection_of(folder: Path, *shards: np.ndarray) -> Collection:
    """A collection with these features."""
    rows = [with_features(features, shard) for shard, features in enumerate(shards)]
    return written(folder, rows, PLAIN)


def paths(matches: list[Match]) -> list[str]:
    return [match.image.path for match in matches]


def brute_force(features: np.ndarray, query: np.ndarray) -> list[tuple[float, int]]:
    """Cosines in double precision, pair by pair, best first."""
    found = []
    for row, other in enumerate(features.astype(np.float64)):
        lengths = float(np.linalg.norm(other)) * float(np.linalg.norm(query))
        found.append((-float(other @ query) / lengths, row))
    return [(-cosine, row) for cosine, row in sorted(found)]


@pytest.mark.parametrize("top", [1, 5, 40, 100])
def test_the_order_is_that_of_comparing_every_pair(top: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(40, WIDTH)) * random.uniform(0.1, 9, size=(40, 1))
    query = random.normal(size=WIDTH)
    collection = collection_of(tmp_path, features[:7], features[7:25], features[25:])
    found = nearest(collection, query, top)
    expected = brute_force(features, query)[:top]
    assert paths(found) == [collection.paths[row] for _, row in expected]
    assert [match.rank for match in found] == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(
        [match.similarity for match in found], [cosine for cosine, _ in expected], atol=1e-6
    )


def test_known_directions_have_known_similarities(tmp_path: Path) -> None:
    features = np.zeros((5, WIDTH))
    features[0, 1] = 1  # at a right angle
    features[1, 0] = -2  # opposite
    features[2, :2] = 1, 1  # at 45 degrees
    features[3, 0] = 100  # the same direction; length does not matter
    query = np.eye(WIDTH)[0]  # the last feature has no direction at all
    collection = collection_of(tmp_path, features)
    found = nearest(collection, query)
    rows = [collection.paths.index(path) for path in paths(found)]
    assert list(zip(rows, [round(match.similarity, 4) for match in found], strict=True)) == [
        (3, 1.0), (2, 0.7071), (0, 0.0), (4, 0.0), (1, -1.0),
    ]  # fmt: skip


def test_equal_images_come_in_the_order_of_the_collection(tmp_path: Path) -> None:
    collection = collection_of(tmp_path, np.ones((3, WIDTH)), np.ones((7, WIDTH)))
    assert paths(nearest(collection, np.ones(WIDTH), 4)) == collection.paths[:4]


def test_images_that_could_not_be_read_are_never_found(tmp_path: Path) -> None:
    collection = written(tmp_path, [made_up_rows(0), made_up_rows(1)], PLAIN)
    found = nearest(collection, np.ones(WIDTH, np.float32), 100)
    assert sorted(paths(found)) == sorted(collection.paths)


def test_a_collection_without_any_image_is_one_sentence(tmp_path: Path) -> None:
    rows = [ImageRow(f"{SOURCE}/a.jpg", 0, None, error="is empty")]
    collection = written(tmp_path, [rows], PLAIN)
    assert len(collection) == len(collection.features()) == 0
    with pytest.raises(CollectionError, match="has no image that could be read; add some"):
        nearest(collection, np.ones(WIDTH))


def test_queries_of_another_width_and_no_matches_at_all_are_refused(tmp_path: Path) -> None:
    collection = collection_of(tmp_path, np.ones((1, WIDTH)))
    with pytest.raises(CollectionError, match=r"shape \(3,\), but .* \(8,\)"):
        nearest(collection, np.ones(3))
    with pytest.raises(CollectionError, match="top=0 is invalid; use at least 1"):
        nearest(collection, np.ones(WIDTH), 0)


def test_a_search_needs_no_patch_maps(tmp_path: Path) -> None:
    rows = made_up_rows(0)  # the second one could not be read
    collection = written(tmp_path, [rows])
    collection.shards[0].patches_path.unlink()
    query = query_vector(collection, rows[2].path)
    np.testing.assert_array_equal(query.feature, rows[2].feature)
    assert paths(nearest(collection, query.feature))[0] == rows[2].path


@pytest.mark.slow
def test_a_hundred_thousand_images_are_searched_in_under_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    random = np.random.default_rng(0)
    width, rows = 384, made_up_rows(0, count=1)
    about = meta(patches=False, dtype="float16")
    about = type(about)(**{**vars(about), "backbone": {"width": width}})
    shards = [
        [
            rows[0]._replace(path=f"{SOURCE}/{shard}/{row}.jpg", feature=feature)
            for row, feature in enumerate(random.normal(size=(512, width)).astype(np.float16))
        ]
        for shard in range(196)
    ]
    written(tmp_path, shards, about)
    wall, cpu = [], []
    for _ in range(5):
        started, computed = time.perf_counter(), time.process_time()
        collection = Collection.open(tmp_path)
        query = query_vector(collection, f"{SOURCE}/150/7.jpg")
        found = nearest(collection, query.feature)
        wall.append(time.perf_counter() - started)
        cpu.append(time.process_time() - computed)
        assert found[0].image.path == f"{SOURCE}/150/7.jpg"
    print(f"{len(collection):,} rows of {width}: {min(wall):.2f} s, {min(cpu):.2f} s of CPU time")
    assert min(cpu) < 1  # of all threads; other work on the machine does not count


def embedded(
    folder: Path, model: ModelSource | None = None, precision: Precision = "fp32"
) -> Collection:
    """A collection of files and of members of a tar file, made with a model on the disk."""
    write_pictures(folder / "photos", 8)
    write_shard(folder / "s.tar", [("x/9.png", encoded(9)), ("x/10.png", encoded(10))])
    source = model or saved_model(folder / "model")
    config = EmbedConfig(size=32, budget=3, ffn=0.5, precision=precision, dtype="float32")
    embed_images(
        [folder / "photos", folder / "s.tar"], source, folder / "out", config, num_workers=0
    )
    return Collection.open(folder / "out")


def test_an_image_of_the_collection_needs_neither_model_nor_file(tmp_path: Path) -> None:
    collection = embedded(tmp_path)
    shutil.rmtree(tmp_path / "model")
    (tmp_path / "photos" / "0003.png").unlink()
    for name, place in (("photos/0003.png", 3), ("s.tar#x/10.png", 9)):
        query = query_vector(collection, tmp_path / name)
        np.testing.assert_array_equal(query.feature, collection.features()[place])
        assert paths(nearest(collection, query.feature))[0] == str(tmp_path / name)


def test_a_copy_elsewhere_gets_the_feature_of_the_original(tmp_path: Path) -> None:
    collection = embedded(tmp_path)
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    shard = write_shard(tmp_path / "other.tar", [("a.png", encoded(0)), ("b.png", encoded(5))])
    for image in (copy, Path(f"{shard}#b.png")):
        query = query_vector(collection, image)
        np.testing.assert_allclose(query.feature, collection.features()[5], atol=1e-5)
        assert paths(nearest(collection, query.feature))[0] == collection.paths[5]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_new_image_is_embedded_in_the_precision_of_the_collection(
    tmp_path: Path, precision: Precision
) -> None:
    collection = embedded(tmp_path, precision=precision)
    (tmp_path / "copy.png").write_bytes(encoded(5))
    found = query_vector(collection, tmp_path / "copy.png").feature
    model = small_model()
    model.precision = precision
    pixels = prepare(tmp_path / "copy.png", 32, "resize").pixels
    with torch.inference_mode():
        expected = model(pixels[None], 3, 0.5).image[0].numpy()
    np.testing.assert_array_equal(found, expected)


def test_an_image_that_changed_is_embedded_again(tmp_path: Path) -> None:
    collection = embedded(tmp_path)
    (tmp_path / "photos" / "0003.png").write_bytes(encoded(6) + b" ")
    query = query_vector(collection, tmp_path / "photos" / "0003.png")
    assert paths(nearest(collection, query.feature))[0] == collection.paths[6]


def test_a_model_that_moved_is_named_and_checked_by_its_hash(tmp_path: Path) -> None:
    collection = embedded(tmp_path)
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    (tmp_path / "model").rename(tmp_path / "moved")
    with pytest.raises(CollectionError, match=r"cannot be loaded .* path with --model"):
        query_vector(collection, copy)
    assert len(query_vector(collection, copy, tmp_path / "moved").feature)
    other = saved_model(tmp_path / "another", seed=1)
    with pytest.raises(CollectionError, match=r"out was made with model .* not with model .*other"):
        query_vector(collection, copy, other)
    with pytest.raises(ValueError, match="nowhere"):
        query_vector(collection, copy, tmp_path / "nowhere")


def test_a_model_that_was_never_saved_must_be_passed(tmp_path: Path) -> None:
    collection = embedded(tmp_path, small_model())
    copy = tmp_path / "copy.png"
    copy.write_bytes(encoded(5))
    with pytest.raises(CollectionError, match="was never saved"):
        query_vector(collection, copy)
    query = query_vector(collection, copy, small_model())
    assert paths(nearest(collection, query.feature))[0] == collection.paths[5]


def test_a_query_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="does not exist"):
        query_vector(embedded(tmp_path), tmp_path / "nothing.png")


def match(rank: int, path: Path | str) -> Match:
    return Match(rank, 1 / rank, ImageRow(str(path), 1, None))


def source(path: Path) -> ImageEntry:
    return ImageEntry(str(path), UNKNOWN, None, UNKNOWN)


def colored(path: Path, color: tuple[int, int, int], sides: tuple[int, int]) -> Path:
    Image.new("RGB", sides, color).save(path)
    return path


def tile_of(drawn: Image.Image, number: int, count: int) -> Image.Image:
    """The tile of the query (0) or of a match (from 1), of `count` tiles."""
    row, column = divmod(number, num_columns(count))
    left, top = MARGIN + column * (TILE + GAP), MARGIN + row * (TILE + CAPTION + GAP)
    return drawn.crop((left, top, left + TILE, top + TILE))


@pytest.mark.parametrize(
    ("matches", "columns", "rows"), [(1, 2, 1), (2, 2, 2), (5, 3, 2), (12, 4, 4), (999, 12, 9)]
)
def test_a_sheet_is_as_large_as_its_tiles_need(
    matches: int, columns: int, rows: int, tmp_path: Path
) -> None:
    gone = tmp_path / "gone.png"
    drawn = contact_sheet(source(gone), [match(rank, gone) for rank in range(1, matches + 1)])
    assert drawn.size == (
        2 * MARGIN + columns * (TILE + GAP) - GAP,
        2 * MARGIN + rows * (TILE + CAPTION + GAP) - GAP,
    )


def test_pictures_stand_in_the_middle_of_their_tiles_in_their_proportions(tmp_path: Path) -> None:
    wide = colored(tmp_path / "wide.png", (200, 0, 0), (400, 200))
    tiny = colored(tmp_path / "tiny.png", (0, 0, 200), (8, 16))
    drawn = contact_sheet(source(tiny), [match(1, wide), match(2, tiny)])
    first = np.asarray(tile_of(drawn, 1, 3))
    assert (first[TILE // 4 + 1 : -TILE // 4 - 1] == (200, 0, 0)).all()
    assert (first[: TILE // 4 - 1] == sheet.TILE_COLOR).all()
    for number in (0, 2):
        other = np.asarray(tile_of(drawn, number, 3))
        assert (other[:, TILE // 4 + 1 : -TILE // 4 - 1] == (0, 0, 200)).all()
    assert drawn.getpixel((MARGIN - 2, MARGIN + 9)) == sheet.ACCENT


def test_missing_and_unreadable_pictures_are_gray_tiles(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"bad")
    found = [match(1, tmp_path / "gone.png"), match(2, tmp_path / "bad.png")]
    drawn = contact_sheet(source(tmp_path / "gone.png"), found)
    for number in range(3):
        tile = np.asarray(tile_of(drawn, number, 3))
        assert (tile[10:40, 10:-10] == sheet.MISSING_COLOR).all()


def test_members_of_shards_and_deep_grays_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(path)
    shard = write_shard(tmp_path / "s.tar", [("gray.png", path.read_bytes())])
    member = ImageEntry(f"{shard}#gray.png", path.stat().st_size, str(shard), 512)
    drawn = contact_sheet(member, [match(1, path)])
    for number in range(2):
        center = tile_of(drawn, number, 2).getpixel((TILE // 2, TILE // 2))
        assert center == (156, 156, 156)  # 40,000 of 65,535


def test_long_names_keep_their_ends_and_fit_below_their_tile() -> None:
    for name in ("short.jpg", "a" * 200 + "0001.jpg", "\u00fc\u00e9" * 40 + "-7.png", "a\nb\x1b"):
        (shown,) = sheet._captions([source(Path(name))])
        assert sheet._font(13).getlength(shown) <= TILE
        assert shown.isprintable()
        assert shown[-5:] == name[-5:] or not name.isprintable()
    assert sheet._captions([source(Path("short.jpg"))]) == ["short.jpg"]


def test_captions_have_the_folders_that_files_differ_in() -> None:
    def captions(*names: str) -> list[str]:
        return sheet._captions([source(Path(name)) for name in names])

    assert captions("/a/cat/01.jpg", "/a/dog/01.jpg") == ["cat/01.jpg", "dog/01.jpg"]
    assert captions("/a/x/1.jpg", "/a/x/1.jpg", "/a/y/2.jpg") == ["x/1.jpg", "x/1.jpg", "y/2.jpg"]
    assert captions("/p/may/1/a.jpg", "/p/june/1/a.jpg") == ["may/1/a.jpg", "june/1/a.jpg"]
    assert captions("/p/one.tar#1.jpg", "/p/two.tar#1.jpg") == [
        "p/one.tar#1.jpg",
        "p/two.tar#1.jpg",
    ]


def test_a_sheet_is_written_as_png(tmp_path: Path) -> None:
    write_sheet(Image.new("RGB", (5, 4)), tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as image:
        assert (image.format, image.size) == ("PNG", (5, 4))
    with pytest.raises(CollectionError, match="is a folder"):
        write_sheet(Image.new("RGB", (5, 4)), tmp_path)
