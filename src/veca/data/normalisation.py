"""From colours to the numbers a network sees: the only home of a mean and a deviation."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
"""Of red, green and blue in 0..1 over ImageNet; what DINO models and ours were trained with."""

STD = (0.229, 0.224, 0.225)

Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Normalisation:
    """A mean and a deviation for each colour; networks of other makers have others."""

    mean: Colour
    std: Colour

    def __post_init__(self) -> None:
        """Refuse deviations that cannot divide."""
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std} divides colours, so every entry must be above zero.")

    def normalise(
        self, pixels: Shaped[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """Colours, as bytes or as floats in 0..1, become what the network sees."""
        if pixels.dtype == torch.uint8:
            pixels = pixels / 255
        elif not pixels.is_floating_point():
            raise ValueError(
                f"pixels holds {pixels.dtype} numbers, but bytes (torch.uint8) or floats in 0..1 "
                "are needed; divide by the greatest number that it can hold."
            )
        return (pixels - _planes(self.mean, pixels)).div_(_planes(self.std, pixels))

    def denormalise(
        self, pixels: Float[Tensor, "*batch 3 height width"]
    ) -> Float[Tensor, "*batch 3 height width"]:
        """What the network sees becomes colours in 0..1 again."""
        return pixels * _planes(self.std, pixels) + _planes(self.mean, pixels)


IMAGENET = Normalisation(MEAN, STD)


def _planes(colour: Colour, like: Tensor) -> Float[Tensor, "3 1 1"]:
    """A colour that spreads over a picture."""
    return torch.tensor(colour, dtype=like.dtype, device=like.device)[:, None, None]
