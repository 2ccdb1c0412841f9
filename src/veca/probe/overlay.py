"""Pictures of masks and depth.

Colors for classes and for depths, made here from a space in which steps look even (OKLab).

Words in pictures: the font that comes with Pillow, and text that fits its place.

What a dense head tells of a picture, as a picture: classes as tints, depth as colors.

Drawn with Pillow alone. A legend names the classes that are present, with their shares; a scale
gives depth in meters.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float32, Float64, UInt8
from numpy import ndarray
from PIL import Image, ImageDraw, ImageFont

from veca.data.sets.dataset import IGNORE_INDEX

LIGHTNESSES = np.linspace(0.45, 0.87, 8)
HUES = np.deg2rad(np.arange(25, 385, 10))
CHROMAS = (0.09, 0.13, 0.17, 0.21)
"""The colors that classes may have: neither black, white nor gray, which pictures are full of."""

# Lightness and the two color axes of OKLab, from near to far: even steps in lightness, so that the
# order can be seen without the scale, and hues that go from yellow through red to dark blue.
_SCALE = np.array(
    [
        (0.95, -0.02, 0.12),
        (0.80, 0.05, 0.14),
        (0.64, 0.15, 0.08),
        (0.48, 0.15, -0.04),
        (0.32, 0.05, -0.12),
        (0.17, 0.00, -0.07),
    ]
)

_TO_CONES = np.array(
    [
        (1.0, 0.3963377774, 0.2158037573),
        (1.0, -0.1055613458, -0.0638541728),
        (1.0, -0.0894841775, -1.2914855480),
    ]
)
_TO_LINEAR_RGB = np.array(
    [
        (4.0767416621, -3.3077115913, 0.2309699292),
        (-1.2684380046, 2.6097574011, -0.3413193965),
        (-0.0041960863, -0.7034186147, 1.7076147010),
    ]
)


def class_colors(count: int) -> UInt8[ndarray, "{count} 3"]:
    """A color for each of at most 256 classes; it does not depend on how many there are."""
    return _spread_colors()[:count].copy()


@functools.cache
def _spread_colors() -> UInt8[ndarray, "256 3"]:
    """Colors of which each is as far as can be from all before it."""
    lightness, hues, chromas = np.meshgrid(LIGHTNESSES, HUES, CHROMAS, indexing="ij")
    lab = np.stack((lightness, chromas * np.cos(hues), chromas * np.sin(hues)), axis=-1)
    linear = _linear_rgb(lab.reshape(-1, 3))
    lab = lab.reshape(-1, 3)[((linear >= 0) & (linear <= 1)).all(axis=1)]  # what a screen can show
    chosen = [int(np.argmax(np.linalg.norm(lab[:, 1:], axis=1)))]
    distances = np.full(len(lab), np.inf)
    while len(chosen) < 256:
        distances = np.minimum(distances, np.linalg.norm(lab - lab[chosen[-1]], axis=1))
        chosen.append(int(distances.argmax()))
    return _rgb(lab[chosen])


def depth_colors(shares: Float64[ndarray, "*any"]) -> UInt8[ndarray, "*any 3"]:
    """Colors from near (0, light) to far (1, dark); beyond the ends, those of the ends."""
    places = np.clip(shares, 0.0, 1.0) * (len(_SCALE) - 1)
    steps = np.arange(len(_SCALE))
    lab = np.stack([np.interp(places, steps, axis) for axis in _SCALE.T], axis=-1)
    return _rgb(lab)


def _rgb(lab: Float64[ndarray, "*any 3"]) -> UInt8[ndarray, "*any 3"]:
    """OKLab to sRGB; what a screen cannot show becomes the nearest value of each channel."""
    linear = np.clip(_linear_rgb(lab), 0.0, 1.0)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * curved).astype(np.uint8)


def _linear_rgb(lab: Float64[ndarray, "*any 3"]) -> Float64[ndarray, "*any 3"]:
    """OKLab to amounts of light; outside 0 to 1 where a screen cannot show it."""
    return (lab @ _TO_CONES.T) ** 3 @ _TO_LINEAR_RGB.T


PAPER = (255, 255, 255)
INK = (17, 24, 39)
PALE_INK = (107, 114, 128)
RULE = (209, 213, 219)

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@functools.cache
def font(size: int) -> Font:
    """The font at a height in pixels."""
    return ImageFont.load_default(size)


def fitted(text: str, size: int, width: int | float) -> str:
    """Text that is at most so wide in pixels; its middle is left out, and what cannot be drawn."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    kept, shown = len(text), text
    while kept > 1 and font(size).getlength(shown) > width:
        kept -= 1
        tail = kept // 2
        shown = f"{text[: kept - tail]}\u2026{text[len(text) - tail :]}"
    return shown


STRENGTH = 0.6
"""Share of a class's color in the tint over the picture."""

PLAIN_CLASS = "background"
"""A class of this name is left without a tint: it would hide the picture and tell little."""

LEAST_SIDE = 448
"""Pixels; a picture whose long side is shorter is enlarged by a whole factor."""

MARGIN = 16
LINE = 26
"""Height of a line of the legend."""

SWATCH = 16
LEGEND_WIDTH = 230
TEXT = 14
"""Height of letters."""

BAR = 18
"""Width of the scale of a depth map."""

BAR_ROOM = 96
"""Width of the scale with its numbers."""

UNKNOWN_COLOR = (160, 160, 160)


def segmentation_overlay(
    picture: Image.Image, classes: UInt8[ndarray, "height width"], names: Sequence[str]
) -> Image.Image:
    """The picture with tinted classes and their borders, and a legend to its right.

    Pixels of the class `IGNORE_INDEX` stay as they are and are told as not counted.
    """
    _check_sides(picture, classes.shape)
    numbers, counts = np.unique(classes, return_counts=True)
    if unknown := [int(item) for item in numbers if item >= len(names) and item != IGNORE_INDEX]:
        raise ValueError(
            f"class {unknown[0]} has no name among the {len(names)} that were given; give the "
            "names of all classes of the head."
        )
    factor = _factor(picture)
    large = classes.repeat(factor, axis=0).repeat(factor, axis=1)
    pixels = _tinted(_enlarged(picture, factor), large, names)
    pixels[_borders(large)] = PAPER
    order = np.argsort(-counts, kind="stable")
    entries = [(int(numbers[index]), counts[index] / classes.size) for index in order]
    return _with_legend(Image.fromarray(pixels), entries, names)


def depth_map(
    meters: Float32[ndarray, "height width"],
    picture: Image.Image | None = None,
    limits: tuple[float, float] | None = None,
) -> Image.Image:
    """Depth in colors with a scale in meters; beside the picture where it is given.

    Depths that are not above 0 or not finite are unknown and gray. `limits` are the ends of the
    scale, to be given where several maps are compared; without them they are those of this map.
    """
    known = np.isfinite(meters) & (meters > 0)
    low, high = _limits(meters[known], limits)
    shares = (np.where(known, meters, low).astype(np.float64) - low) / (high - low)
    colors = depth_colors(shares)
    colors[~known] = UNKNOWN_COLOR
    drawn = Image.fromarray(colors)
    factor = _factor(drawn)
    panels = [_enlarged(drawn, factor, smooth=False)]
    if picture is not None:
        _check_sides(picture, meters.shape)
        panels.insert(0, _enlarged(picture.convert("RGB"), factor))
    return _with_scale(panels, (low, high), unknown=not known.all())


def scale_ticks(low: float, high: float) -> list[float]:
    """Round numbers within a range, three to seven of them."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _tinted(
    picture: Image.Image, classes: UInt8[ndarray, "height width"], names: Sequence[str]
) -> UInt8[ndarray, "height width 3"]:
    """The picture under the colors of its classes."""
    palette = np.zeros((256, 3))
    palette[: len(names)] = class_colors(len(names))
    strengths = np.zeros((256, 1))
    strengths[: len(names)] = [[0.0 if name == PLAIN_CLASS else STRENGTH] for name in names]
    strengths[IGNORE_INDEX] = 0.0
    pixels = np.asarray(picture.convert("RGB"), np.float64)
    strength = strengths[classes]
    mixed = (1 - strength) * pixels + strength * palette[classes]
    return np.rint(mixed).astype(np.uint8)


def _borders(classes: UInt8[ndarray, "height width"]) -> Bool[ndarray, "height width"]:
    """Pixels whose right or lower neighbor is of another class."""
    found = np.zeros(classes.shape, bool)
    found[:, :-1] |= classes[:, :-1] != classes[:, 1:]
    found[:-1] |= classes[:-1] != classes[1:]
    return found


def _with_legend(
    drawn: Image.Image, entries: Sequence[tuple[int, float]], names: Sequence[str]
) -> Image.Image:
    """A legend beside a picture; the sheet grows where there are many classes."""
    height = max(drawn.height, LINE * len(entries)) + 2 * MARGIN
    sheet = Image.new("RGB", (drawn.width + 3 * MARGIN + LEGEND_WIDTH, height), PAPER)
    sheet.paste(drawn, (MARGIN, MARGIN))
    draw = ImageDraw.Draw(sheet)
    colors = class_colors(len(names))
    left, right = drawn.width + 2 * MARGIN, sheet.width - MARGIN
    for line, (number, share) in enumerate(entries):
        middle = MARGIN + LINE * line + LINE // 2
        box = (left, middle - SWATCH // 2, left + SWATCH, middle + SWATCH // 2)
        name = "not counted" if number == IGNORE_INDEX else names[number]
        plain = number == IGNORE_INDEX or name == PLAIN_CLASS
        fill = None if plain else tuple(int(part) for part in colors[number])
        draw.rectangle(box, fill, PALE_INK if plain else fill)
        told = f"{100 * share:.1f} %" if share >= 0.0005 else "< 0.1 %"
        room = right - left - SWATCH - 16 - font(TEXT).getlength(told) - 8
        place = (left + SWATCH + 8, middle)
        draw.text(place, fitted(name, TEXT, room), INK, font(TEXT), anchor="lm")
        draw.text((right, middle), told, PALE_INK, font(TEXT), anchor="rm")
    return sheet


def _with_scale(
    panels: Sequence[Image.Image], limits: tuple[float, float], *, unknown: bool
) -> Image.Image:
    """Pictures in a row and a scale in meters, near at its lower end."""
    height = panels[0].height
    width = sum(panel.width + MARGIN for panel in panels) + MARGIN + BAR_ROOM
    sheet = Image.new("RGB", (width, height + 2 * MARGIN + (LINE if unknown else 0)), PAPER)
    draw = ImageDraw.Draw(sheet)
    left = MARGIN
    for panel in panels:
        sheet.paste(panel, (left, MARGIN))
        left += panel.width + MARGIN
    shares = np.linspace(1.0, 0.0, height)[:, None].repeat(BAR, axis=1)
    sheet.paste(Image.fromarray(depth_colors(shares)), (left, MARGIN))
    low, high = limits
    for tick in scale_ticks(low, high):
        level = MARGIN + (height - 1) * (high - tick) / (high - low)
        draw.line((left + BAR, level, left + BAR + 5, level), INK)
        # A number at an end of the scale must not hang over the edge of the sheet.
        middle = min(max(level, MARGIN + TEXT / 2), MARGIN + height - TEXT / 2)
        draw.text((left + BAR + 9, middle), f"{tick:g} m", INK, font(TEXT), anchor="lm")
    if unknown:
        middle = height + 2 * MARGIN + LINE // 2 - MARGIN // 2
        box = (MARGIN, middle - SWATCH // 2, MARGIN + SWATCH, middle + SWATCH // 2)
        draw.rectangle(box, UNKNOWN_COLOR, RULE)
        place = (MARGIN + SWATCH + 8, middle)
        draw.text(place, "depth unknown", PALE_INK, font(TEXT), anchor="lm")
    return sheet


def _limits(
    meters: Float32[ndarray, " known"], limits: tuple[float, float] | None
) -> tuple[float, float]:
    """The ends of a scale."""
    if limits is not None:
        low, high = limits
        if not low < high:
            raise ValueError(
                f"the scale goes from {low} to {high} meters; its first end must be the smaller."
            )
        return low, high
    if not len(meters):
        return 0.0, 1.0
    low, high = float(meters.min()), float(meters.max())
    return (low, high) if high - low > 1e-3 * high else (0.5 * low, 1.5 * high)


def _factor(picture: Image.Image) -> int:
    """By what a small picture is enlarged, so that details and letters fit together."""
    return max(1, math.ceil(LEAST_SIDE / max(picture.size)))


def _enlarged(picture: Image.Image, factor: int, *, smooth: bool = True) -> Image.Image:
    """A picture by a whole factor."""
    if factor == 1:
        return picture
    sides = (factor * picture.width, factor * picture.height)
    return picture.resize(sides, Image.Resampling.BICUBIC if smooth else Image.Resampling.NEAREST)


def _check_sides(picture: Image.Image, shape: tuple[int, ...]) -> None:
    """Refuse a map of another picture."""
    if (picture.height, picture.width) != shape:
        raise ValueError(
            f"the picture has {picture.height} x {picture.width} pixels (height x width) and its "
            f"map {shape[0]} x {shape[1]}; bring the map to the size of the picture first."
        )
