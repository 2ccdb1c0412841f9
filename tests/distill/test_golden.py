"""Losses of five steps of size tiny, written down: refactors must not move them.

Renew with `VECA_WRITE_GOLDENS=1 pytest tests/distill/test_golden.py` and say why in the commit.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tests.distill.runs import ALONE, pictures, rows, run, small_config
from veca.backbone.sizes import SIZES
from veca.distill.schedules import ScheduleConfig

FILE = Path(__file__).parent.parent / "goldens" / "distill.json"

FIELDS = ("loss", "loss_image", "loss_patch_cosine", "loss_patch_error", "gradient_norm")


def test_five_steps_of_tiny_have_the_losses_they_always_had(tmp_path: Path) -> None:
    images = pictures(tmp_path / "images")
    backbone = dataclasses.replace(SIZES["tiny"], ffn_shares=(0.25, 0.5, 1.0))
    # A gentle rate: orthogonalised steps amplify the rounding in which machines differ.
    schedule = ScheduleConfig(peak=5e-4, minimum=5e-5, warmup_steps=2)
    config = small_config(
        images, backbone=backbone, steps=5, validate_every=5, ema=0.99, schedule=schedule
    )
    run(config, tmp_path / "run", ALONE)
    found = {
        f"{row['kind']} {row.get('step', '')} {row.get('budget', '')} {row.get('ffn', '')}": [
            row[name] for name in FIELDS if name in row
        ]
        for row in rows(tmp_path / "run")
    }
    if os.environ.get("VECA_WRITE_GOLDENS"):
        FILE.write_text(json.dumps(found, indent=1) + "\n")
    written = json.loads(FILE.read_text())
    assert list(found) == list(written)
    for name, values in found.items():
        assert values == pytest.approx(written[name], rel=1e-5), name
