"""Linear heads on patch features: in training, with a norm before them, and finished, without.

A norm over the batch is linear once its mean and variance are known, and these do not depend on the
head, since features are frozen. So features are normalised once for all heads of a setting, and the
gain and shift that each head learns are a part of its weights:

    W (g * x + s) + b  =  (W g) x + (W s + b)

which is also how a finished head gets rid of its norm. The image feature, where it is appended, is
the same at every patch: its part is computed once for a picture instead of once for a patch.

Shapes: b pictures, K outputs, DP and DI channels of patch and image features, D both together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from veca.runtime.workers import Workers

EPSILON = 1e-5
"""Added to variances."""

MOMENTUM = 0.1
"""Share of the newest batch in the running mean and variance."""

WEIGHT_SCALE = 0.01
"""Standard deviation of the first weights; biases begin at 0."""


class Observed(NamedTuple):
    """Features of some pictures or windows."""

    patches: Float[Tensor, "b DP rows columns"]

    image: Float[Tensor, "b DI"]


@dataclass(frozen=True, kw_only=True)
class DenseHead:
    """K numbers for each patch, from its feature and perhaps that of the image."""

    weight: Float[Tensor, "K D"]

    bias: Float[Tensor, " K"]

    patch_width: int
    """Channels of a patch feature; the rest of D are those of the image feature."""

    def maps(self, observed: Observed) -> Float[Tensor, "b K rows columns"]:
        """The numbers of every patch."""
        patches = torch.einsum("kd,bdrc->bkrc", self.weight[:, : self.patch_width], observed[0])
        weight = self.weight[:, self.patch_width :]
        around = self.bias + (observed.image @ weight.T if weight.shape[1] else 0)
        return patches + around.expand(len(patches), -1)[..., None, None]

    def to(self, device: torch.device) -> "DenseHead":
        """The same head on another device."""
        return DenseHead(
            weight=self.weight.to(device), bias=self.bias.to(device), patch_width=self.patch_width
        )

    def tensors(self) -> dict[str, Tensor]:
        """What a file needs to hold of it, with `facts`."""
        return {"weight": self.weight.cpu(), "bias": self.bias.cpu()}

    def facts(self) -> dict[str, Any]:
        """Plain values that go with the tensors."""
        return {"patch_width": self.patch_width}


def head_from(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> DenseHead:
    """A head from what `tensors` and `facts` gave."""
    return DenseHead(
        weight=tensors["weight"], bias=tensors["bias"], patch_width=int(facts["patch_width"])
    )


class Seen(NamedTuple):
    """Features as the heads of a setting see them, channels first."""

    patches: Float[Tensor, "DP b cells"]

    image: Float[Tensor, "DI b"]
    """DI is 0 where the image feature is not appended."""

    grid: tuple[int, int]
    """Rows and columns of the cells."""


class FeatureNorm:
    """Normalises the channels of a setting's features over the batch, on all workers alike."""

    def __init__(self, width: int, norm: str, workers: Workers) -> None:
        self.mean = torch.zeros(width, device=workers.device)
        self.variance = torch.ones(width, device=workers.device)
        self._normalises = norm == "batch"
        self._workers = workers

    def __call__(
        self, observed: Observed, append_image: bool, kept: Float[Tensor, "b D"] | None
    ) -> Seen:
        """The features of this worker's part of a batch.

        Args:
            observed: the features as the model gave them.
            append_image: whether heads see the image feature too.
            kept: factors of each channel of each picture, 0 where it is dropped.
        """
        rows, columns = observed.patches.shape[2:]
        patches = observed.patches.flatten(2).transpose(0, 1).float()
        image = observed.image.T.float() if append_image else observed.image.new_zeros(0, 1)
        image = image.expand(-1, patches.shape[1])
        if kept is not None:
            patches = patches * kept.T[: len(patches), :, None]
            image = image * kept.T[len(patches) :]
        if self._normalises:
            patches, image = self._normalised(patches, image)
        return Seen(patches.contiguous(), image.contiguous(), (rows, columns))

    def _normalised(
        self, patches: Float[Tensor, "DP b cells"], image: Float[Tensor, "DI b"]
    ) -> tuple[Float[Tensor, "DP b cells"], Float[Tensor, "DI b"]]:
        """Mean 0 and variance 1 over the batch; the image feature counts once for each patch."""
        _, pictures, cells = patches.shape
        means = torch.cat((patches.sum((1, 2)), image.sum(1) * cells)).double()
        count = torch.tensor([float(pictures * cells)], device=means.device, dtype=means.dtype)
        means, count = self._workers.sum(torch.cat((means, count))).split((len(means), 1))
        mean = (means / count).float()
        patches = patches - mean[: len(patches), None, None]
        image = image - mean[len(patches) :, None]
        squares = torch.cat((patches.square().sum((1, 2)), image.square().sum(1) * cells))
        variance = self._workers.sum(squares) / count.float()
        scale = (variance + EPSILON).rsqrt()
        patches = patches * scale[: len(patches), None, None]
        image = image * scale[len(patches) :, None]
        unbiased = variance * (count / (count - 1).clamp(min=1)).float()
        self.mean.lerp_(mean, MOMENTUM)
        self.variance.lerp_(unbiased, MOMENTUM)
        return patches, image

    def finished(
        self, weight: Float[Tensor, "K D"], bias: Float[Tensor, " K"], patch_width: int
    ) -> DenseHead:
        """A head that needs no norm any more."""
        if self._normalises:
            weight = weight * (self.variance + EPSILON).rsqrt()
            bias = bias - weight @ self.mean
        return DenseHead(
            weight=weight.detach().clone(), bias=bias.detach().clone(), patch_width=patch_width
        )


class LearningHead(nn.Module):
    """The parameters of a head in training."""

    def __init__(self, outputs: int, width: int, normalised: bool, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(
            torch.randn(outputs, width, generator=generator).mul_(WEIGHT_SCALE)
        )
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.gain = nn.Parameter(torch.ones(width)) if normalised else None
        self.shift = nn.Parameter(torch.zeros(width)) if normalised else None

    def effective(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Weights and biases on normalised features, gain and shift included."""
        if self.gain is None or self.shift is None:
            return self.weight * 1, self.bias * 1
        return self.weight * self.gain, self.bias + self.weight @ self.shift


def maps_of(
    seen: Seen, weight: Float[Tensor, "K D"], bias: Float[Tensor, " K"], pictures: slice
) -> Float[Tensor, "b K rows columns"]:
    """What a head in training tells of some of the pictures."""
    width = len(seen.patches)
    patches = seen.patches[:, pictures]
    found = (weight[:, :width] @ patches.flatten(1)).unflatten(1, patches.shape[1:])
    around = bias[:, None] + weight[:, width:] @ seen.image[:, pictures]
    return (found + around[..., None]).transpose(0, 1).unflatten(2, seen.grid)


def drop_channels(
    pictures: int, width: int, share: float, seed: int
) -> Float[Tensor, "{pictures} {width}"]:
    """Factors that drop a share of the channels of each picture and make up for it in the rest."""
    generator = torch.Generator().manual_seed(seed)
    stays: Bool[Tensor, "b D"] = torch.rand(pictures, width, generator=generator) >= share
    return stays.float() / (1 - share)
