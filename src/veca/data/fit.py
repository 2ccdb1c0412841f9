"""How large a prepared picture becomes: three ways to make sides multiples of the patch size.

'resize'  scales the short side to `size` and the long one by as much, then rounds each to the
          nearest multiple: all is seen, and either side is off by at most half a patch.
'crop'    scales the short side to `size`, then cuts a centred square out: all pictures get one
          shape, and the ends of the long side are lost.
'pad'     scales the long side to `size` and the short one by as much (to the nearest pixel), then
          pads right and below up to the next multiples: all is seen, in its own proportions. A
          patch begins at the upper left corner, so padding never splits more than one patch.

Without a size nothing is scaled: 'resize' rounds each side to the nearest multiple, 'crop' cuts
down to the multiple below, 'pad' pads up to the multiple above. No side is less than one patch.
"""

from typing import Literal

from veca.data.errors import PictureError
from veca.data.geometry import Geometry, Side

Fit = Literal["resize", "crop", "pad"]


def fitted(original: tuple[int, int], size: int | None, fit: str, patch_size: int) -> Geometry:
    """Lay a picture of this height and width onto patches."""
    _check_arguments(size, fit, patch_size)
    if fit == "crop":
        return _cropped(original, size, patch_size)
    height, width = original
    if size is None:
        numerator, denominator = 1, 1
    else:
        numerator, denominator = size, max(original) if fit == "pad" else min(original)
    make = _padded_side if fit == "pad" else _resized_side
    return Geometry(
        make(height, numerator, denominator, patch_size),
        make(width, numerator, denominator, patch_size),
    )


def check_result(geometry: Geometry, most_pixels: int) -> None:
    """Refuse what would become too large, such as a long strip scaled by its short side."""
    height, width = geometry.height.length, geometry.width.length
    if height * width > most_pixels:
        raise PictureError(
            f"a picture of {geometry.width.original} x {geometry.height.original} pixels would "
            f"become {width} x {height}, but at most {most_pixels:,} pixels are made; pass a "
            "smaller size, or fit='pad', which scales by the long side, or fit='crop'."
        )


def _resized_side(side: int, numerator: int, denominator: int, patch_size: int) -> Side:
    """The nearest multiple."""
    patches = max(1, _nearest(side * numerator, denominator * patch_size))
    return Side(
        original=side,
        scaled=patches * patch_size,
        cropped=0,
        patches=patches,
        patch_size=patch_size,
    )


def _padded_side(side: int, numerator: int, denominator: int, patch_size: int) -> Side:
    """Whatever comes out, and as many patches as it takes."""
    scaled = max(1, _nearest(side * numerator, denominator))
    patches = -(-scaled // patch_size)
    return Side(original=side, scaled=scaled, cropped=0, patches=patches, patch_size=patch_size)


def _cropped(original: tuple[int, int], size: int | None, patch_size: int) -> Geometry:
    """A centred part; where it cannot lie in the middle, it lies half a pixel up or left."""
    height, width = original
    if size is None:
        if min(original) < patch_size:
            raise PictureError(
                f"a picture of {width} x {height} pixels has no patch of {patch_size} to crop; "
                "pass a size, or use fit='resize' or fit='pad'."
            )
        return Geometry(
            _cropped_side(height, height, height // patch_size, patch_size),
            _cropped_side(width, width, width // patch_size, patch_size),
        )
    if size % patch_size:
        below = max(size // patch_size, 1) * patch_size
        raise ValueError(
            f"size={size} is not a multiple of the patch size {patch_size}, which fit='crop' "
            f"needs; the nearest that fit are {below} and {below + patch_size}."
        )
    short, patches = min(original), size // patch_size
    return Geometry(
        _cropped_side(height, _nearest(height * size, short), patches, patch_size),
        _cropped_side(width, _nearest(width * size, short), patches, patch_size),
    )


def _cropped_side(side: int, scaled: int, patches: int, patch_size: int) -> Side:
    """A side of so many patches out of the middle."""
    return Side(
        original=side,
        scaled=scaled,
        cropped=(scaled - patches * patch_size) // 2,
        patches=patches,
        patch_size=patch_size,
    )


def _nearest(numerator: int, denominator: int) -> int:
    """The quotient rounded to the nearest whole number, halves up, exactly."""
    return (2 * numerator + denominator) // (2 * denominator)


def _check_arguments(size: int | None, fit: str, patch_size: int) -> None:
    """Refuse what is no size or no way to fit."""
    for name, value in (("size", size), ("patch_size", patch_size)):
        if name == "size" and value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} is not a number of pixels; pass 1 or more.")
    if fit not in {"resize", "crop", "pad"}:
        raise ValueError(f"fit={fit!r} is unknown; use 'resize', 'crop' or 'pad'.")
