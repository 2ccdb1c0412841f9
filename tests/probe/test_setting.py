"""Settings have short names that are fit for files."""

import pytest

from veca.probe.rows import Setting


@pytest.mark.parametrize(
    ("setting", "label"),
    [
        (Setting(), "whole"),
        (Setting(8), "c8"),
        (Setting(64, 0.5), "c64-f0.5"),
        (Setting(None, 1.0), "f1"),
    ],
)
def test_a_setting_has_a_short_label(setting: Setting, label: str) -> None:
    assert setting.label == label
