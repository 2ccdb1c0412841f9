"""Any frozen network behind one door: 8-bit images in, image and patch features out.

All models see the same images by the same code; each brings its own normalisation and stride.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from veca.probe.setting import Setting
from veca.runtime.precision import ResolvedPrecision, autocast

Kind = Literal["veca", "teacher", "pixels"]


class ProbeModelError(ValueError):
    """A model that cannot be had, or asked for what it does not do."""


class Frozen(NamedTuple):
    """What a model says of B images, in single precision and without gradients."""

    image: Float[Tensor, "B DI"]

    patches: Float[Tensor, "B DP rows columns"]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a report says of a model."""

    name: str

    kind: Kind

    digest: str | None
    """SHA-256 over weights and all else that decides the features; None where nothing can tell."""

    licence: str | None
    """Of the weights; None where it is not recorded."""

    trained: bool

    stride: int
    """Pixels for one patch, in height and in width."""

    image_width: int

    patch_width: int

    elastic: bool
    """Whether it can be run at several settings."""

    default_resolution: int
    """Side of the images that the paper classifies with this kind of model, in pixels."""

    appended: bool = True
    """Whether the paper's dense heads see the image feature beside each patch; not that of SigLIP,
    which has no class token."""


class ProbeModel:
    """The base of all models; `look` is what each one must define."""

    def __init__(self, facts: ModelFacts, device: torch.device) -> None:
        self.facts, self.device = facts, device
        self.name, self.digest, self.licence = facts.name, facts.digest, facts.licence
        self.trained, self.elastic, self.stride = facts.trained, facts.elastic, facts.stride
        self.image_width, self.patch_width = facts.image_width, facts.patch_width
        self.default_resolution = facts.default_resolution
        self.precision: ResolvedPrecision = "fp32"
        """What it computes with; features come out in fp32."""

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """Features of images on the model's device, whose sides are known to fit."""
        raise NotImplementedError(f"{type(self).__name__} does not define look.")

    def settings(
        self, budgets: Sequence[int] | None, shares: Sequence[int | float] | None
    ) -> tuple[Setting, ...]:
        """What budgets and shares of a run mean for this model: one setting if it has no choice.

        Teachers and baselines take part in runs over budgets, so what is not for them is no error.
        """
        del budgets, shares
        return (Setting(),)

    def fitted_side(self, pixels: int) -> int:
        """The greatest multiple of the stride that is not above `pixels`, at least one stride."""
        return max(pixels // self.stride, 1) * self.stride

    @torch.no_grad()
    def observe(self, images: UInt8[Tensor, "B 3 H W"], setting: Setting) -> Frozen:
        """Features of 8-bit images whose sides are multiples of the stride."""
        grid = self.grid_of((images.shape[2], images.shape[3]))
        with autocast(self.device, self.precision):
            image, patches = self.look(images.to(self.device), grid, setting)
        return Frozen(image.float(), patches.float().contiguous())

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """What an image of this height and width costs, two operations for a multiply-add.

        Counted by torch over matrix products, convolutions and attention; None where it sees none.
        """
        image = torch.zeros(1, 3, *sides, dtype=torch.uint8)
        # Of the fused forms of attention the counter does not know that of the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.observe(image, setting)
        return counter.get_total_flops() / 1e9 or None

    def grid_of(self, sides: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of an image of this height and width."""
        for side in sides:
            if side < 1 or side % self.stride:
                raise ProbeModelError(
                    f"{self.name} cannot see images of {sides[0]} x {sides[1]} pixels, which are "
                    f"no multiples of its stride {self.stride}; use {self.fitted_side(side)} in "
                    f"place of {side}."
                )
        return sides[0] // self.stride, sides[1] // self.stride

    def describe(self) -> dict[str, Any]:
        """What a report says of it, as plain values."""
        return asdict(self.facts)
