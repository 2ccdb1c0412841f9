"""From an image to a normalized tensor, and from a patch map back to its pixels.

From colors to the numbers a network sees: the only home of a mean and a deviation.

How large a prepared picture becomes: three ways to make sides multiples of the patch size.

'resize'  scales the short side to `size` and the long one by as much, then rounds each to the
          nearest multiple: all is seen, and either side is off by at most half a patch.
'crop'    scales the short side to `size`, then cuts a centered square out: all pictures get one
          shape, and the ends of the long side are lost.
'pad'     scales the long side to `size` and the short one by as much (to the nearest pixel), then
          pads right and below up to the next multiples: all is seen, in its own proportions. A
          patch begins at the upper left corner, so padding never splits more than one patch.

Without a size nothing is scaled: 'resize' rounds each side to the nearest multiple, 'crop' cuts
down to the multiple below, 'pad' pads up to the multiple above. No side is less than one patch.

Where the patches of a prepared picture lie on the original one, and back.

Positions count from the upper left corner of the upright original; a pixel begins at a whole
number and is one wide. A side of the original is scaled, then moved against the patches: to the
left where it was cropped, not at all where it was resized or padded (padding is right and below).

The door for pictures: anything that is one goes in, what a backbone sees comes out.

`prepare` is the whole way: decode, choose the sides, resample, normalize, pad. What files and
arrays are taken is said in `opening.py` and `arrays.py`, what colors become in `colors.py`, what
sides become in `fit.py`, how they are resampled in `picture.py`.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from veca.data.images import MAX_PIXELS, DecodedImage, ImageError, Source, decode

MEAN = (0.485, 0.456, 0.406)
"""Of red, green and blue in 0..1 over ImageNet; what DINO models and ours were trained with."""

STD = (0.229, 0.224, 0.225)

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Normalization:
    """A mean and a deviation for each color; networks of other makers have others."""

    mean: Color
    std: Color

    def __post_init__(self) -> None:
        """Refuse deviations that cannot divide."""
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} divides colors, so every entry must be above zero.")

    def normalize(
        self, pixels: Shaped[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """Colors, as bytes or as floats in 0..1, become what the network sees."""
        if pixels.dtype == torch.uint8:
            pixels = pixels / 255
        elif not pixels.is_floating_point():
            raise ValueError(
                f"pixels holds {pixels.dtype} numbers, but bytes (torch.uint8) or floats in 0..1 "
                "are needed; divide by the greatest number that it can hold."
            )
        return (pixels - _planes(self.mean, pixels)).div_(_planes(self.std, pixels))

    def denormalize(
        self, pixels: Float[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """What the network sees becomes colors in 0..1 again."""
        return pixels * _planes(self.std, pixels) + _planes(self.mean, pixels)


IMAGENET = Normalization(MEAN, STD)


def _planes(color: Color, like: Tensor) -> Float[Tensor, "3 1 1"]:
    """A color that spreads over a picture."""
    return torch.tensor(color, dtype=like.dtype, device=like.device)[:, None, None]


Mode = Literal["nearest", "bilinear"]


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a picture, height or width, in pixels."""

    original: int
    """Of the upright original."""

    scaled: int
    """What the original was resampled to, before any cropping and padding."""

    cropped: int
    """How much of the scaled side was cut off before the first patch."""

    patches: int

    patch_size: int

    @property
    def length(self) -> int:
        """Of what the patches cover."""
        return self.patches * self.patch_size

    def box(self) -> tuple[float, float]:
        """Where on the original the patches begin and end, padding left out."""
        end = min(self.scaled, self.cropped + self.length)
        return self.cropped * self.original / self.scaled, end * self.original / self.scaled

    def patch_indices(self) -> Int[Tensor, " original"]:
        """The patch in which the center of each original pixel lies; outside 0..patches if none."""
        doubled = torch.arange(1, 2 * self.original, 2) * self.scaled  # in whole numbers, so exact
        shift = 2 * self.original * self.cropped
        return (doubled - shift).div(2 * self.original * self.patch_size, rounding_mode="floor")

    def patch_positions(self) -> Float[Tensor, " original"]:
        """Where the center of each original pixel lies in patches, a patch's center being whole."""
        centers = (torch.arange(self.original, dtype=torch.float64) + 0.5) / self.original
        return (centers * self.scaled - self.cropped) / self.patch_size - 0.5

    def inside(self) -> Bool[Tensor, " original"]:
        """Which original pixels lie on a patch."""
        indices = self.patch_indices()
        return (indices >= 0) & (indices < self.patches)


@dataclass(frozen=True)
class Geometry:
    """How a picture was laid onto patches: rows along the height, columns along the width."""

    height: Side
    width: Side

    @property
    def original(self) -> tuple[int, int]:
        """Height and width of the upright original."""
        return self.height.original, self.width.original

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.height.patches, self.width.patches

    def to_image(
        self,
        patch_map: Shaped[Tensor, "*batch rows columns"],
        mode: Mode = "nearest",
        fill: int | float | None = None,
    ) -> Shaped[Tensor, "*batch height width"]:
        """Bring a map of the patches onto the original pixels.

        'nearest' gives a pixel what the patch under its center has; 'bilinear' blends the patches
        around it by the distance from their centers, and beyond the outermost centers stays as
        there. Padding is left out. Pixels that were cropped away get `fill`, by default NaN, which
        whole numbers do not have: these need a `fill`.
        """
        self._check_map(patch_map, mode)
        if mode == "nearest":
            rows, columns = (
                _clamped(side, side.patch_indices()).to(patch_map.device)
                for side in (self.height, self.width)
            )
            image = patch_map.index_select(-2, rows).index_select(-1, columns)
        else:
            image = _blended(patch_map, self.height, -2)
            image = _blended(image, self.width, -1)
        return self._filled(image, fill)

    def patch_of(self, x: int, y: int) -> tuple[int, int] | None:
        """Row and column of the patch that shows a pixel of the original, or None."""
        height, width = self.original
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(
                f"x={x}, y={y} is outside the original picture, which is {width} wide and "
                f"{height} high; pixels count from 0."
            )
        row, column = (
            ((2 * place + 1) * side.scaled - 2 * side.original * side.cropped)
            // (2 * side.original * side.patch_size)
            for side, place in ((self.height, y), (self.width, x))
        )
        rows, columns = self.grid
        return (row, column) if 0 <= row < rows and 0 <= column < columns else None

    def to_pixels(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Bring points of a model, such as `core_points`, onto the original: x and y in pixels."""
        x, y = (
            ((points[..., axis] + 1) / 2 * side.length + side.cropped) * side.original / side.scaled
            for axis, side in enumerate((self.width, self.height))
        )
        return torch.stack((x, y), dim=-1)

    def _check_map(self, patch_map: Tensor, mode: str) -> None:
        """Refuse a map that is not of these patches, or that cannot be blended."""
        if patch_map.shape[-2:] != self.grid:
            raise ValueError(
                f"patch_map has the shape {tuple(patch_map.shape)}, but must end in the grid of "
                f"this picture, {self.grid}; pass features.patch_map, or unflatten the patches."
            )
        if mode not in {"nearest", "bilinear"}:
            raise ValueError(f"mode={mode!r} is unknown; use 'nearest' or 'bilinear'.")
        if mode == "bilinear" and not patch_map.is_floating_point():
            raise ValueError(
                f"patch_map holds {patch_map.dtype}, which cannot be blended; use mode='nearest', "
                "or pass floats."
            )

    def _filled(self, image: Tensor, fill: int | float | None) -> Tensor:
        """Fill in what was cropped away."""
        rows, columns = self.height.inside(), self.width.inside()
        if rows.all() and columns.all():
            return image
        if fill is None and not image.is_floating_point():
            raise ValueError(
                f"this picture was cropped, and {image.dtype} has no NaN for the pixels outside; "
                "pass a fill, for example fill=0."
            )
        outside = ~(rows[:, None] & columns).to(image.device)
        return image.masked_fill(outside, math.nan if fill is None else fill)


def _clamped(side: Side, places: Tensor) -> Tensor:
    """Places among the patches, for those outside the nearest."""
    return places.clamp(0, side.patches - 1)


def _blended(values: Tensor, side: Side, dim: int) -> Tensor:
    """Interpolate linearly between patches along one dimension."""
    places = _clamped(side, side.patch_positions())
    before = places.floor()
    after = _clamped(side, before + 1)
    share = (places - before).to(values.dtype).to(values.device)
    share = share.unsqueeze(-1) if dim == -2 else share
    lower = values.index_select(dim, before.long().to(values.device))
    upper = values.index_select(dim, after.long().to(values.device))
    return lower + (upper - lower) * share


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


def check_result(geometry: Geometry, max_pixels: int) -> None:
    """Refuse what would become too large, such as a long strip scaled by its short side."""
    height, width = geometry.height.length, geometry.width.length
    if height * width > max_pixels:
        raise ImageError(
            f"a picture of {geometry.width.original} x {geometry.height.original} pixels would "
            f"become {width} x {height}, but at most {max_pixels:,} pixels are made; pass a "
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
    """A centered part; where it cannot lie in the middle, it lies half a pixel up or left."""
    height, width = original
    if size is None:
        if min(original) < patch_size:
            raise ImageError(
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


class Prepared(NamedTuple):
    """A picture as a backbone sees it, and the way back to its pixels."""

    pixels: Float[Tensor, "3 height width"]
    """Normalized; sides are multiples of the patch size."""

    geometry: Geometry


def prepare(  # noqa: PLR0913 - the door, where everything can be chosen
    image: Source,
    size: int | None = 512,
    fit: Fit = "resize",
    *,
    patch_size: int = 16,
    normalization: Normalization = IMAGENET,
    max_pixels: int = MAX_PIXELS,
) -> Prepared:
    """Prepare one picture for a backbone, with the geometry that leads back to its pixels.

    Args:
        image: A path, bytes, an open binary file, a PIL image, a numpy array or a torch tensor.
            EXIF orientation is applied, transparency lies on white, of animations the first frame
            is taken.
        size: The short side in pixels ('pad': the long one); None keeps the resolution.
        fit: 'resize' keeps all and bends the proportions by at most half a patch on either side;
            'crop' cuts a centered square out; 'pad' keeps all in its proportions and pads right and
            below with the mean color, which is zero after normalization.
        patch_size: Of the model, as in `model.config.patch_size`.
        normalization: Of the model; another only for models of other makers.
        max_pixels: Larger pictures, before or after, are refused before they take memory.

    Raises:
        ImageError: What was passed is no picture that can be used.
    """
    decoded = decode(image, max_pixels)
    geometry = fitted(decoded.sides, size, fit, patch_size)
    check_result(geometry, max_pixels)
    return Prepared(padded(resampled(decoded, geometry), geometry, normalization), geometry)


def resampled(decoded: DecodedImage, geometry: Geometry) -> Shaped[Tensor, "3 height width"]:
    """The part of an image that lies on patches: bytes, or floats within 0..1."""
    height, width = geometry.height, geometry.width
    (top, bottom), (left, right) = height.box(), width.box()
    sides = min(height.scaled, height.length), min(width.scaled, width.length)
    return decoded.resampled(sides, (left, top, right, bottom)).pixels()


def padded(
    pixels: Shaped[Tensor, "3 height width"],
    geometry: Geometry,
    normalization: Normalization = IMAGENET,
) -> Float[Tensor, "3 padded_height padded_width"]:
    """Normalized pixels, padded to whole patches with the mean color."""
    height, width = geometry.height.length, geometry.width.length
    pixels = normalization.normalize(pixels)
    return F.pad(pixels, (0, width - pixels.shape[2], 0, height - pixels.shape[1]))


def preprocess(  # noqa: PLR0913 - as prepare
    image: Source,
    size: int | None = 512,
    fit: Fit = "resize",
    *,
    patch_size: int = 16,
    normalization: Normalization = IMAGENET,
    max_pixels: int = MAX_PIXELS,
) -> Float[Tensor, "3 height width"]:
    """What `prepare` makes of a picture, without the way back."""
    return prepare(
        image,
        size,
        fit,
        patch_size=patch_size,
        normalization=normalization,
        max_pixels=max_pixels,
    ).pixels
