"""A contact sheet has even tiles, shows what was found, and survives files that are gone."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import write_shard
from veca.data.listing import UNKNOWN, ImageEntry
from veca.embed import contact_sheet as sheet
from veca.embed.collection import CollectionError, ImageRow
from veca.embed.contact_sheet import (
    CAPTION,
    GAP,
    MARGIN,
    TILE,
    contact_sheet,
    num_columns,
    write_sheet,
)
from veca.embed.search import Match


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
        shown = sheet._caption(source(Path(name)))
        assert sheet._font(13).getlength(shown) <= TILE
        assert shown.isprintable()
        assert shown[-5:] == name[-5:] or not name.isprintable()
    assert sheet._caption(source(Path("short.jpg"))) == "short.jpg"


def test_a_sheet_is_written_as_png(tmp_path: Path) -> None:
    write_sheet(Image.new("RGB", (5, 4)), tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as image:
        assert (image.format, image.size) == ("PNG", (5, 4))
    with pytest.raises(CollectionError, match="is a folder"):
        write_sheet(Image.new("RGB", (5, 4)), tmp_path)
