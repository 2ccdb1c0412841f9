"""A contact sheet: the query and its matches, as tiles of one picture."""

import functools
import io
import math
from collections.abc import Sequence
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from veca.data.images import ImageError, decode
from veca.data.listing import ImageEntry, exists, open_image
from veca.embed.collection import CollectionError
from veca.embed.search import Match
from veca.runtime.files import make_folder, printable, write_atomic

TILE = 224
"""Side of a tile in pixels; images keep their aspect ratio within it."""

GAP = 20
MARGIN = 32
CAPTION = 50
"""Height of the two lines below a tile."""

MAX_TILES = 100
"""Matches on a sheet."""

PAPER = (255, 255, 255)
TILE_COLOR = (243, 244, 246)
MISSING_COLOR = (209, 213, 219)
INK = (17, 24, 39)
PALE_INK = (107, 114, 128)
ACCENT = (37, 99, 235)


def num_columns(tiles: int) -> int:
    """Tiles side by side, so that a sheet is slightly wider than high."""
    return min(tiles, max(1, round(math.sqrt(tiles * 4 / 3))))


def contact_sheet(query: ImageEntry, matches: Sequence[Match]) -> Image.Image:
    """Draw the query in a frame, then its matches; an image that cannot be read is a gray tile."""
    shown = [(query, "query", ACCENT)]
    shown += [(match.image.source, f"{match.similarity:.3f}", INK) for match in matches[:MAX_TILES]]
    captions = _captions([source for source, _, _ in shown])
    columns = num_columns(len(shown))
    rows = math.ceil(len(shown) / columns)
    width = 2 * MARGIN + columns * (TILE + GAP) - GAP
    sheet = Image.new("RGB", (width, 2 * MARGIN + rows * (TILE + CAPTION + GAP) - GAP), PAPER)
    draw = ImageDraw.Draw(sheet)
    for number, (source, title, color) in enumerate(shown):
        row, column = divmod(number, columns)
        left = MARGIN + column * (TILE + GAP)
        top = MARGIN + row * (TILE + CAPTION + GAP)
        sheet.paste(_tile(source), (left, top))
        draw.text((left, top + TILE + 7), title, color, _font(17))
        draw.text((left, top + TILE + 29), captions[number], PALE_INK, _font(13))
    frame = (MARGIN - 3, MARGIN - 3, MARGIN + TILE + 2, MARGIN + TILE + 2)
    draw.rectangle(frame, None, ACCENT, 3)
    return sheet


def write_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet as PNG, atomically; its folder is created if needed."""
    if path.is_dir():
        raise CollectionError(f"{path} is a folder; give a file name such as sheet.png.")
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    make_folder(path.parent)
    write_atomic(path, [encoded.getbuffer()])


def _tile(source: ImageEntry) -> Image.Image:
    """An image, scaled to fit, in the middle of its tile."""
    try:
        with open_image(source) as file:
            picture = decode(file)
    except (ImageError, OSError):
        tile = Image.new("RGB", (TILE, TILE), MISSING_COLOR)
        words = "unreadable" if exists(source) else "missing"
        ImageDraw.Draw(tile).text((TILE / 2, TILE / 2), words, PALE_INK, _font(15), anchor="mm")
        return tile
    tile = Image.new("RGB", (TILE, TILE), TILE_COLOR)
    thumbnail = picture.thumbnail(TILE)
    tile.paste(thumbnail, ((TILE - thumbnail.width) // 2, (TILE - thumbnail.height) // 2))
    return tile


def _captions(sources: Sequence[ImageEntry]) -> list[str]:
    """File names with so many of their folders, at least one, that they differ where files do."""
    paths = [Path(source.name).parts for source in sources]
    different, depth = len(set(paths)), 2
    while len({path[-depth:] for path in paths}) < different:
        depth += 1
    return [_shortened(printable(str(Path(*path[-depth:])))) for path in paths]


def _shortened(whole: str) -> str:
    """Text with its middle left out, to fit below a tile."""
    text, kept = whole, len(whole)
    while kept > 1 and _font(13).getlength(text) > TILE:
        kept -= 1
        text = f"{whole[: kept // 2]}\u2026{whole[kept // 2 - kept :]}"
    return text


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font included in Pillow."""
    return ImageFont.load_default(size)
