"""Norm and clipping of all gradients together, also where they are spread over processes."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from veca.distill.sharding import whole


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Float[Tensor, ""]:
    """Length of all gradients as one vector; not finite if any number in them is not.

    A collective where parameters are sharded; every process gets the same number.
    """
    return whole(torch.nn.utils.get_total_norm(_gradients(parameters)))


def clip_gradients(parameters: Iterable[nn.Parameter], norm: float | Tensor, limit: float) -> None:
    """Scale gradients of this norm down to `limit`; those within it stay as they are.

    NorMuon and AdamW divide by the size of the gradient, so clipping only changes how much a step
    weighs beside those before it. A norm that is not finite has no remedy here: skip the step.
    """
    if norm > limit:
        for gradient in _gradients(parameters):
            gradient.mul_(limit / norm)


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients of those parameters that have one."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
