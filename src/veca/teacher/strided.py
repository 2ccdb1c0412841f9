"""Teachers with a stride: a grid of patches needs an image of so many pixels, no matter which."""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from veca.data.normalisation import Normalisation
from veca.teacher.pixels import resized
from veca.teacher.teacher import Targets, Teacher, TeacherError


@dataclass(frozen=True, kw_only=True)
class TeacherFacts:
    """What is known of a teacher before it sees an image."""

    name: str
    """Such as 'efficientnet-lite2', or a name on the hub."""

    licence: str | None = None
    """Of the weights; None where it is not recorded."""

    image_width: int

    patch_width: int

    stride: int
    """Pixels for one patch, in height and in width."""

    normalisation: Normalisation
    """What the network expects pixels to be."""


class StridedTeacher(Teacher):
    """Shows its network the images at the size that gives one feature for each patch.

    With a student of patch size 16, a network of stride 14 so sees 14/16 of the student's
    resolution, and one of stride 32 twice that.
    """

    def __init__(self, facts: TeacherFacts, network: nn.Module) -> None:
        """Freeze a network."""
        super().__init__()
        self.name, self.licence, self.stride = facts.name, facts.licence, facts.stride
        self.image_width, self.patch_width = facts.image_width, facts.patch_width
        self.normalisation = facts.normalisation
        self.network = network
        self.requires_grad_(False).eval()

    @torch.no_grad()
    def forward(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], margin: int = 0
    ) -> Targets:
        """Features of what lies within a margin of 8-bit views, all in patches of the student."""
        rows, columns = grid
        if rows < 1 or columns < 1:
            raise TeacherError(
                f"grid={grid} has no patches; give the rows and columns of the student's patches."
            )
        if margin < 0 or margin * self.stride % self.coarsest_stride:
            raise TeacherError(
                f"a margin of {margin} patches is {margin * self.stride} pixels of the teacher "
                f"{self.name}; give a multiple of {self.coarsest_stride} pixels, or 0."
            )
        size = ((rows + 2 * margin) * self.stride, (columns + 2 * margin) * self.stride)
        pixels = self.normalisation.normalise(resized(images, size))
        targets = (
            self.observe_within(pixels, grid, margin) if margin else self.observe(pixels, grid)
        )
        wanted = ((len(images), self.image_width), (len(images), rows * columns, self.patch_width))
        got = (tuple(targets.image.shape), tuple(targets.patches.shape))
        if got != wanted:
            raise TeacherError(
                f"the teacher {self.name} gave image and patches of the shapes {got[0]} and "
                f"{got[1]}, but {wanted[0]} and {wanted[1]} are needed for {rows} x {columns} "
                f"patches; check its stride, which is {self.stride}."
            )
        return Targets(targets.image.float(), targets.patches.float())

    def observe(self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]) -> Targets:
        """What the network says of normalised images of just the right size."""
        raise NotImplementedError(f"{type(self).__name__} does not define observe.")

    def observe_within(
        self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int], margin: int
    ) -> Targets:
        """What the network says of the patches within a margin, having seen it too.

        The image feature describes what lies within alone, so it is of a second look.
        """
        rows, columns = grid
        outer = (rows + 2 * margin, columns + 2 * margin)
        patches = self.observe(pixels, outer).patches.unflatten(1, outer)
        inner = cut(patches.movedim(-1, 1), margin).flatten(2).transpose(1, 2)
        image = self.observe(cut(pixels, margin * self.stride), grid).image
        return Targets(image, inner)

    def identity(self) -> dict[str, Any]:
        """What decides the outputs besides the weights, as plain values."""
        return super().identity() | {"normalisation": asdict(self.normalisation)}


def cut(maps: Float[Tensor, "*B height width"], margin: int) -> Float[Tensor, "*B rows columns"]:
    """Maps without their outermost rows and columns."""
    height, width = maps.shape[-2:]
    return maps[..., margin : height - margin, margin : width - margin]
