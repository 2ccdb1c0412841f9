"""What a teacher is: frozen, 8-bit images in, one feature of the image and one of each patch out.

A teacher sees the student's own views. It brings them to the size at which its grid of features is
the student's grid, and normalises them for itself.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from jaxtyping import Float, UInt8
from torch import Tensor, nn

from veca.runtime.tensor_files import bytes_of


class TeacherError(ValueError):
    """A teacher that cannot be had or used: what was got, what is allowed, what to do."""


class Targets(NamedTuple):
    """What a teacher says of B images, in single precision."""

    image: Float[Tensor, "B DI"]

    patches: Float[Tensor, "B N DP"]
    """Row by row over the grid that was asked for."""


class Teacher(nn.Module):
    """The base of all teachers; `forward` is what a new one must define.

    Whoever writes one sets the attributes below and keeps its gradients off.
    """

    name: str
    """Such as 'efficientnet-lite2', or a name on the hub."""

    licence: str | None = None
    """Of the weights, as the hub writes it: 'apache-2.0', 'other (dinov3-license)'; None where it
    is not recorded."""

    image_width: int

    patch_width: int

    num_classes: int = 0
    """Classes that `classes` tells from its image features; 0 where it tells none."""

    stride: int = 16
    """Pixels that it needs for one patch, in height and in width."""

    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """Features of 8-bit views; `grid` has the rows and columns of the student's patches.

        Images may show `margin` patches more on each side than the student sees. The features are
        of what lies within, which the teacher so knows the surroundings of.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward.")

    @property
    def coarsest_stride(self) -> int:
        """Pixels of which a margin around the student's view must be a multiple."""
        return self.stride

    def patch_embedding(
        self, patch_size: int
    ) -> tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"]] | None:
        """Weight and bias that turn a square of pixels into a token, for a student to start from.

        They act on pixels in ImageNet's normalisation, whatever the teacher's own is. None where
        the teacher has no patches of this size.
        """
        del patch_size
        return None

    def classes(self, image: Float[Tensor, "B DI"]) -> Float[Tensor, "B K"]:
        """Scores of the classes that it tells from image features, where `num_classes` is not 0."""
        raise NotImplementedError(f"{type(self).__name__} tells no classes.")

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 over weights and all else that decides the outputs; None where nothing can tell.

        Whoever keeps outputs on disk can know by it whose they are. The name is not part of it.
        """
        tensors = self.state_dict()
        return digest_of(tensors, self.identity()) if tensors else None

    def identity(self) -> dict[str, Any]:
        """What decides the outputs besides the weights, as plain values."""
        return {
            "kind": f"{type(self).__module__}.{type(self).__qualname__}",
            "image_width": self.image_width,
            "patch_width": self.patch_width,
            "stride": self.stride,
        }

    def describe(self) -> dict[str, Any]:
        """What people are told of it, as plain values."""
        return {
            "name": self.name,
            "licence": self.licence,
            "image_width": self.image_width,
            "patch_width": self.patch_width,
            "stride": self.stride,
        }

    def train(self, mode: bool = True) -> "Teacher":
        """Stay in evaluation mode: a module that holds a teacher switches all its parts."""
        del mode
        return super().train(False)


def digest_of(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """A hash over plain facts, and over names, types, shapes and numbers of tensors."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        about = [name, str(tensor.dtype), list(tensor.shape)]
        found.update(f"\n{json.dumps(about)}\n".encode())
        found.update(bytes_of(tensor))
    return found.hexdigest()
