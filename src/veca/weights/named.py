"""What a user calls a model on the command line: stored weights, or a size to try things with."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from veca.backbone.build import build
from veca.backbone.model import VECA
from veca.backbone.sizes import SIZES
from veca.runtime.precision import Precision, resolve_precision
from veca.weights.checkpoint import load_with_digest
from veca.weights.facts import shows_training, size_name
from veca.weights.tensor_file import weights_hash


class NamedModel(NamedTuple):
    """A model in evaluation mode, and what to tell about it."""

    model: VECA
    name: str
    trained: bool
    digest: str
    """SHA-256 of configuration and weights, as `veca info` tells it: for a stored model that of its
    file, whatever precision it is loaded in."""

    @property
    def title(self) -> str:
        """Name, size and state of training in a line."""
        size = size_name(self.model.config)
        described = f"{self.name} (size {size})" if size not in {None, self.name} else self.name
        state = "trained" if self.trained else "untrained"
        return (
            f"{described}, {self.model.cost(256, 256).parameters / 1e6:.1f} M parameters, {state}"
        )


def named_model(
    name: str,
    *,
    device: torch.device | str = "cpu",
    precision: Precision = "fp32",
    seed: int = 0,
    **overrides: Any,  # noqa: ANN401 - the types stand in BackboneConfig
) -> NamedModel:
    """The model that `veca.load` finds, or an untrained one for the name of a size.

    `seed` and `overrides`, fields of a configuration, are for untrained models; a folder that is
    called like a size is loaded. `precision` is what it computes with, as `veca.load` takes it.
    """
    if name in SIZES and not Path(name).exists():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = build(name, **overrides).eval()
        digest = weights_hash(model.config, model.state_dict())
        model = model.to(device)
    elif overrides:
        raise ValueError(
            f"{', '.join(overrides)} of the stored model {name!r} cannot be changed; leave it out, "
            f"or name a size ({', '.join(SIZES)}) for an untrained model."
        )
    else:
        model, digest = load_with_digest(name, device=device)
    model.precision = resolve_precision(precision, device)
    trained = any(shows_training(key, tensor) for key, tensor in model.state_dict().items())
    return NamedModel(model, name, trained, digest)
