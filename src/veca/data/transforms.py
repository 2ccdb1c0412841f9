"""From an image to a normalized tensor, and from a patch map back to its pixels.

`prepare` decodes, chooses the sides, resamples, normalizes and pads. Three ways to make sides
multiples of the patch size:

'resize'  scales the short side to `size` and the long one in proportion, then rounds each to the
          nearest multiple: everything is visible, either side is off by at most half a patch.
'crop'    scales the short side to `size`, then crops a centered square.
'pad'     scales the long side to `size` and the short one in proportion (to the nearest pixel),
          then pads right and below to the next multiple: everything is visible, undistorted.

Without a size nothing is scaled: 'resize' rounds each side to the nearest multiple, 'crop' cuts
down to the multiple below, 'pad' pads to the multiple above. No side is shorter than one patch.

Positions are measured from the upper left corner of the upright original; a pixel begins at a whole
number and is one wide.
"""

import math
import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from veca.backbone.config import plain
from veca.data.images import MAX_PIXELS, DecodedImage, ImageError, Source, decode

MAX_PATCHES = 262_144
"""Most patches of an image, by default: a square of 8,192 pixels with patches of 16."""

MEAN = (0.485, 0.456, 0.406)
"""Of red, green and blue in 0..1 over ImageNet, as for DINO models and ours."""

STD = (0.229, 0.224, 0.225)

Color = tuple[float, float, float]


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each color."""

    mean: Color
    std: Color

    def __post_init__(self) -> None:
        """Refuse zero."""
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} is invalid: every entry must be above zero.")

    def normalize(
        self, pixels: Shaped[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """Normalize uint8, or floats in 0..1."""
        if pixels.dtype == torch.uint8:
            pixels = pixels / 255
        elif not pixels.is_floating_point():
            raise ValueError(
                f"pixels has dtype {pixels.dtype}, but must be torch.uint8 or floats in 0..1; "
                "divide by the greatest possible value."
            )
        return (pixels - _planes(self.mean, pixels)).div_(_planes(self.std, pixels))

    def denormalize(
        self, pixels: Float[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """Return to colors in 0..1."""
        return pixels * _planes(self.std, pixels) + _planes(self.mean, pixels)


IMAGENET = Normalization(MEAN, STD)


def _planes(color: Color, like: Tensor) -> Float[Tensor, "3 1 1"]:
    """Broadcast a color over an image."""
    return torch.tensor(color, dtype=like.dtype, device=like.device)[:, None, None]


Mode = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class Side:
    """Height or width of an image, in pixels."""

    original: int
    """Of the upright original."""

    scaled: int
    """After resampling, before cropping and padding."""

    cropped: int
    """Cropped off the scaled side before the first patch."""

    patches: int

    patch_size: int

    @property
    def length(self) -> int:
        """Length covered by the patches."""
        return self.patches * self.patch_size

    def box(self) -> tuple[float, float]:
        """Where on the original the patches begin and end, without padding."""
        end = min(self.scaled, self.cropped + self.length)
        return self.cropped * self.original / self.scaled, end * self.original / self.scaled

    def patch_indices(self) -> Int[Tensor, " original"]:
        """The patch that contains the center of each original pixel; outside 0..patches if none."""
        doubled = torch.arange(1, 2 * self.original, 2) * self.scaled  # in whole numbers, so exact
        shift = 2 * self.original * self.cropped
        return (doubled - shift).div(2 * self.original * self.patch_size, rounding_mode="floor")


@dataclass(frozen=True)
class Geometry:
    """How an image was mapped to patches: rows along the height, columns along the width."""

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
        """Map patch values to the original pixels.

        'nearest' takes the patch under the center of a pixel; 'bilinear' interpolates between the
        centers of patches and is constant beyond the outermost ones. Padding is dropped. Pixels
        that were cropped away get `fill`, by default NaN; integers need a `fill`.
        """
        if patch_map.shape[-2:] != self.grid:
            raise ValueError(
                f"patch_map has the shape {tuple(patch_map.shape)}, but must end in the grid of "
                f"this image, {self.grid}; pass features.patch_map, or unflatten the patches."
            )
        if mode not in {"nearest", "bilinear"}:
            raise ValueError(f"mode={mode!r} is unknown; use 'nearest' or 'bilinear'.")
        if mode == "bilinear" and not patch_map.is_floating_point():
            raise ValueError(
                f"patch_map holds {patch_map.dtype}, which cannot be interpolated; use "
                "mode='nearest', or pass floats."
            )
        image = _expand(patch_map, self.height, -2, mode)
        image = _expand(image, self.width, -1, mode)
        return self._filled(image, fill)

    def patch_of(self, x: int, y: int) -> tuple[int, int] | None:
        """Row and column of the patch of an original pixel; None if it was cropped away."""
        height, width = self.original
        if not (0 <= x < width and 0 <= y < height):
            raise ValueError(
                f"x={x}, y={y} is outside the original image, which is {width} wide and "
                f"{height} high; pixels are counted from 0."
            )
        row, column = int(self.height.patch_indices()[y]), int(self.width.patch_indices()[x])
        rows, columns = self.grid
        return (row, column) if 0 <= row < rows and 0 <= column < columns else None

    def to_pixels(self, points: Float[Tensor, "*batch 2"]) -> Float[Tensor, "*batch 2"]:
        """Map points of a model, such as `core_points`, to x and y in original pixels."""
        x, y = (
            ((points[..., axis] + 1) / 2 * side.length + side.cropped) * side.original / side.scaled
            for axis, side in enumerate((self.width, self.height))
        )
        return torch.stack((x, y), dim=-1)

    def _filled(self, image: Tensor, fill: int | float | None) -> Tensor:
        """Fill pixels that were cropped away."""
        rows, columns = (
            (side.patch_indices() >= 0) & (side.patch_indices() < side.patches)
            for side in (self.height, self.width)
        )
        if rows.all() and columns.all():
            return image
        if fill is None and not image.is_floating_point():
            raise ValueError(
                f"this image was cropped, and {image.dtype} has no NaN for the pixels outside; "
                "pass a fill, for example fill=0."
            )
        outside = ~(rows[:, None] & columns).to(image.device)
        return image.masked_fill(outside, math.nan if fill is None else fill)


def _expand(values: Tensor, side: Side, dim: int, mode: Mode) -> Tensor:
    """Map patches to original pixels along one dimension."""
    if mode == "nearest":
        indices = side.patch_indices().clamp(0, side.patches - 1)
        return values.index_select(dim, indices.to(values.device))
    centers = (torch.arange(side.original, dtype=torch.float64) + 0.5) / side.original
    positions = (centers * side.scaled - side.cropped) / side.patch_size - 0.5  # in patches
    positions = positions.clamp(0, side.patches - 1)
    before = positions.floor()
    after = (before + 1).clamp(max=side.patches - 1)
    share = (positions - before).to(values.dtype).to(values.device)
    share = share.unsqueeze(-1) if dim == -2 else share
    lower = values.index_select(dim, before.long().to(values.device))
    upper = values.index_select(dim, after.long().to(values.device))
    return lower + (upper - lower) * share


Fit = Literal["resize", "crop", "pad"]


def fitted(original: tuple[int, int], size: int | None, fit: str, patch_size: int) -> Geometry:
    """Map an image of this height and width to patches."""
    size, patch_size = plain(size), plain(patch_size)
    for name, value in {"size": 1 if size is None else size, "patch_size": patch_size}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r} is invalid: it must be an integer >= 1.")
    if fit not in {"resize", "crop", "pad"}:
        raise ValueError(f"fit={fit!r} is unknown; use 'resize', 'crop' or 'pad'.")
    if fit == "crop":
        return _cropped(original, size, patch_size)
    reference = max(original) if fit == "pad" else min(original)
    numerator, denominator = (1, 1) if size is None else (size, reference)
    sides = []
    for side in original:
        if fit == "pad":
            scaled = max(1, _nearest(side * numerator, denominator))
            patches = -(-scaled // patch_size)
        else:
            patches = max(1, _nearest(side * numerator, denominator * patch_size))
            scaled = patches * patch_size
        sides.append(Side(side, scaled, 0, patches, patch_size))
    return Geometry(*sides)


def check_result(
    geometry: Geometry,
    max_pixels: int = MAX_PIXELS,
    max_patches: int = MAX_PATCHES,
    name: str = "a picture",
) -> None:
    """Refuse too large results, such as a long strip scaled by its short side."""
    height, width = geometry.height, geometry.width
    shown = f"{name} of {width.original} x {height.original} pixels"
    advice = "pass a smaller size, or fit='pad', which scales by the long side, or fit='crop'"
    check_patches(shown, geometry.grid, height.patch_size, max_patches, advice)
    if height.length * width.length > max_pixels:
        raise ImageError(
            f"{shown} would become {width.length} x {height.length}, but at most {max_pixels:,} "
            f"pixels are made; {advice}."
        )


def check_patches(
    shown: str,
    grid: tuple[int, int],
    patch_size: int,
    max_patches: int = MAX_PATCHES,
    advice: str = "use a smaller resolution",
) -> None:
    """Refuse more patches than memory may hold; `shown` is the image in the error."""
    (rows, columns), count = grid, grid[0] * grid[1]
    if count > max_patches:
        raise ImageError(
            f"{shown} would become {columns * patch_size} x {rows * patch_size}, which is "
            f"{count:,} patches, but at most {max_patches:,} are allowed; {advice}."
        )


def _cropped(original: tuple[int, int], size: int | None, patch_size: int) -> Geometry:
    """Crop the center; if it cannot be exact, half a pixel up or left."""
    height, width = original
    if size is None and min(original) < patch_size:
        raise ImageError(
            f"an image of {width} x {height} pixels is smaller than a patch of {patch_size}; "
            "pass a size, or use fit='resize' or fit='pad'."
        )
    if size is not None and size % patch_size:
        below = max(size // patch_size, 1) * patch_size
        raise ValueError(
            f"size={size} is not a multiple of the patch size {patch_size}, which fit='crop' "
            f"needs; the nearest that fit are {below} and {below + patch_size}."
        )
    sides = []
    for side in original:
        scaled = side if size is None else _nearest(side * size, min(original))
        patches = (side if size is None else size) // patch_size
        sides.append(Side(side, scaled, (scaled - patches * patch_size) // 2, patches, patch_size))
    return Geometry(*sides)


def _nearest(numerator: int, denominator: int) -> int:
    """Divide and round to the nearest integer, halves up."""
    return (2 * numerator + denominator) // (2 * denominator)


class Prepared(NamedTuple):
    """The input of a backbone, and its mapping back to pixels."""

    pixels: Float[Tensor, "3 height width"]
    """Normalized; sides are multiples of the patch size."""

    geometry: Geometry


def prepare(  # noqa: PLR0913 - the public function with every choice
    image: Source,
    size: int | None = 512,
    fit: Fit = "resize",
    *,
    patch_size: int = 16,
    normalization: Normalization = IMAGENET,
    max_pixels: int = MAX_PIXELS,
    max_patches: int = MAX_PATCHES,
) -> Prepared:
    """Prepare one image for a backbone, with the geometry that maps back to its pixels.

    Args:
        image: A path, bytes, an open binary file, a PIL image, a numpy array or a torch tensor.
            EXIF orientation is applied, transparency is blended onto white, and the first frame of
            an animation is used.
        size: The short side in pixels ('pad': the long one); None keeps the resolution.
        fit: 'resize' shows everything and changes either side by at most half a patch; 'crop' takes
            a centered square; 'pad' keeps the proportions and pads right and below with the mean
            color, which is zero after normalization.
        patch_size: Of the model, as in `model.config.patch_size`.
        normalization: Of the model; change it only for models of other authors.
        max_pixels: Larger images, before or after resizing, are refused before they use memory.
        max_patches: Images that would have more patches are refused as well.

    Raises:
        ImageError: The image cannot be used.
    """
    decoded = decode(image, max_pixels)
    geometry = fitted(decoded.sides, size, fit, patch_size)
    name = os.fsdecode(image) if isinstance(image, str | os.PathLike) else "a picture"
    check_result(geometry, max_pixels, max_patches, name)
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
    max_patches: int = MAX_PATCHES,
) -> Float[Tensor, "3 height width"]:
    """Prepare one image for a backbone; as `prepare`, without the geometry."""
    return prepare(
        image,
        size,
        fit,
        patch_size=patch_size,
        normalization=normalization,
        max_pixels=max_pixels,
        max_patches=max_patches,
    ).pixels
