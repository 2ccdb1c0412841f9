"""Devices are found by name, and what cannot be used is refused in words."""

import pytest
import torch

from veca.runtime.device import pick_device


def test_auto_takes_a_graphics_processor_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for cuda, mps, expected in ((True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda value=cuda: value)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda value=mps: value)
        assert pick_device("auto").type == expected


def test_a_device_is_taken_by_its_name() -> None:
    assert pick_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["", "abacus", "cuda:99", "cpu:x"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"the device '{name}' cannot be used here; use 'auto'"):
        pick_device(name)


def test_the_device_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="'meta' holds no numbers"):
        pick_device("meta")
