"""Words in pictures: the font that comes with Pillow, and text that fits its place."""

import functools

from PIL import ImageFont

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
