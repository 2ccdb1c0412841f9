"""A model without memory, that tensors are held against and then put into.

Nothing is allocated for a configuration before the file at hand has shown tensors that fit it, so
an absurd one costs nothing; and no random weights are drawn only to be overwritten.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import parameters
from veca.backbone.model import VECA
from veca.weights.errors import WeightsError, listed

Shapes = Mapping[str, tuple[int, ...]]


def expected_shapes(config: BackboneConfig) -> Shapes:
    """Names and shapes of the parameters that a configuration has."""
    return {name: tuple(tensor.shape) for name, tensor in _skeleton(config).state_dict().items()}


def check_plausible(config: BackboneConfig, shapes: Shapes, where: str) -> None:
    """Refuse a configuration that asks for far more than the file holds, before building it."""
    numbers = sum(math.prod(shape) for shape in shapes.values())
    if parameters(config) > 2 * numbers:  # half of a model may be missing and still be listed
        raise WeightsError(
            f"{where} holds {len(shapes)} tensors with {numbers} numbers, too few for its "
            f"configuration ({_short(config)}); get the file again, or save it again with "
            "veca.save."
        )


def check_fit(config: BackboneConfig, shapes: Shapes, where: str) -> None:
    """Refuse tensors that are not exactly those of the configuration."""
    check_plausible(config, shapes, where)
    wanted = expected_shapes(config)
    missing, extra = sorted(wanted.keys() - shapes.keys()), sorted(shapes.keys() - wanted.keys())
    if missing or extra:
        found = [f"lacks {listed(missing)}"] if missing else []
        found += [f"has {listed(extra)} left over"] if extra else []
        raise WeightsError(
            f"{where} {' and '.join(found)}, so it does not hold the weights of its "
            f"configuration ({_short(config)}); get the file again, or save it again with "
            "veca.save."
        )
    wrong = [
        f"{name} {shapes[name]} instead of {wanted[name]}"
        for name in sorted(wanted)
        if shapes[name] != wanted[name]
    ]
    if wrong:
        raise WeightsError(
            f"{where} has tensors of other shapes than its configuration ({_short(config)}): "
            f"{listed(wrong)}; get the file again, or save it again with veca.save."
        )


def assemble(config: BackboneConfig, tensors: Mapping[str, Tensor]) -> VECA:
    """A model in evaluation mode whose parameters are these tensors; they can be trained on."""
    model = _skeleton(config)
    model.load_state_dict(dict(tensors), assign=True)
    return model.eval()


def _skeleton(config: BackboneConfig) -> VECA:
    """The model of a configuration with shapes and nothing else."""
    with torch.device("meta"):
        return VECA(config)


def _short(config: BackboneConfig) -> str:
    """The sizes that matter most, for an error."""
    return f"layers={config.layers}, width={config.width}, budgets={config.budgets}"[:200]
