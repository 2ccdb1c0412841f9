"""Weights under other makers' names: loaded only if every one of them finds its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from veca.runtime.tensor_files import read_tensors
from veca.teacher.teacher import TeacherError
from veca.weights.errors import listed


def read_weights(path: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file, under the names that it has there."""
    try:
        return read_tensors(path)
    except (SafetensorError, OSError) as error:
        raise TeacherError(f"{path} cannot be read ({error}); get it again.") from error


def load_exactly(model: Any, tensors: Mapping[str, Tensor], *, source: Path, kind: str) -> None:  # noqa: ANN401
    """Fill a model of `transformers`; names or shapes that do not fit are told, not left out."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    odd = sorted(
        name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name)
    )
    if odd:
        raise TeacherError(
            f"{source} does not fit a {kind} model ({listed(odd)}); get it again, or take another."
        )
    model.load_state_dict(tensors)
