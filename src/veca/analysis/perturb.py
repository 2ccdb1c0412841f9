"""Images that were changed: corruptions, attacks, and shifts whose effect on maps is known.

Corruptions follow ImageNet-C (Hendrycks and Dietterich, 2019): six of its kinds at five strengths,
written anew with Pillow and numpy. Attacks move pixels by at most `epsilon` so that the image
feature turns away from that of the clean image.
"""

import io
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageFilter
from torch import Tensor
from torch.nn import functional as F

from veca.backbone.model import VECA
from veca.data.transforms import IMAGENET
from veca.runtime.device import seed_for

Pixels = UInt8[Tensor, "3 height width"]

STRENGTHS = 5

CROP = 0.75
"""Side of the crop that the shift 'crop' enlarges, as a share of the image."""


def noise(pixels: Pixels, level: float, seed: int) -> Pixels:
    """Gaussian noise; `level` is its standard deviation, for colors in 0..1."""
    generator = np.random.default_rng(seed)
    added = generator.normal(0, 255 * level, tuple(pixels.shape))
    return _bytes(pixels.double() + torch.from_numpy(added))


def blur(pixels: Pixels, level: float, seed: int) -> Pixels:
    """Gaussian blur; `level` is its radius in pixels at 256 px."""
    del seed
    radius = level * min(pixels.shape[1:]) / 256
    return _from_image(_to_image(pixels).filter(ImageFilter.GaussianBlur(radius)))


def jpeg(pixels: Pixels, level: float, seed: int) -> Pixels:
    """JPEG at this quality."""
    del seed
    buffer = io.BytesIO()
    _to_image(pixels).save(buffer, "JPEG", quality=int(level))
    return _from_image(Image.open(buffer).convert("RGB"))


def brightness(pixels: Pixels, level: float, seed: int) -> Pixels:
    """Add `level` to colors in 0..1."""
    del seed
    return _bytes(pixels.double() + 255 * level)


def contrast(pixels: Pixels, level: float, seed: int) -> Pixels:
    """Scale the difference from the mean color by `level`."""
    del seed
    mean = pixels.double().mean(dim=(1, 2), keepdim=True)
    return _bytes((pixels.double() - mean) * level + mean)


def pixelate(pixels: Pixels, level: float, seed: int) -> Pixels:
    """Resize to this share of the sides and back."""
    del seed
    image = _to_image(pixels)
    small = max(1, round(image.width * level)), max(1, round(image.height * level))
    shrunk = image.resize(small, Image.Resampling.BOX)
    return _from_image(shrunk.resize(image.size, Image.Resampling.NEAREST))


Corruption = Callable[[Pixels, float, int], Pixels]

CORRUPTIONS: Mapping[str, tuple[Corruption, tuple[float, float, float, float, float]]] = {
    "noise": (noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "blur": (blur, (0.8, 1.4, 2.0, 3.0, 4.5)),
    "jpeg": (jpeg, (40.0, 25.0, 15.0, 10.0, 7.0)),
    "brightness": (brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "contrast": (contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": (pixelate, (0.7, 0.5, 0.4, 0.3, 0.2)),
}
"""Function and its levels from strength 1 to 5."""


def corrupted(pixels: Pixels, kind: str, strength: int, seed: int = 0) -> Pixels:
    """An image with a corruption of strength 1 to 5, the same for equal seeds."""
    function, levels = CORRUPTIONS[kind]
    return function(pixels, levels[strength - 1], seed_for(seed, strength, kind))


class Shift(NamedTuple):
    """A change of an image, and where it takes maps and points."""

    pixels: Callable[[Pixels, int], Pixels]
    maps: Callable[[Float[Tensor, "C rows columns"]], Tensor]
    points: Callable[[Float[Tensor, "C 2"]], Tensor]


def enlarged(values: Float[Tensor, "C rows columns"]) -> Float[Tensor, "C rows columns"]:
    """The central part of images or maps, enlarged to their size."""
    inner = torch.tensor([[[CROP, 0.0, 0.0], [0.0, CROP, 0.0]]], dtype=values.dtype)
    grid = F.affine_grid(inner, [1, *values.shape], align_corners=False)
    found = F.grid_sample(values[None], grid, padding_mode="border", align_corners=False)
    return found[0]


def _corruption(kind: str) -> Shift:
    """A corruption of strength 2, which leaves everything at its place."""
    return Shift(
        lambda pixels, seed: corrupted(pixels, kind, 2, seed),
        lambda maps: maps,
        lambda points: points,
    )


SHIFTS: Mapping[str, Shift] = {
    "flip": Shift(
        lambda pixels, _: pixels.flip(-1),
        lambda maps: maps.flip(-1),
        lambda points: points * torch.tensor([-1.0, 1.0]),
    ),
    "crop": Shift(
        lambda pixels, _: _bytes(enlarged(pixels.float())),
        enlarged,
        lambda points: points / CROP,  # beyond 1 if they were cropped away
    ),
    **{kind: _corruption(kind) for kind in ("brightness", "noise", "jpeg")},
}
"""Changes under which the same cores are expected to read the same things."""

ATTACKS: Mapping[str, int] = {"fgsm": 1, "pgd": 5}
"""Gradient steps of each attack."""


def attacked(  # noqa: PLR0913
    model: VECA,
    pixels: UInt8[Tensor, "B 3 height width"],
    budget: int | None,
    *,
    epsilon: float,
    steps: int,
    seed: int = 0,
) -> Float[Tensor, "B 3 height width"]:
    """Colors in 0..1 within `epsilon` of the image that turn its image feature away.

    Signed gradient steps on the cosine with the clean feature: FGSM with one step, PGD with more.
    Both start at random within `epsilon`, since the gradient at the clean image is zero.
    """
    clean = pixels.to(model.final_norm.weight.device) / 255
    with torch.no_grad():
        target = model(IMAGENET.normalize(clean), budget).image
    generator = torch.Generator().manual_seed(seed)
    start = (2 * torch.rand(pixels.shape, generator=generator) - 1).to(clean.device) * epsilon
    found = (clean + start).clamp(0, 1)
    step = epsilon if steps == 1 else 2.5 * epsilon / steps
    for _ in range(steps):
        found.requires_grad_()
        image = model(IMAGENET.normalize(found), budget).image
        similarity = F.cosine_similarity(image, target, dim=1).sum()
        (gradient,) = torch.autograd.grad(similarity, found)
        moved = found.detach() - step * gradient.sign()
        found = (clean + (moved - clean).clamp(-epsilon, epsilon)).clamp(0, 1)
    return found


def _bytes(values: Float[Tensor, "3 height width"]) -> Pixels:
    """Round to bytes."""
    return values.round().clamp(0, 255).to(torch.uint8)


def _to_image(pixels: Pixels) -> Image.Image:
    """For Pillow."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def _from_image(image: Image.Image) -> Pixels:
    """From Pillow."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
