"""A contact sheet: the query and its matches, as tiles of one picture."""

import functools
import io
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont

from veca.data.images import ImageError, decode
from veca.data.listing import ImageEntry, exists, open_image
from veca.embed.collection import CollectionError
from veca.embed.search import Match
from veca.runtime.files import make_folder, write_atomic

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
RULE = (229, 231, 235)


class Layout(NamedTuple):
    """Where things are on a sheet: the query in a column of its own, matches in a grid."""

    columns: int
    rows: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the sheet."""
        width = 2 * MARGIN + (self.columns + 1) * TILE + self.columns * GAP + GAP
        return width, 2 * MARGIN + self.rows * (TILE + CAPTION) + (self.rows - 1) * GAP

    def corner(self, number: int) -> tuple[int, int]:
        """The upper left corner of the tile of a match, counted from 0."""
        row, column = divmod(number, self.columns)
        left = MARGIN + (column + 1) * (TILE + GAP) + GAP
        return left, MARGIN + row * (TILE + CAPTION + GAP)


def layout(count: int) -> Layout:
    """A sheet for `count` matches, slightly wider than high."""
    columns = min(count, max(1, round(math.sqrt(count * 4 / 3))))
    return Layout(columns, math.ceil(count / columns))


def contact_sheet(query: ImageEntry, matches: Sequence[Match]) -> Image.Image:
    """Draw the sheet; an image that is missing or unreadable becomes a gray tile."""
    shown = matches[:MAX_TILES]
    places = layout(len(shown))
    sheet = Image.new("RGB", places.size, PAPER)
    draw = ImageDraw.Draw(sheet)
    _draw_tile(sheet, draw, (MARGIN, MARGIN), query)
    draw.rectangle((MARGIN - 3, MARGIN - 3, MARGIN + TILE + 2, MARGIN + TILE + 2), None, ACCENT, 3)
    _write(draw, (MARGIN, MARGIN), "query", ACCENT, query)
    line = MARGIN + TILE + GAP
    draw.line((line, MARGIN, line, places.size[1] - MARGIN), RULE, 1)
    for number, match in enumerate(shown):
        corner = places.corner(number)
        source = match.image.source
        _draw_tile(sheet, draw, corner, source)
        _write(draw, corner, f"{match.similarity:.3f}", INK, source)
    return sheet


def write_sheet(sheet: Image.Image, path: Path) -> None:
    """Write a sheet as PNG, atomically; its folder is created if needed."""
    if path.is_dir():
        raise CollectionError(f"{path} is a folder; give a file name such as sheet.png.")
    encoded = io.BytesIO()
    sheet.save(encoded, "PNG")
    make_folder(path.parent)
    write_atomic(path, [encoded.getbuffer()])


def _draw_tile(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, corner: tuple[int, int], source: ImageEntry
) -> None:
    """Draw an image into its tile."""
    left, top = corner
    box = (left, top, left + TILE - 1, top + TILE - 1)
    try:
        picture = _thumbnail(source)
    except (ImageError, OSError):
        draw.rectangle(box, MISSING_COLOR)
        words = "unreadable" if exists(source) else "missing"
        draw.text((left + TILE / 2, top + TILE / 2), words, PALE_INK, _font(15), anchor="mm")
        return
    draw.rectangle(box, TILE_COLOR)
    sheet.paste(picture, (left + (TILE - picture.width) // 2, top + (TILE - picture.height) // 2))


def _thumbnail(source: ImageEntry) -> Image.Image:
    """An image scaled to fit a tile."""
    with open_image(source) as file:
        picture = decode(file)
    height, width = picture.sides
    scale = TILE / max(height, width)
    sides = max(1, round(height * scale)), max(1, round(width * scale))
    whole = (0.0, 0.0, float(width), float(height))
    pixels = picture.resampled(sides, whole).pixels()
    if pixels.is_floating_point():
        pixels = (pixels * 255).round().byte()
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _write(
    draw: ImageDraw.ImageDraw,
    corner: tuple[int, int],
    title: str,
    color: tuple[int, int, int],
    source: ImageEntry,
) -> None:
    """Write two lines below a tile: a title and the file name."""
    left, top = corner
    draw.text((left, top + TILE + 7), title, color, _font(17))
    name = _shortened(_file_name(source), _font(13))
    draw.text((left, top + TILE + 29), name, PALE_INK, _font(13))


def _file_name(source: ImageEntry) -> str:
    """The last part of a path, without characters that cannot be drawn."""
    name = os.path.basename(source.member or source.name)  # noqa: PTH119 - no path of this system
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _shortened(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Text that fits below a tile; its end, which distinguishes files, stays."""
    if font.getlength(text) <= TILE:
        return text
    kept = len(text)
    while kept > 1 and font.getlength(_elided(text, kept)) > TILE:
        kept -= 1
    return _elided(text, kept)


def _elided(text: str, kept: int) -> str:
    """Text shortened to `kept` characters, half of them from its end."""
    tail = (kept + 1) // 2
    return f"{text[: kept - tail]}\u2026{text[-tail:]}"


@functools.cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font included in Pillow."""
    return ImageFont.load_default(size)
