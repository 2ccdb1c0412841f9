"""What a forward pass costs, in closed formulas of configuration, image size and budget.

`flops` is what the model executes, counting a multiplication and an addition as two, and equals
what `torch.utils.flop_counter` counts. `attention_flops` is one attention as the paper counts it:
in the plain form, projections included.
"""

import itertools
from typing import NamedTuple

from veca.backbone.config import BackboneConfig

FOLDING_GAIN = 0.8
"""Folding must leave at most this share of an attention's FLOPs, because it materializes attention
weights, which the fused plain form does not. Break-even measured on a CPU (docs/decisions.md)."""

ANCHOR_CHANNELS = 8
"""Value channels that carry anchors through fused attention: three, padded for the kernels."""


class Cost(NamedTuple):
    """Cost of one image."""

    pairs: int
    """Query-key pairs that one block scores: 2NC + C^2."""

    attention_flops: int
    """FLOPs of one block's attention, counted as the paper does."""

    flops: int
    """FLOPs of the whole model in the form it runs."""

    parameters: int
    """Parameters of the whole model, at any budget."""


def cost(
    config: BackboneConfig, grid: tuple[int, int], *, cores: int, hidden: int, folded: bool
) -> Cost:
    """Cost of one image of `grid` patches with the first `cores` cores and `hidden` units."""
    patches = grid[0] * grid[1]
    tokens, width = patches + cores, config.width
    embedding = 2 * patches * width * config.in_channels * config.patch_size**2
    attention = folded_flops if folded else plain_flops
    feedforward = 6 * tokens * width * hidden
    local_mixing = 2 * patches * width * config.local_kernel**2
    block = attention(config, patches, cores) + feedforward + local_mixing
    return Cost(
        pairs=tokens**2 if config.attention == "full" else 2 * patches * cores + cores**2,
        attention_flops=plain_flops(config, patches, cores),
        flops=embedding + config.layers * block + _motion_flops(config, patches, cores, folded),
        parameters=parameters(config),
    )


def plain_flops(config: BackboneConfig, patches: int, cores: int) -> int:
    """FLOPs of one attention that projects every token."""
    tokens, width = patches + cores, config.width
    projections = 8 * tokens * width**2
    if config.attention == "full":
        return projections + 4 * tokens**2 * width
    return projections + 4 * cores * tokens * width + 4 * patches * cores * width


def folded_flops(config: BackboneConfig, patches: int, cores: int) -> int:
    """FLOPs of one attention that projects values and outputs of the cores only."""
    tokens, width, heads = patches + cores, config.width, config.heads
    projections = 4 * tokens * width**2 + 8 * cores * width**2
    read_by_cores = 2 * cores * tokens * width * (1 + heads)
    read_by_patches = 2 * patches * cores * width * (1 + heads)
    return projections + read_by_cores + read_by_patches


def folds(config: BackboneConfig, cores: int) -> bool:
    """Whether the folded form is cheaper at this budget.

    It compares the cost of one more patch, so that the answer does not depend on the image size,
    and an exported model runs at any.
    """
    if config.attention == "full":
        return False
    plain = plain_flops(config, 1, cores) - plain_flops(config, 0, cores)
    folded = folded_flops(config, 1, cores) - folded_flops(config, 0, cores)
    return folded < FOLDING_GAIN * plain


def _motion_flops(config: BackboneConfig, patches: int, cores: int, folded: bool) -> int:
    """FLOPs of core motion."""
    if config.attention == "full":
        return 0
    if config.core_motion != "attention":
        return 4 * cores * config.width * (config.layers - 1)
    if folded:  # weighted sums of anchors in every head
        return 6 * config.heads * cores * patches * config.layers
    padding = 2 * ANCHOR_CHANNELS  # of keys and of values
    return 2 * padding * config.heads * cores * (patches + cores) * config.layers


def parameters(config: BackboneConfig) -> int:
    """Parameters of a model."""
    width = config.width
    embedding = width * config.in_channels * config.patch_size**2 + width
    attention = 4 * (width * width + width)
    feedforward = 3 * width * config.hidden + 2 * config.hidden + width
    block = attention + feedforward + 4 * width + config.local_kernel**2 * width
    step = {"paper": 2 * width + 2 + 1, "normalized": 2 * width + 2, "attention": 1}
    if config.attention == "full":
        bank = config.prefix_tokens * width
    else:
        bank = config.cores * (width + 2) + (config.layers - 1) * step[config.core_motion]
    return embedding + bank + config.layers * block + 2 * width


SIDES = (256, 512)
"""Sides in pixels of the square images in tables of costs."""


class CostRow(NamedTuple):
    """Cost of one image at one budget."""

    budget: int | None
    """None for a full-attention model."""

    side: int
    """Height and width of the image: the multiple of the patch size nearest to the side."""

    pairs: int
    """Query-key pairs that one block scores."""

    gflops: float
    """FLOPs of the whole model in the form it runs, in billions."""


def cost_rows(config: BackboneConfig) -> list[CostRow]:
    """Costs at every budget of a configuration, for all of `SIDES`."""
    budgets = (None,) if config.attention == "full" else config.budgets
    rows = []
    for budget, side in itertools.product(budgets, SIDES):
        patches = max(1, round(side / config.patch_size))
        cores, grid = budget or config.cores, (patches, patches)
        folded = folds(config, cores)
        found = cost(config, grid, cores=cores, hidden=config.hidden, folded=folded)
        rows.append(CostRow(budget, patches * config.patch_size, found.pairs, found.flops / 1e9))
    return rows
