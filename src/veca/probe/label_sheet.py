"""Pictures with the labels that a head gives them, in even tiles on one sheet."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from PIL import Image, ImageDraw

from veca.probe.overlay import INK, PALE_INK, PAPER, RULE, fitted, font

TILE = 224
"""Side of a tile in pixels; pictures keep their proportions within it."""

GAP = 24
MARGIN = 28
LINE = 25
TEXT = 14
MOST_LABELS = 5
"""Labels below a picture at most."""

TILE_COLOR = (243, 244, 246)
ACCENT = (37, 99, 235)


class Labeled(NamedTuple):
    """A picture and what it is said to show."""

    picture: Image.Image

    name: str
    """Such as the name of its file."""

    labels: Sequence[tuple[str, float]]
    """Words with scores from 0 to 1, best first."""


def label_sheet(pictures: Sequence[Labeled]) -> Image.Image:
    """Draw the sheet; each label has a bar as long as its score."""
    if not pictures:
        raise ValueError("a sheet needs at least one picture, and none was given.")
    columns = min(len(pictures), max(1, round(math.sqrt(len(pictures) * 4 / 3))))
    most = max(len(item.labels[:MOST_LABELS]) for item in pictures)
    height = TILE + LINE * (1 + most) + 8
    rows = math.ceil(len(pictures) / columns)
    size = (
        2 * MARGIN + columns * (TILE + GAP) - GAP,
        2 * MARGIN + rows * (height + GAP) - GAP,
    )
    sheet = Image.new("RGB", size, PAPER)
    for number, item in enumerate(pictures):
        row, column = divmod(number, columns)
        _draw_tile(sheet, (MARGIN + column * (TILE + GAP), MARGIN + row * (height + GAP)), item)
    return sheet


def _draw_tile(sheet: Image.Image, corner: tuple[int, int], item: Labeled) -> None:
    """A picture, its name and its labels."""
    left, top = corner
    draw = ImageDraw.Draw(sheet)
    draw.rectangle((left, top, left + TILE - 1, top + TILE - 1), TILE_COLOR)
    width, height = item.picture.size
    scale = TILE / max(width, height)
    sides = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = item.picture.convert("RGB").resize(sides, Image.Resampling.BICUBIC)
    sheet.paste(small, (left + (TILE - small.width) // 2, top + (TILE - small.height) // 2))
    middle = top + TILE + 4 + LINE // 2
    place = (left, middle)
    draw.text(place, fitted(item.name, TEXT - 1, TILE), PALE_INK, font(TEXT - 1), anchor="lm")
    for number, (label, score) in enumerate(item.labels[:MOST_LABELS]):
        middle += LINE
        told = f"{100 * score:.1f} %"
        room = TILE - font(TEXT).getlength(told) - 8
        draw.text((left, middle - 3), fitted(label, TEXT, room), INK, font(TEXT), anchor="lm")
        draw.text((left + TILE, middle - 3), told, PALE_INK, font(TEXT), anchor="rm")
        foot = middle + LINE // 2 - 3
        draw.line((left, foot, left + TILE - 1, foot), RULE, 2)
        if (length := round((TILE - 1) * min(max(score, 0.0), 1.0))) > 0:
            draw.line((left, foot, left + length, foot), ACCENT if number == 0 else PALE_INK, 2)
