"""Any callable as a teacher."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.data.normalisation import IMAGENET, Normalisation
from veca.teacher.strided import StridedTeacher, TeacherFacts
from veca.teacher.teacher import Targets, TeacherError

FIRST_GRID = (14, 14)
"""Grid of the images that a callable is tried on; what is fixed in size has often just that one."""


class FunctionTeacher(StridedTeacher):
    """A callable from normalised images (B, 3, H, W) to an image feature and features of patches.

    It answers with a pair: (B, DI), and either (B, N, DP) row by row or a map (B, DP, rows,
    columns). It is called once at the start, which tells the widths. A module is frozen and moves
    with the teacher; its weights have no digest, since its code is not known.
    """

    def __init__(  # noqa: PLR0913 - each one says one thing about a stranger
        self,
        function: Callable[[Tensor], Any],
        *,
        name: str,
        licence: str | None = None,
        stride: int = 16,
        normalisation: Normalisation = IMAGENET,
        digest: str | None = None,
    ) -> None:
        """Try the function, and note what comes out.

        Args:
            function: what to call.
            name: what the teacher is called in reports and model cards.
            licence: that of its weights.
            stride: pixels for one patch.
            normalisation: of the pixels that it gets.
            digest: a text that stands for its weights and code; without it outputs are not kept.
        """
        if stride < 1:
            raise TeacherError(f"stride={stride} must be at least one pixel.")
        network = function if isinstance(function, nn.Module) else _Called(function)
        network.eval()
        size = (FIRST_GRID[0] * stride, FIRST_GRID[1] * stride)
        with torch.no_grad():
            first = _read(network(torch.zeros(1, 3, *size, device=_device(network))), name)
        facts = TeacherFacts(
            name=name,
            licence=licence,
            image_width=first.image.shape[1],
            patch_width=first.patches.shape[2],
            stride=stride,
            normalisation=normalisation,
        )
        super().__init__(facts, network)
        self._given_digest = digest

    @cached_property
    def digest(self) -> str | None:
        """The text that was given for it."""
        return self._given_digest

    def observe(self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]) -> Targets:
        """What the function answers."""
        del grid
        return _read(self.network(pixels), self.name)


class _Called(nn.Module):
    """A plain function in the place of a network."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, pixels: Tensor) -> Any:  # noqa: ANN401 - a stranger's answer
        """Call it."""
        return self.function(pixels)


def _device(network: nn.Module) -> torch.device | None:
    """Where a network's weights are; None where it has none."""
    return next((parameter.device for parameter in network.parameters()), None)


def _read(answer: Any, name: str) -> Targets:  # noqa: ANN401 - it is checked here
    """The answer of a callable, whose map of patches becomes a row of them."""
    if not (
        isinstance(answer, tuple | list)
        and len(answer) == 2
        and all(isinstance(part, Tensor) and part.is_floating_point() for part in answer)
        and answer[0].ndim == 2
        and answer[1].ndim in {3, 4}
    ):
        raise TeacherError(
            f"the teacher {name} answered with {_told(answer)}; it must be a pair of float "
            "tensors: (B, width) for the image, then (B, patches, width) or (B, width, rows, "
            "columns)."
        )
    image, patches = answer
    return Targets(image, patches.flatten(2).transpose(1, 2) if patches.ndim == 4 else patches)


def _told(answer: Any) -> str:  # noqa: ANN401 - a stranger's answer
    """What an answer is, in a few words."""
    if isinstance(answer, Tensor):
        return f"one tensor of the shape {tuple(answer.shape)}"
    if isinstance(answer, tuple | list):
        return f"[{', '.join(_told(part) for part in answer[:4])}]"
    return f"a {type(answer).__name__}"
