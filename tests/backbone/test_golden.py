"""Outputs and gradients of a seeded tiny model, written down: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/backbone/test_golden.py` and say why in the commit.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import Tensor

import veca

FILE = Path(__file__).parent.parent / "goldens" / "tiny.json"


def some(values: Tensor) -> list[float]:
    """A few values from all over a tensor, and two sums that any change moves."""
    flat = values.detach().double().flatten()
    picked = flat[torch.linspace(0, len(flat) - 1, 7).long()].tolist()
    return [*picked, flat.abs().sum().item(), flat.square().sum().item()]


def compute() -> dict[str, list[float]]:
    torch.manual_seed(0)
    model = veca.build("tiny", layers=4, ffn_shares=(0.25, 0.5, 1.0)).eval()
    images = torch.randn(2, 3, 64, 96)
    found = {}
    for budget, share in ((8, 1.0), (12, 0.5), (64, 1.0)):
        features = model(images, budget, share)
        for name in ("image", "cores", "patches", "core_points"):
            found[f"{name} at {budget} cores, share {share}"] = some(getattr(features, name))
    found["core maps"] = some(model.core_maps(images, 3, 8))
    # A fixed direction: the length of a normalised feature has no gradient but rounding errors.
    directions = torch.randn_like(features.image), torch.randn_like(features.patches)
    loss = (features.image * directions[0]).mean() + (features.patches * directions[1]).mean()
    loss.backward()
    for name in ("patch_embedding.weight", "core_bank.points.7", "core_steps.0.scale"):
        found[f"gradient of {name}"] = some(model.get_parameter(name).grad)  # type: ignore[arg-type]
    return found


def test_a_seeded_tiny_model_computes_what_it_always_did() -> None:
    found = compute()
    if os.environ.get("VECA_WRITE_GOLDENS"):
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    written = json.loads(FILE.read_text())
    assert set(found) == set(written)
    for name, values in found.items():
        scale = max(abs(value) for value in written[name][:7])
        assert values == pytest.approx(written[name], rel=1e-5, abs=1e-5 * scale), name


def test_two_runs_agree_bit_for_bit() -> None:
    assert compute() == compute()
