"""The model of a collection, with the hash by which the collection knows it again."""

import os
from pathlib import Path
from typing import NamedTuple

import torch

from veca.backbone.model import VECA
from veca.data.listing import absolute
from veca.weights.card import is_trained
from veca.weights.checkpoint import named_model
from veca.weights.format import weights_hash


class CollectionModel(NamedTuple):
    """A model that is ready to run."""

    model: VECA

    name: str | None
    """By which it is found again, from any folder; None for one that exists in memory only."""

    digest: str
    """SHA-256 of configuration and weights, as `veca info` tells it: that of the file, which is
    the same on every device."""

    untrained: bool
    """Whether its features mean nothing yet."""


ModelSource = CollectionModel | VECA | str | os.PathLike[str]
"""A model, or its name: folder, .safetensors file, bundled name, name on the hub, or size."""


def find_model(source: ModelSource, device: torch.device) -> CollectionModel:
    """Load a model; the name of a size builds an untrained one, the same one every time."""
    if isinstance(source, CollectionModel):
        return source
    if isinstance(source, VECA):
        model, state = source.to(device).eval(), source.state_dict()
        trained = any(is_trained(name, tensor) for name, tensor in state.items())
        return CollectionModel(model, None, weights_hash(model.config, state), not trained)
    name = os.fspath(source)
    found = named_model(name, device=device)
    exists = Path(name).expanduser().exists()
    return CollectionModel(
        found.model, absolute(name) if exists else name, found.digest, not found.trained
    )
