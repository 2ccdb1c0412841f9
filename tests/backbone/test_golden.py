"""Outputs and gradients of a seeded tiny model, written down: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/backbone/test_golden.py` and say why in the commit.
"""

import torch

import veca
from tests.golden import assert_unmoved, fingerprint, golden


def compute() -> dict[str, list[float]]:
    torch.manual_seed(0)
    model = veca.build("tiny", layers=4, local_kernel=0, ffn_shares=(0.25, 0.5, 1.0)).eval()
    images = torch.randn(2, 3, 64, 96)
    found = {}
    for budget, share in ((8, 1.0), (12, 0.5), (64, 1.0)):
        features = model(images, budget, share)
        for name in ("image", "cores", "patches", "core_points"):
            found[f"{name} at {budget} cores, share {share}"] = fingerprint(getattr(features, name))
    found["core maps"] = fingerprint(model.core_maps(images, 3, 8))
    # A fixed direction: the length of a normalized feature has no gradient but rounding errors.
    directions = torch.randn_like(features.image), torch.randn_like(features.patches)
    loss = (features.image * directions[0]).mean() + (features.patches * directions[1]).mean()
    loss.backward()
    for name in ("patch_embedding.weight", "core_bank.points.7", "core_steps.0.scale"):
        found[f"gradient of {name}"] = fingerprint(model.get_parameter(name).grad)  # type: ignore[arg-type]
    return found


def test_a_seeded_tiny_model_computes_what_it_always_did() -> None:
    found = compute()
    assert_unmoved(found, golden("tiny", found))


def test_two_runs_agree_bit_for_bit() -> None:
    assert compute() == compute()
