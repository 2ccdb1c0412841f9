"""A contact sheet has even tiles, shows what was found, and survives files that are gone."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import write_shard
from veca.data.listing import UNKNOWN, ImageEntry
from veca.embed import contact_sheet as sheet
from veca.embed.collection import CollectionError, ImageRow
from veca.embed.contact_sheet import GAP, MARGIN, TILE, contact_sheet, layout, write_sheet
from veca.embed.search import Match


def match(rank: int, path: Path | str) -> Match:
    return Match(rank, 1 / rank, ImageRow(str(path), 1, None))


def source(path: Path) -> ImageEntry:
    return ImageEntry(str(path), UNKNOWN, None, UNKNOWN)


def colored(path: Path, color: tuple[int, int, int], sides: tuple[int, int]) -> Path:
    Image.new("RGB", sides, color).save(path)
    return path


def tile_of(drawn: Image.Image, number: int, count: int) -> Image.Image:
    """The tile of a match, or of the query for -1."""
    left, top = (MARGIN, MARGIN) if number < 0 else layout(count).corner(number)
    return drawn.crop((left, top, left + TILE, top + TILE))


@pytest.mark.parametrize(
    ("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (12, 4, 3), (13, 4, 4)]
)
def test_a_sheet_is_as_large_as_its_tiles_need(count: int, columns: int, rows: int) -> None:
    places = layout(count)
    assert (places.columns, places.rows) == (columns, rows)
    assert places.size == (
        2 * MARGIN + (columns + 1) * (TILE + GAP),
        2 * MARGIN + rows * (TILE + sheet.CAPTION + GAP) - GAP,
    )
    corners = [places.corner(number) for number in range(count)]
    assert len(set(corners)) == count
    for left, top in corners:  # nothing hangs over the edge
        assert left + TILE <= places.size[0] - MARGIN
        assert top + TILE + sheet.CAPTION <= places.size[1] - MARGIN


def test_pictures_stand_in_the_middle_of_their_tiles_in_their_proportions(tmp_path: Path) -> None:
    wide = colored(tmp_path / "wide.png", (200, 0, 0), (400, 200))
    tiny = colored(tmp_path / "tiny.png", (0, 0, 200), (8, 16))
    drawn = contact_sheet(source(tiny), [match(1, wide), match(2, tiny)])
    assert drawn.size == layout(2).size
    first = np.asarray(tile_of(drawn, 0, 2))
    assert (first[TILE // 4 + 1 : -TILE // 4 - 1] == (200, 0, 0)).all()
    assert (first[: TILE // 4 - 1] == sheet.TILE_COLOR).all()
    for number in (-1, 1):
        other = np.asarray(tile_of(drawn, number, 2))
        assert (other[:, TILE // 4 + 1 : -TILE // 4 - 1] == (0, 0, 200)).all()


def test_missing_and_unreadable_pictures_are_gray_tiles(tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"bad")
    found = [match(1, tmp_path / "gone.png"), match(2, tmp_path / "bad.png")]
    drawn = contact_sheet(source(tmp_path / "gone.png"), found)
    for number in (-1, 0, 1):
        tile = np.asarray(tile_of(drawn, number, 2))
        assert (tile[10:40, 10:-10] == sheet.MISSING_COLOR).all()


def test_members_of_shards_and_deep_grays_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "gray.png"
    Image.fromarray(np.full((20, 20), 40_000, np.uint16)).save(path)
    shard = write_shard(tmp_path / "s.tar", [("gray.png", path.read_bytes())])
    member = ImageEntry(f"{shard}#gray.png", path.stat().st_size, str(shard), 512)
    drawn = contact_sheet(member, [match(1, path)])
    for number in (-1, 0):
        centre = tile_of(drawn, number, 1).getpixel((TILE // 2, TILE // 2))
        assert centre == (156, 156, 156)  # 40,000 of 65,535


def test_long_names_keep_their_ends_and_fit_below_their_tile() -> None:
    font = sheet._font(13)
    for name in ("short.jpg", "a" * 200 + "0001.jpg", "\u00fc\u00e9" * 40 + "-7.png"):
        shown = sheet._shortened(name, font)
        assert font.getlength(shown) <= TILE
        assert shown.endswith(name[-5:])
    assert sheet._shortened("short.jpg", font) == "short.jpg"


def test_names_with_letters_that_cannot_be_drawn_do_no_harm(tmp_path: Path) -> None:
    drawn = contact_sheet(source(tmp_path / "a\nb\x1b.png"), [match(1, tmp_path / "\udcff\t")])
    assert drawn.size == layout(1).size


def test_a_sheet_has_a_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheet, "MAX_TILES", 2)
    found = [match(rank, tmp_path / "gone.png") for rank in range(1, 9)]
    assert contact_sheet(source(tmp_path / "gone.png"), found).size == layout(2).size


def test_a_sheet_is_written_as_png(tmp_path: Path) -> None:
    write_sheet(Image.new("RGB", (5, 4)), tmp_path / "new" / "sheet.png")
    with Image.open(tmp_path / "new" / "sheet.png") as image:
        assert (image.format, image.size) == ("PNG", (5, 4))
    with pytest.raises(CollectionError, match="is a folder"):
        write_sheet(Image.new("RGB", (5, 4)), tmp_path)
