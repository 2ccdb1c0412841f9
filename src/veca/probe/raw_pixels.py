"""Raw pixels as features: what a probe makes of colours alone is the least that counts."""

import hashlib

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.nn import functional as F

from veca.data.normalisation import IMAGENET
from veca.probe.frozen import Frozen, ModelFacts, ProbeModel
from veca.probe.setting import Setting

NAME = "pixels"

STRIDE = 16

IMAGE_CELLS = 16
"""Rows and columns of means that an image is summed up by."""

PATCH_CELLS = 4
"""Rows and columns of means that a patch is summed up by."""


class RawPixels(ProbeModel):
    """Mean colours of 16 x 16 cells of the image, and of 4 x 4 cells of each patch.

    In ImageNet's normalisation: about zero and of unit size, so that cosines and steps of a
    gradient mean something. Within a feature the colours come first, then rows, then columns.
    """

    def __init__(self, device: torch.device) -> None:
        words = f"{NAME} {STRIDE} {IMAGE_CELLS} {PATCH_CELLS} {IMAGENET}"
        facts = ModelFacts(
            name=NAME,
            kind="pixels",
            digest=hashlib.sha256(words.encode()).hexdigest(),
            licence=None,
            trained=False,
            stride=STRIDE,
            image_width=3 * IMAGE_CELLS**2,
            patch_width=3 * PATCH_CELLS**2,
            elastic=False,
            default_resolution=256,
        )
        super().__init__(facts, device)

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """Means of colours."""
        del grid, setting
        pixels = IMAGENET.normalise(images)
        image = F.adaptive_avg_pool2d(pixels, IMAGE_CELLS).flatten(1)
        cells = F.avg_pool2d(pixels, STRIDE // PATCH_CELLS)
        return Frozen(image, F.pixel_unshuffle(cells, PATCH_CELLS))
