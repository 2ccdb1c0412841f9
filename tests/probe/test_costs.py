"""Costs are those of single pictures, for each model, resolution and setting once."""

from pathlib import Path

import pytest

from tests.probe.small_sets import color_set
from veca.probe.measured import Found, Measured, Measurement
from veca.probe.models import find_model
from veca.probe.rows import Setting
from veca.probe.run import costs_of
from veca.runtime.device import pick_device


def found(tmp_path: Path, name: str, resolution: int, setting: Setting, seed: int = 0) -> Found:
    """A measurement without numbers."""
    data = color_set(tmp_path)
    model = find_model(name, pick_device("cpu"))
    measured = Measured(
        setting=setting,
        seed=seed,
        data=data,
        metrics={},
        counts={},
        protocol="dinov2",
        feature="image",
    )
    return Found(Measurement("model", name, model), resolution, measured)


def test_seeds_share_a_cost_and_settings_do_not(tmp_path: Path) -> None:
    some = [
        found(tmp_path, "tiny", 32, Setting(8)),
        found(tmp_path, "tiny", 32, Setting(8), seed=1),
        found(tmp_path, "tiny", 32, Setting(16)),
        found(tmp_path, "tiny", 64, Setting(8)),
    ]
    costs = costs_of(some, rounds=1)
    keys = [("tiny", 32, Setting(8)), ("tiny", 32, Setting(16)), ("tiny", 64, Setting(8))]
    assert list(costs) == keys
    operations = [costs[key].gflops or 0.0 for key in keys]
    assert 0 < operations[0] < operations[1] < operations[2]
    assert all((costs[key].milliseconds or 0.0) > 0 for key in keys)


def test_without_rounds_no_time_is_taken(tmp_path: Path) -> None:
    costs = costs_of([found(tmp_path, "pixels", 32, Setting())], rounds=0)
    assert costs == {("pixels", 32, Setting()): pytest.approx((None, None))}
