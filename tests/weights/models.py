"""Small models that the tests of weights share."""

from typing import Any

import torch
from torch import nn

import veca

BUDGETS = (2, 3, 6)


def trained_model(seed: int = 0, **fields: Any) -> veca.VECA:
    """A small model in which every number differs from how it was drawn, so that nothing hides."""
    sizes: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "patch_size": 4}
    if fields.get("attention") != "full":
        sizes["budgets"] = BUDGETS
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        model = veca.build("tiny", **sizes | fields)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models have the same names, types and numbers."""
    ones, others = one.state_dict(), other.state_dict()
    return ones.keys() == others.keys() and all(
        ones[name].dtype == others[name].dtype and torch.equal(ones[name], others[name])
        for name in ones
    )
