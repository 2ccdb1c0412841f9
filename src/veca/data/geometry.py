"""Where the patches of a prepared picture lie on the original one, and back.

Positions count from the upper left corner of the upright original; a pixel begins at a whole
number and is one wide. A side of the original is scaled, then moved against the patches: to the
left where it was cropped, not at all where it was resized or padded (padding is right and below).
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

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
        """The patch in which the centre of each original pixel lies; outside 0..patches if none."""
        doubled = torch.arange(1, 2 * self.original, 2) * self.scaled  # in whole numbers, so exact
        shift = 2 * self.original * self.cropped
        return (doubled - shift).div(2 * self.original * self.patch_size, rounding_mode="floor")

    def patch_positions(self) -> Float[Tensor, " original"]:
        """Where the centre of each original pixel lies in patches, a patch's centre being whole."""
        centres = (torch.arange(self.original, dtype=torch.float64) + 0.5) / self.original
        return (centres * self.scaled - self.cropped) / self.patch_size - 0.5

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

        'nearest' gives a pixel what the patch under its centre has; 'bilinear' blends the patches
        around it by the distance from their centres, and beyond the outermost centres stays as
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
