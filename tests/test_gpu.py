"""What needs a CUDA device: `make gpu`. Not run by its developers so far, so please report."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from veca.backbone.model import VECA, Features
from veca.cli.main import main

pytestmark = pytest.mark.gpu

MIXING = {"local_kernel": 3, "core_motion": "attention"}


def small(device: str, **fields: Any) -> VECA:
    torch.manual_seed(0)
    return veca.build("tiny", layers=4, ffn_shares=(0.5, 1.0), **fields).eval().to(device)


def images() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(2, 3, 64, 96)


def assert_alike(found: Features, expected: Features, cosine: float) -> None:
    for mine, theirs in zip(found[:2], expected[:2], strict=True):
        alike = torch.cosine_similarity(mine.float().cpu(), theirs.float(), dim=-1)
        assert alike.min() > cosine


@pytest.mark.parametrize(
    "fields", [{}, MIXING, {"attention": "full"}], ids=["paper", "ours", "full"]
)
@pytest.mark.parametrize("form", ["plain", "folded"])
def test_features_on_a_gpu_are_those_of_the_cpu(fields: dict[str, Any], form: Any) -> None:
    budget = None if "attention" in fields else 11
    models = small("cpu", **fields), small("cuda", **fields)
    for model in models:
        model.set_attention_form(form)
    with torch.inference_mode():
        expected, found = models[0](images(), budget), models[1](images().cuda(), budget)
    assert_alike(found, expected, 0.9999)


def test_bf16_on_a_gpu_keeps_the_features() -> None:
    with torch.inference_mode():
        expected = small("cpu", **MIXING)(images(), 8)
        model = small("cuda", **MIXING)
        model.precision = "bf16"
        found = model(images().cuda(), 8)
    assert found.patches.dtype == torch.float32
    assert_alike(found, expected, 0.999)


def test_compiled_training_on_a_gpu_gives_the_gradients_of_eager_training() -> None:
    eager, other = small("cuda", **MIXING), small("cuda", **MIXING)
    for model in (eager, torch.compile(other)):
        model(images().cuda(), 8).patches.square().mean().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-2)


def test_a_model_on_a_gpu_is_exported_and_runs_on_the_cpu(tmp_path: Path) -> None:
    veca.save(small("cuda", **MIXING), tmp_path / "model")
    file = tmp_path / "model.onnx"
    assert main(["export", "onnx", str(tmp_path / "model"), "--out", str(file)]) == 0
    found = veca.session(file)(images().numpy(), 8).patches
    assert found is not None
    with torch.inference_mode():
        expected = small("cpu", **MIXING)(images(), 8)
    np.testing.assert_allclose(found, expected.patches.numpy(), atol=1e-3)


def test_training_runs_on_every_gpu_over_nccl(tmp_path: Path) -> None:
    for number in range(16):
        noise = np.random.default_rng(number).integers(0, 255, (64, 64, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.png")
    out = tmp_path / "run"
    command = [
        "torch.distributed.run", "--nproc-per-node", str(torch.cuda.device_count()),
        "-m", "--", "veca", "distill", "tiny", "--images", str(tmp_path), "--out", str(out),
        "--steps", "3", "--batch", "8", "--resolution", "64", "--device", "cuda", "--workers", "0",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-m", *command], check=True, timeout=600)
    model = veca.load(out / "last", device="cuda")
    assert model(images().cuda(), 8).image.isfinite().all()


def test_a_folder_is_embedded_on_a_gpu(tmp_path: Path) -> None:
    Image.new("RGB", (80, 60), "red").save(tmp_path / "red.png")
    words = ["embed", str(tmp_path / "red.png"), "--out", str(tmp_path / "it"), "--device", "cuda"]
    assert main(words) == 0
