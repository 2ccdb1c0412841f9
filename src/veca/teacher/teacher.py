"""Teachers: frozen networks that map 8-bit images to an image feature and patch features.

A teacher sees the student's own views. It resizes them to the size at which its grid of features is
the student's grid, and normalizes them itself.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.model import VECA
from veca.data.transforms import IMAGENET, Normalization
from veca.runtime import VecaError
from veca.runtime.tensors import bytes_of
from veca.weights.card import Provenance
from veca.weights.checkpoint import load_with_hash
from veca.weights.hub import Source


class TeacherError(VecaError, ValueError):
    """A teacher that cannot be loaded or used."""


class Targets(NamedTuple):
    """Features of B images, in single precision."""

    image: Float[Tensor, "B DI"]

    patches: Float[Tensor, "B N DP"]
    """Row by row over the requested grid."""


Images = UInt8[Tensor, "B 3 H W"]
Pixels = Float[Tensor, "B 3 height width"]
"""Floats, normalized for a network."""
Grid = tuple[int, int]
"""Rows and columns of patches."""
Embedding = tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"]]
"""Weight and bias of a patch embedding."""


class Teacher(nn.Module):
    """Base class of all teachers.

    Subclasses define `forward`, set the attributes below and disable gradients.
    """

    name: str
    """Such as 'efficientnet-lite2', or a name on the hub."""

    licence: str | None = None
    """Of the weights, as on the hub: 'apache-2.0', 'other (dinov3-license)'; None if unknown."""

    image_width: int

    patch_width: int

    stride: int = 16
    """Pixels per patch, in height and in width."""

    def forward(self, images: Images, grid: Grid, margin: int = 0) -> Targets:
        """Features of 8-bit views on `grid`, the rows and columns of the student's patches.

        Images may show `margin` patches more on each side than the student sees, as context. The
        features are those of the inner part.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define forward.")

    @property
    def coarsest_stride(self) -> int:
        """Pixels that a margin must be a multiple of."""
        return self.stride

    def patch_embedding(self, patch_size: int) -> Embedding | None:
        """The patch embedding, to initialize a student with.

        They expect ImageNet's normalization, whatever the teacher's own is. None if the teacher has
        no patches of this size.
        """
        del patch_size
        return None

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 over weights and settings that determine the outputs; None if they are unknown.

        Cached outputs are identified by it. The name is not part of it.
        """
        tensors = self.state_dict()
        return digest_of(tensors, self.identity()) if tensors else None

    def identity(self) -> dict[str, Any]:
        """Settings that determine the outputs besides the weights, as JSON."""
        return {
            "kind": f"{type(self).__module__}.{type(self).__qualname__}",
            "image_width": self.image_width,
            "patch_width": self.patch_width,
            "stride": self.stride,
        }

    def train(self, mode: bool = True) -> "Teacher":
        """Stay in evaluation mode, also when a parent module is switched to training."""
        del mode
        return super().train(False)


def digest_of(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> str:
    """Hash settings, and names, dtypes, shapes and values of tensors."""
    found = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        header = [name, str(tensor.dtype), list(tensor.shape)]
        found.update(f"\n{json.dumps(header)}\n".encode())
        found.update(bytes_of(tensor))
    return found.hexdigest()


def resized(images: Images, size: tuple[int, int]) -> Pixels:
    """Resize to floats in 0..1; images of this size keep their pixels."""
    pixels = images.float()
    if pixels.shape[-2:] != size:
        pixels = F.interpolate(
            pixels, size=size, mode="bicubic", align_corners=False, antialias=True
        ).clamp_(0, 255)  # bicubic overshoots
    return pixels / 255


def for_imagenet(embedding: Embedding, own: Normalization) -> Embedding:
    """Fold the difference between `own` normalization and ImageNet's into a patch embedding."""
    weight, bias = embedding
    exact = weight.detach().double()
    own_mean, own_std, mean, std = (
        exact.new_tensor(color)[:, None, None]
        for color in (own.mean, own.std, IMAGENET.mean, IMAGENET.std)
    )
    shift = (exact * (mean - own_mean) / own_std).sum(dim=(1, 2, 3))
    folded_bias = bias.detach().double() + shift
    return (exact * std / own_std).to(weight.dtype), folded_bias.to(bias.dtype)


class StridedTeacher(Teacher):
    """Resizes images so that the network gives one feature per patch of the student.

    With a student of patch size 16, a network of stride 14 sees 14/16 of the student's resolution,
    and one of stride 32 twice that.
    """

    network: Any

    def __init__(  # noqa: PLR0913 - fixed properties
        self,
        network: Callable[[Tensor], Any],
        *,
        name: str,
        image_width: int,
        patch_width: int,
        stride: int,
        normalization: Normalization = IMAGENET,
        licence: str | None = None,
    ) -> None:
        """Freeze a network; `normalization` is that of its input."""
        super().__init__()
        self.name, self.licence, self.stride = name, licence, stride
        self.image_width, self.patch_width = image_width, patch_width
        self.normalization = normalization
        self.network = network
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(self, images: Images, grid: Grid, margin: int = 0) -> Targets:
        """Features of 8-bit views inside a margin; grid and margin in patches of the student."""
        rows, columns = grid
        if rows < 1 or columns < 1:
            raise TeacherError(f"grid={grid} is invalid: rows and columns must be >= 1.")
        if margin < 0 or margin * self.stride % self.coarsest_stride:
            raise TeacherError(
                f"a margin of {margin} patches is {margin * self.stride} pixels of the teacher "
                f"{self.name}; give a multiple of {self.coarsest_stride} pixels, or 0."
            )
        size = ((rows + 2 * margin) * self.stride, (columns + 2 * margin) * self.stride)
        pixels = self.normalization.normalize(resized(images, size))
        features = self.forward_features
        targets = self.forward_features_within(pixels, margin) if margin else features(pixels)
        count = len(images)
        expected = [(count, self.image_width), (count, rows * columns, self.patch_width)]
        if (got := [tuple(part.shape) for part in targets]) != expected:
            raise TeacherError(
                f"the teacher {self.name} returned image and patches of shape {got[0]} and "
                f"{got[1]}, expected {expected[0]} and {expected[1]} for {rows} x {columns} "
                f"patches; check its stride, which is {self.stride}."
            )
        return Targets(targets.image.float(), targets.patches.float())

    def forward_features(self, pixels: Pixels) -> Targets:
        """Features of normalized images of exactly the right size."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward_features.")

    def forward_features_within(self, pixels: Pixels, margin: int) -> Targets:
        """Features of the patches inside a margin that the network sees too.

        The image feature describes the inner part only, so it takes a second forward pass.
        """
        outer = self.grid_of(pixels)
        patches = self.forward_features(pixels).patches.unflatten(1, outer)
        inner = cut(patches.movedim(-1, 1), margin).flatten(2).transpose(1, 2)
        return Targets(self.forward_features(cut(pixels, margin * self.stride)).image, inner)

    def grid_of(self, pixels: Pixels) -> Grid:
        """Rows and columns of patches of an image."""
        return pixels.shape[-2] // self.stride, pixels.shape[-1] // self.stride

    def embedding_weights(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight (D, 3, P, P) and bias of the network's patch embedding, if it has one."""
        return None

    def patch_embedding(self, patch_size: int) -> Embedding | None:
        """The network's own, adapted to ImageNet's normalization."""
        own = self.embedding_weights() if patch_size == self.stride else None
        if own is None:
            return None
        weight, bias = own
        bias = weight.new_zeros(len(weight)) if bias is None else bias
        return for_imagenet((weight, bias), self.normalization)

    def identity(self) -> dict[str, Any]:
        """Settings that determine the outputs besides the weights, as JSON."""
        return super().identity() | {"normalization": asdict(self.normalization)}


def cut(maps: Float[Tensor, "*B height width"], margin: int) -> Float[Tensor, "*B rows columns"]:
    """Remove the outermost rows and columns of maps."""
    height, width = maps.shape[-2:]
    return maps[..., margin : height - margin, margin : width - margin]


FIRST_GRID = 14
"""Patches per side of the image that a callable is tried on, as in many networks of fixed size."""


class FunctionTeacher(StridedTeacher):
    """A callable from normalized images (B, 3, H, W) to image and patch features.

    It returns a pair: (B, DI), and either (B, N, DP) row by row or a map (B, DP, rows, columns). It
    is called once at the start to find the widths. A module is frozen and moves with the teacher.
    """

    def __init__(  # noqa: PLR0913 - properties of an unknown function
        self,
        function: Callable[[Tensor], Any],
        *,
        name: str,
        licence: str | None = None,
        stride: int = 16,
        normalization: Normalization = IMAGENET,
        digest: str | None = None,
    ) -> None:
        """Call the function once and store the widths of its features.

        Args:
            function: what to call.
            name: for reports and model cards.
            licence: the license of its weights.
            stride: pixels per patch.
            normalization: of its input.
            digest: identifies its weights and code; without it outputs are not cached.
        """
        if stride < 1:
            raise TeacherError(f"stride={stride} is invalid: it must be >= 1.")
        device = None
        if isinstance(function, nn.Module):
            device = next((item.device for item in function.eval().parameters()), None)
        with torch.no_grad():
            zeros = torch.zeros(1, 3, FIRST_GRID * stride, FIRST_GRID * stride, device=device)
            first = _targets(function(zeros), name)
        super().__init__(
            function,
            name=name,
            licence=licence,
            image_width=first.image.shape[1],
            patch_width=first.patches.shape[2],
            stride=stride,
            normalization=normalization,
        )
        self.digest = digest

    def forward_features(self, pixels: Pixels) -> Targets:
        """Call the function."""
        return _targets(self.network(pixels), self.name)


def _targets(result: Any, name: str) -> Targets:  # noqa: ANN401 - it is checked here
    """Check the result of a callable and flatten its patch map."""
    parts = result if isinstance(result, tuple | list) else [result]
    tensors = [part for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if (
        len(parts) != 2
        or len(tensors) != 2
        or tensors[0].ndim != 2
        or tensors[1].ndim not in {3, 4}
    ):
        got = ", ".join(
            f"{part.dtype} {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__
            for part in parts[:4]
        )
        raise TeacherError(
            f"the teacher {name} returned {type(result).__name__} ({got}); it must return a pair "
            "of float tensors: (B, width) for the image, then (B, patches, width) or (B, width, "
            "rows, columns)."
        )
    image, patches = tensors
    return Targets(image, patches.flatten(2).transpose(1, 2) if patches.ndim == 4 else patches)


class VecaTeacher(StridedTeacher):
    """A VECA with all its cores and hidden units; its first core is the image feature."""

    network: VECA

    def __init__(self, model: VECA, *, name: str, digest: str | None = None) -> None:
        """Freeze a model; its license is that of its provenance, its digest that of its file."""
        config, known = model.config, model.provenance
        if config.in_channels != 3:
            raise TeacherError(f"{name} has {config.in_channels} colors; a teacher needs three.")
        super().__init__(
            model,
            name=name,
            licence=known.licence if isinstance(known, Provenance) else None,
            image_width=config.width,
            patch_width=config.width,
            stride=config.patch_size,
        )
        if digest is not None:
            self.digest = digest

    def forward_features(self, pixels: Pixels) -> Targets:
        """Features at full budget."""
        features = self.network(pixels)
        return Targets(features.image, features.patches)

    def embedding_weights(self) -> tuple[Tensor, Tensor | None]:
        """The model's own."""
        return self.network.patch_embedding.weight, self.network.patch_embedding.bias


def veca_teacher(source: Source, name: str | None = None) -> VecaTeacher:
    """Load a VECA as a teacher, from whatever `veca.load` takes."""
    model, digest = load_with_hash(source)
    return VecaTeacher(model, name=name or os.fspath(source), digest=digest)
