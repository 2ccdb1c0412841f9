"""What a model costs at each of its budgets, for model cards and `veca info`."""

from typing import NamedTuple

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import cost, folds

SIDES = (256, 512)
"""Sides of the square images that costs are told for, in pixels."""


class CostRow(NamedTuple):
    """Cost of one image at one budget."""

    budget: int | None
    """None for a full-attention model."""

    side: int
    """Height and width of the image: the multiple of the patch size that is nearest to the side."""

    pairs: int
    """Query-key pairs that one block scores."""

    gflops: float
    """FLOPs of the whole model in the form it runs, in billions."""


def cost_rows(config: BackboneConfig) -> list[CostRow]:
    """Costs at every budget of a configuration, for all of `SIDES`."""
    budgets = (None,) if config.attention == "full" else config.budgets
    return [_row(config, budget, side) for budget in budgets for side in SIDES]


def _row(config: BackboneConfig, budget: int | None, side: int) -> CostRow:
    patches = max(1, round(side / config.patch_size))
    cores = config.cores if budget is None else budget
    found = cost(
        config,
        (patches, patches),
        cores=cores,
        hidden=config.hidden,
        folded=folds(config, cores),
    )
    return CostRow(budget, patches * config.patch_size, found.pairs, found.flops / 1e9)
