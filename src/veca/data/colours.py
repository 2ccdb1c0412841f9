"""From the many colour modes of decoded images to a `Picture`.

* What is transparent shows BACKGROUND, blended before anything is resampled.
* CMYK becomes RGB by the plain formula. JPEG files with Adobe's marker store it inverted, others
  do not; both come out right.
* More than 8 bits of grey (PNG, TIFF, PGM) and floats (TIFF, PFM) stay floats, scaled by the
  greatest value of their type and never clipped. Of 16-bit colours Pillow keeps the upper 8 bits.
* Embedded colour profiles are ignored, as in the pipelines that teachers were trained with.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageFile
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile

from veca.data.errors import PictureError, reason
from veca.data.orientation import upright
from veca.data.picture import Picture, checked_floats, plane

BACKGROUND = (255, 255, 255, 255)
"""What is seen through transparent pixels: white."""

GREATEST_16_BIT = 65535

GREY_STEPS = {"L;2": 85, "L;4": 17}
"""From one grey of a PNG file with few greys to the next, by Pillow's name for their packing."""


def picture_of_image(name: str, image: Image.Image) -> Picture:
    """Bring a decoded image upright and into colours."""
    turned = upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Picture((plane(_grey(name, turned, _tiff_facts(image))),))
    if image.mode == "CMYK" and image.format in {"JPEG", "MPO"} and "adobe" not in image.info:
        turned = ImageChops.invert(turned)  # Pillow takes every one for Adobe's
    try:
        return Picture((opaque(turned),))
    except Exception as error:  # a mode without a way to RGB, or a palette that is broken
        raise PictureError(
            f"{name} has colours that cannot be read (mode {image.mode}: {reason(error)}); convert "
            "it to an RGB file, for example with Pillow."
        ) from error


def opaque(image: Image.Image) -> Image.Image:
    """The image as RGB, laid on the background where it is transparent."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy
    if image.mode == "La":
        image = image.convert("LA")  # the only step that Pillow has from here
    canvas = Image.new("RGBA", image.size, BACKGROUND)
    canvas.alpha_composite(image.convert("RGBA"))
    return canvas.convert("RGB")


def match_transparency(image: ImageFile.ImageFile) -> None:
    """Scale the colour that a PNG file calls transparent as Pillow will scale its pixels.

    To be called before the pixels are decoded: then Pillow forgets how the file packs them.
    """
    colour = image.info.get("transparency")
    packing = image.tile[0][3] if image.format == "PNG" and image.tile else None
    if packing == "RGB;16B" and isinstance(colour, tuple):
        image.info["transparency"] = tuple(part >> 8 for part in colour)
    elif isinstance(packing, str) and packing in GREY_STEPS and isinstance(colour, int):
        image.info["transparency"] = colour * GREY_STEPS[packing]


def _grey(name: str, image: Image.Image, facts: tuple[int, bool]) -> NDArray[Any]:
    """Greys beyond 8 bits as floats in 0..1."""
    values = np.asarray(image)
    greatest, white_is_zero = facts
    if image.mode == "F":
        greys = checked_floats(name, values)
    else:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > GREATEST_16_BIT:
            raise PictureError(
                f"{name} holds whole numbers from {low} to {high}, but greys of at most 16 bits, "
                "0..65535, are needed; scale them, or store floats in 0..1."
            )
        greys = values.astype(np.float32) / greatest
    if white_is_zero:
        greys = 1 - greys
    transparent = image.info.get("transparency")
    return greys if transparent is None else np.where(values == transparent, 1.0, greys)


def _tiff_facts(image: Image.Image) -> tuple[int, bool]:
    """The greatest grey and whether zero is white, which Pillow does not apply to TIFF files."""
    if not isinstance(image, TiffImageFile):
        return GREATEST_16_BIT, False
    twelve = tuple(image.tag_v2.get(BITSPERSAMPLE, ())) == (12,)
    white_is_zero = image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0
    return 4095 if twelve else GREATEST_16_BIT, white_is_zero
