"""Weights out of an ONNX file, under the names of the modules that they belong to.

An exporter keeps the names of most weights. Matrices that it transposes and numbers that it
computes beforehand lose theirs ('onnx::MatMul_1966'); they are called after what reads them.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veca.teacher.teacher import TeacherError

NAMELESS = "onnx::"
"""How the names begin that an exporter made up."""


def read_initialisers(path: Path) -> dict[str, Tensor]:
    """Every weight of a network by its name.

    One without a name is called by the path of the node that reads it and by which of its inputs it
    is, counted from 0: 'encoder.fc1.MatMul.1' is the right-hand side of that product. One that
    several nodes read has several names. Weights beside the file, as very large networks have them,
    are not read.
    """
    onnx = _onnx()
    try:
        graph = onnx.load(str(path), load_external_data=False).graph
        arrays = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    except Exception as error:  # protobuf's own, which have no common name
        raise TeacherError(f"{path} holds no readable ONNX network ({error}).") from error
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    found = {name: item for name, item in tensors.items() if not name.startswith(NAMELESS)}
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name.startswith(NAMELESS) and name in tensors:
                reader = node.name.strip("/").replace("/", ".")
                found[f"{reader}.{position}"] = tensors[name]
    return found


def _onnx() -> Any:  # noqa: ANN401 - the library is not typed for us
    """The library, an extra."""
    try:
        import onnx  # noqa: PLC0415 - an extra
        import onnx.numpy_helper  # noqa: PLC0415
    except ImportError as error:
        raise TeacherError(
            "weights in an ONNX file need the library onnx, which is not installed; "
            "`pip install 'veca[experiments]'` brings it."
        ) from error
    return onnx
