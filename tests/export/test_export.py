"""Exported files against the model: ONNX Runtime, OpenVINO and torch.export as they are."""

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

import veca
from veca.backbone.model import VECA
from veca.cli.main import main
from veca.embed.collection import Collection
from veca.export.graph import (
    Difference,
    ExportConfig,
    ExportError,
    Graph,
    examples,
    export_program,
    verify,
)
from veca.export.onnx_file import export_onnx
from veca.export.session import METADATA_NAME, Session, SessionError, session

pytestmark = pytest.mark.compiled

SMALL = {"layers": 1, "width": 32, "heads": 2, "patch_size": 4, "budgets": (2, 4, 8)}
Export = Callable[..., tuple[Path, Difference]]


def small(**fields: Any) -> VECA:
    torch.manual_seed(0)
    model = veca.build("tiny", **{**SMALL, **fields}).eval()
    for name, weight in model.named_parameters():
        if "local_mixing" in name:  # else it does nothing yet
            torch.nn.init.normal_(weight, std=0.1)
    return model


@pytest.fixture(scope="module")
def elastic(tmp_path_factory: pytest.TempPathFactory) -> tuple[VECA, Path]:
    """A model with everything: local mixing, moving cores, nested hidden units."""
    model = small(layers=2, core_motion="attention", ffn_shares=(0.5, 1.0), default_budget=4)
    file = tmp_path_factory.mktemp("elastic") / "model.onnx"
    found = export_onnx(model, file, ExportConfig(ffn=0.5))
    assert found.largest < 1e-5
    return model, file


def pixels(batch: int, rows: int, columns: int) -> torch.Tensor:
    return torch.randn(batch, 3, 4 * rows, 4 * columns)


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_one_file_serves_every_budget_batch_and_size(
    elastic: tuple[VECA, Path], runtime: Any
) -> None:
    model, file = elastic
    run = session(file, runtime, threads=1)
    for budget, shape in {1: (1, 1, 1), 3: (4, 2, 11), 7: (2, 6, 6), 8: (1, 13, 3)}.items():
        images = pixels(*shape)
        found = run(images.numpy(), budget)
        with torch.inference_mode():
            expected = model(images, budget, 0.5)
        for mine, theirs in zip(found[:4], (expected.image, *expected[:3]), strict=True):
            torch.testing.assert_close(torch.tensor(mine), theirs, atol=1e-4, rtol=1e-4)
        assert found.grid == expected.grid
        torch.testing.assert_close(
            torch.tensor(found.patch_map), expected.patch_map, atol=1e-4, rtol=1e-4
        )


def test_a_session_follows_the_precedence_of_budgets(elastic: tuple[VECA, Path]) -> None:
    run, images = session(elastic[1]), pixels(1, 2, 2).numpy()
    assert cores_of(run(images)) == 4  # the model's default
    run.budget = 2
    assert cores_of(run(images)) == 2
    assert cores_of(run(images, np.int64(5))) == 5


def cores_of(features: Any) -> int:
    return features.cores.shape[1]


@pytest.mark.parametrize(
    ("images", "budget", "message"),
    [
        (np.zeros((1, 3, 8, 8), np.float32), 9, "outside 1..8"),
        (np.zeros((1, 3, 8, 8), np.float32), True, "outside 1..8"),
        (np.zeros((1, 3, 8, 9), np.float32), 4, "multiples of the patch size 4"),
        (np.zeros((1, 3, 8, 8), np.uint8), 4, "normalized floats"),
        (np.zeros((3, 8, 8), np.float32), 4, r"must be normalized floats \(B, 3"),
        (np.zeros((1, 8, 8, 3), np.float32), 4, r"must be normalized floats \(B, 3"),
    ],
)
def test_a_session_refuses_what_the_model_would_refuse(
    elastic: tuple[VECA, Path], images: Any, budget: Any, message: str
) -> None:
    with pytest.raises(SessionError, match=message):
        session(elastic[1])(images, budget)


def foreign_file(folder: Path) -> Path:
    """An ONNX file of somebody else, with metadata of its own."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy"]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "graph", ends[:1], ends[1:])
    content = onnx.helper.make_model(graph, ir_version=9)
    onnx.helper.set_model_props(content, {"author": "somebody"})
    content.opset_import[0].version = 20
    onnx.save(content, folder / "foreign.onnx")
    return folder / "foreign.onnx"


def test_a_session_opens_only_files_that_veca_wrote(tmp_path: Path) -> None:
    with pytest.raises(SessionError, match="does not exist"):
        session(tmp_path / "none.onnx")
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    for runtime in ("onnx", "openvino"):
        with pytest.raises(SessionError, match="cannot be opened"):
            session(tmp_path / "damaged.onnx", runtime)
        with pytest.raises(SessionError, match="no description by veca"):
            session(foreign_file(tmp_path), runtime)
    with pytest.raises(SessionError, match="runtime='tensorrt' is unknown"):
        session(tmp_path / "damaged.onnx", "tensorrt")  # type: ignore[arg-type]


def test_the_file_says_what_it_is_and_nothing_of_the_machine_that_made_it(
    elastic: tuple[VECA, Path],
) -> None:
    facts = session(elastic[1]).metadata
    assert (facts["budgets"], facts["default_budget"], facts["ffn"]) == ([2, 4, 8], 4, 0.5)
    assert facts["outputs"] == ["image", "cores", "patches", "points"]
    assert facts["mean"] == [0.485, 0.456, 0.406]
    assert len(facts["weights_sha256"]) == 64
    content = elastic[1].read_bytes()
    for trace in (b".py", b"site-packages", str(Path.cwd()).encode()):
        assert trace not in content


def test_exporting_twice_gives_the_same_bytes(elastic: tuple[VECA, Path], tmp_path: Path) -> None:
    export_onnx(elastic[0], tmp_path / "again.onnx", ExportConfig(ffn=0.5))
    assert (tmp_path / "again.onnx").read_bytes() == elastic[1].read_bytes()


@pytest.mark.parametrize(
    ("fields", "config", "limit"),
    [
        ({"attention": "full", "budgets": (8, 16, 24, 32, 40, 48, 56, 64)}, ExportConfig(), 1e-4),
        ({"local_kernel": 0}, ExportConfig(budget=4, fixed_size=(16, 24)), 1e-4),
        ({}, ExportConfig(outputs=("patches",), precision="fp16"), 0.05),
        ({}, ExportConfig(precision="int8"), 1.0),
    ],
    ids=["full", "fixed", "fp16", "int8"],
)
def test_other_kinds_of_files_are_close_to_the_model(
    fields: dict[str, Any], config: ExportConfig, limit: float, tmp_path: Path
) -> None:
    model = small(**fields)
    found = export_onnx(model, tmp_path / "model.onnx", config)
    assert found.largest < limit
    run = session(tmp_path / "model.onnx", threads=1)
    images = torch.randn(2, 3, 16, 24)
    budget = None if model.config.attention == "full" or config.budget else 5
    with torch.inference_mode():
        expected = model(images, config.budget or budget)
    patches = torch.tensor(run(images.numpy(), budget).patches)
    assert torch.cosine_similarity(patches, expected.patches, dim=2).min() > 0.99


def test_a_file_of_one_budget_and_size_refuses_others(tmp_path: Path) -> None:
    config = ExportConfig(budget=4, fixed_size=(8, 8))
    export_onnx(small(), tmp_path / "model.onnx", config)
    run = session(tmp_path / "model.onnx")
    assert cores_of(run(pixels(1, 2, 2).numpy(), 4)) == 4
    with pytest.raises(SessionError, match="exported with 4 cores"):
        run(pixels(1, 2, 2).numpy(), 3)
    with pytest.raises(SessionError, match="exported for 8 x 8"):
        run(pixels(1, 2, 3).numpy())


def test_a_file_that_preprocesses_takes_bytes_of_any_size(tmp_path: Path) -> None:
    model = small()
    export_onnx(model, tmp_path / "model.onnx", ExportConfig(resize_to=32))
    run = session(tmp_path / "model.onnx", threads=1)
    for height, width in ((50, 81), (33, 20)):
        smooth = torch.nn.functional.interpolate(torch.rand(1, 3, 6, 6), (height, width))
        photo = (smooth[0] * 255).byte().permute(1, 2, 0).numpy()
        found = run(photo[None], 8)
        prepared = veca.prepare(photo, 32, patch_size=4)
        with torch.inference_mode():
            expected = model(prepared.pixels[None], 8)
        assert found.grid == prepared.geometry.grid
        cosine = torch.cosine_similarity(torch.tensor(found.image), expected.image)
        assert cosine.item() > 0.999
    with pytest.raises(SessionError, match="uint8 of"):
        run(np.zeros((1, 3, 8, 8), np.float32))


def test_a_torch_program_is_loaded_without_veca_s_classes(tmp_path: Path) -> None:
    model = small(layers=2, core_motion="attention")
    export_program(model, tmp_path / "model.pt2", ExportConfig(outputs=("image", "patches")))
    facts = {f"{METADATA_NAME}.json": ""}
    program = torch.export.load(tmp_path / "model.pt2", extra_files=facts).module()
    assert json.loads(facts[f"{METADATA_NAME}.json"])["outputs"] == ["image", "patches"]
    for budget, shape in {1: (1, 2, 2), 6: (3, 3, 5)}.items():
        images = pixels(*shape)
        with torch.inference_mode():
            image, patches = program(images, torch.tensor(budget))
            expected = model(images, budget)
        torch.testing.assert_close(image, expected.image, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(patches, expected.patches, atol=1e-5, rtol=1e-5)


def test_a_file_that_differs_from_the_model_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.export.graph.LIMITS", {"fp32": Difference(1e-12, 0.99999)})
    with pytest.raises(ExportError, match="nothing was written"):
        export_onnx(small(layers=1), tmp_path / "model.onnx", ExportConfig())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_refused_as_in_half_precision(value: float) -> None:
    model = small()
    graph = Graph(model, ExportConfig(outputs=("image",), precision="fp16"))
    with pytest.raises(ExportError, match="NaN or infinite values"):
        verify(
            graph, model, lambda one: [torch.full((len(one.pixels), 32), value)], examples(graph)
        )


@pytest.mark.parametrize("config", [ExportConfig(resize_to=32), ExportConfig(fixed_size=(4, 4))])
def test_every_kind_of_torch_program_is_compared(
    config: ExportConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.export.graph.LIMITS", {"fp32": Difference(0, 1.1)})
    monkeypatch.setattr("veca.export.graph.RESIZE_COSINE", 1.1)
    with pytest.raises(ExportError, match="differs from the model"):
        export_program(small(), tmp_path / "model.pt2", config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ExportConfig(outputs=("image", "masks")), "give one or more of image, cores"),
        (ExportConfig(precision="bf16"), "precision='bf16' is unknown"),  # type: ignore[arg-type]
        (ExportConfig(budget=9), "outside 1..8"),
        (ExportConfig(ffn=0.5), "nested feed-forward"),
        (ExportConfig(fixed_size=(16, 18)), "width=18 is not a multiple"),
        (ExportConfig(fixed_size=(16, 16), resize_to=32), "takes any size"),
        (ExportConfig(resize_to=2), "one patch or more"),
    ],
)
def test_what_a_model_cannot_do_is_refused_before_tracing(
    config: ExportConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        export_onnx(small(), tmp_path / "model.onnx", config)


def test_a_model_that_no_file_can_hold_is_refused_before_tracing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.export.onnx_file.MAX_BYTES", 10_000)
    with pytest.raises(ExportError, match=r"the weights take .* use precision fp16"):
        export_onnx(small(), tmp_path / "model.onnx", ExportConfig())


def test_the_command_exports_a_stored_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    veca.save(small(layers=1), tmp_path / "stored")
    words = ["export", "onnx", str(tmp_path / "stored"), "--out", str(tmp_path / "it.onnx")]
    assert main([*words, "--outputs", "image", "--budget", "2"]) == 0
    assert "largest difference" in capsys.readouterr().out
    assert isinstance(session(tmp_path / "it.onnx"), Session)
    refused = {
        "--fixed-size 8x": "give one side",
        "--budget 99": "1..8",
        "--size 64": "needs --preprocess",
    }
    for wrong, message in refused.items():
        assert main([*words, *wrong.split()]) == 2
        assert message in capsys.readouterr().err


def test_the_file_needs_nothing_but_onnx_runtime(
    elastic: tuple[VECA, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (40, 30), "red").save(tmp_path / "red.png")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "bare_onnx.py"))
    example["main"](str(elastic[1]), str(tmp_path / "red.png"), "6")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "image (1, 32)", "cores (1, 6, 32)", "patches (1, 4096, 32)", "points (1, 6, 2)",
    ]  # fmt: skip


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_a_folder_is_embedded_by_an_exported_file_as_by_the_model(
    elastic: tuple[VECA, Path], tmp_path: Path, runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = elastic
    photos = tmp_path / "photos"
    photos.mkdir()
    for number, color in enumerate(("red", "green", "blue")):
        Image.new("RGB", (40, 30 + 8 * number), color).save(photos / f"{color}.png")
    words = ["embed", str(photos), "--size", "32", "--workers", "0", "--dtype", "float32"]
    exported = [*words, "--model", str(file), "--runtime", runtime, "--out", str(tmp_path / "a")]
    assert main([*exported, "--patches"]) == 0
    veca.save(model, tmp_path / "stored")
    flags = ["--ffn", "0.5", "--precision", "fp32", "--out", str(tmp_path / "b"), "--patches"]
    assert main([*words, "--model", str(tmp_path / "stored"), *flags]) == 0
    mine, theirs = Collection.open(tmp_path / "a"), Collection.open(tmp_path / "b")
    np.testing.assert_allclose(mine.features(), theirs.features(), atol=1e-4)
    assert mine.meta.settings["runtime"] == runtime
    assert mine.meta.model_sha256 == theirs.meta.model_sha256
    query = ["search", str(photos / "red.png"), "--in", str(tmp_path / "a"), "--top", "1"]
    assert main(query) == 0
    assert "red.png" in capsys.readouterr().out
    for wrong, message in {"--ffn 1": "which cannot change", "--device cuda": "omit it"}.items():
        assert main([*exported, *wrong.split()]) == 2
        assert message in capsys.readouterr().err


def test_a_session_imports_no_torch(elastic: tuple[VECA, Path]) -> None:
    code = (
        "import sys, numpy, veca; run = veca.session(sys.argv[1]);"
        "run(numpy.zeros((1, 3, 8, 8), numpy.float32), budget=3); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(elastic[1])], check=True, timeout=60)
