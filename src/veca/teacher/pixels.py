"""From a student's view to a teacher's, and from a teacher's weights of patches to a student's."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from veca.data.normalisation import IMAGENET, Normalisation


def resized(
    images: UInt8[Tensor, "B 3 H W"], size: tuple[int, int]
) -> Float[Tensor, "B 3 height width"]:
    """Images of another size as floats in 0..1; those of this size keep their pixels."""
    pixels = images.float()
    if pixels.shape[-2:] != size:
        pixels = F.interpolate(
            pixels, size=size, mode="bicubic", align_corners=False, antialias=True
        ).clamp_(0, 255)  # cubic curves overshoot at edges
    return pixels / 255


def for_imagenet(
    weight: Float[Tensor, "D 3 P P"], bias: Float[Tensor, " D"], own: Normalisation
) -> tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"]]:
    """Weights that do to pixels in ImageNet's normalisation what these do to those in their own."""
    exact = weight.detach().double()
    own_mean, own_std = (_planes(colour, exact) for colour in (own.mean, own.std))
    mean, std = (_planes(colour, exact) for colour in (IMAGENET.mean, IMAGENET.std))
    shift = (exact * (mean - own_mean) / own_std).sum(dim=(1, 2, 3))
    folded_bias = bias.detach().double() + shift
    return (exact * std / own_std).to(weight.dtype), folded_bias.to(bias.dtype)


def _planes(colour: tuple[float, float, float], like: Tensor) -> Float[Tensor, "3 1 1"]:
    """A colour that spreads over a patch."""
    return torch.tensor(colour, dtype=like.dtype, device=like.device)[:, None, None]
