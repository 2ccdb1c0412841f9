"""Results say whose test part they are of, and in which units."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from tests.probe.small_features import CellModel
from tests.probe.small_sets import color_set
from veca.probe.measured import Found, Measured, Measurement
from veca.probe.rows import Setting


def test_a_result_is_fixed_and_has_neither_head_nor_cases_unless_given(tmp_path: Path) -> None:
    measured = Measured(
        setting=Setting(8),
        seed=1,
        data=color_set(tmp_path),
        metrics={"top1": 50.0},
        counts={"train": 18, "test": 9},
        protocol="dinov2",
        feature="image",
    )
    assert measured.head is None
    assert not {**measured.cases, **measured.units, **measured.chosen}
    with pytest.raises(FrozenInstanceError):
        measured.seed = 2  # type: ignore[misc]
    found = Found(Measurement("teacher", "some/model", CellModel()), 17, measured)
    assert found.who.model.round_down_to_patch(found.resolution) == 16
