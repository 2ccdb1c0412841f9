"""A small student to optimize, alone or spread over processes."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import veca
from veca.distill.adaptors import Adaptor
from veca.train.optimizers import OptimizerConfig, Optimizers
from veca.train.parallel import sharded_like, whole

CONFIG = veca.BackboneConfig(
    layers=2, width=32, heads=2, budgets=(4, 8), coordinate_shift=0.0, coordinate_rescale=1.0
)
IMAGES = 4

OPTIMIZER = OptimizerConfig(eps=1e-3)
"""With a smaller eps AdamW takes full steps along gradients that are rounding alone."""


class SmallStudent(nn.Module):
    """A backbone with an adaptor; untrained weights depend on the seed alone."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = veca.VECA(CONFIG)
        self.adaptor = Adaptor(32, 24, 40, "linear")

    def forward(self, images: Tensor, budget: int) -> Tensor:
        """A loss."""
        image, patches = self.adaptor(self.backbone(images, budget))
        return image.square().mean() + (patches - 1).square().mean()


def shard(student: SmallStudent, mesh: DeviceMesh) -> None:
    """Spread a student over processes, block by block."""
    for block in student.backbone.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(student, mesh=mesh)


def learn(student: SmallStudent, step: int, part: slice = slice(None)) -> None:
    """Gradients of a step on some of its images; budgets change from step to step."""
    images = torch.randn(IMAGES, 3, 32, 32, generator=torch.Generator().manual_seed(step))
    student(images[part], (4, 8)[step % 2]).backward()


def run(student: SmallStudent, optimizers: Optimizers, steps: range) -> None:
    """Some steps at a falling rate."""
    for step in steps:
        learn(student, step)
        optimizers.step(1e-2 / (step + 1))
        optimizers.zero_grad()


def weights_of(student: nn.Module) -> dict[str, Tensor]:
    """Copies of all weights, whole."""
    return {name: whole(value.detach()).clone() for name, value in student.named_parameters()}


def load_weights(student: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put whole weights into a student that may be sharded."""
    with torch.no_grad():
        for name, value in student.named_parameters():
            value.copy_(sharded_like(weights[name], value))
