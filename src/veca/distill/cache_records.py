"""A teacher's output for one view as a record of fixed length, so that any one can be read alone.

The image feature is kept in half precision, patch features in half precision or as one byte a
channel. A byte counts steps whose length is fitted to each channel, since the first principal
components vary a hundred times as much as the last.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from veca.distill.config import KeptPrecision
from veca.teacher.teacher import Targets

LARGEST_HALF = 65504.0
"""The largest number of half precision."""

LARGEST_BYTE = 127

HEADROOM = 1.25
"""How far beyond what was seen a byte reaches; what lies farther is cut off."""

LEAST_SCALE = 1e-3
"""Least length of a channel's step in that of the longest: a channel that hardly varied in what was
seen may vary in what comes, and then weighs nothing against the others."""


@dataclass(frozen=True, kw_only=True)
class RecordLayout:
    """Sizes of a record."""

    image_width: int
    """Channels of the image feature."""

    patches: int
    """Patches of a view."""

    channels: int
    """Channels of a patch."""

    dtype: KeptPrecision

    @property
    def kind(self) -> np.dtype[np.void]:
        """The record as numpy reads it: little-endian, without gaps."""
        number = "i1" if self.dtype == "int8" else "<f2"
        image, patches = (self.image_width,), (self.patches, self.channels)
        return np.dtype([("image", "<f2", image), ("patches", number, patches)])


@dataclass(frozen=True, kw_only=True)
class Records:
    """Turns outputs into records and back."""

    layout: RecordLayout
    scales: Float[Tensor, " channels"] | None
    """Length of each channel's step; None in half precision."""

    def pack(self, targets: Targets) -> NDArray[Any]:
        """A record for each output."""
        found = np.empty(len(targets.image), self.layout.kind)
        found["image"] = _half(targets.image).cpu().numpy()
        found["patches"] = self._kept(targets.patches).cpu().numpy()
        return found

    def unpack(self, records: NDArray[Any], device: torch.device) -> Targets:
        """The outputs of records, in single precision on a device."""
        image = torch.from_numpy(records["image"].astype(np.float16)).to(device).float()
        if self.scales is None:
            halves = torch.from_numpy(records["patches"].astype(np.float16))
            return Targets(image, halves.to(device).float())
        steps = torch.from_numpy(records["patches"].astype(np.int8)).to(device)
        return Targets(image, steps * self.scales.to(device))

    def _kept(self, patches: Float[Tensor, "B N channels"]) -> Tensor:
        """Patch features as they are written."""
        if self.scales is None:
            return _half(patches)
        steps = (patches / self.scales.to(patches.device)).round()
        return steps.clamp(-LARGEST_BYTE, LARGEST_BYTE).to(torch.int8)


def fit_scales(patches: Float[Tensor, "*batch channels"]) -> Float[Tensor, " channels"]:
    """The length of each channel's step, by the largest numbers of a sample."""
    largest = patches.abs().reshape(-1, patches.shape[-1]).amax(0).float().cpu()
    scales = largest * (HEADROOM / LARGEST_BYTE)
    least = float(scales.max()) * LEAST_SCALE
    return scales.clamp(min=least) if least > 0 else torch.ones_like(scales)


def mean_cosine(found: Float[Tensor, "*batch D"], wanted: Float[Tensor, "*batch D"]) -> float:
    """How far two lots of vectors agree in direction; 1 is all."""
    return float(F.cosine_similarity(found.float(), wanted.float(), dim=-1, eps=1e-12).mean())


def _half(features: Tensor) -> Tensor:
    """Features in half precision; those beyond its range become its largest number."""
    return features.clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16)
