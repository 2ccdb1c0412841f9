"""Weights under other makers' names."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from veca.teacher.layouts import load_exactly, read_weights
from veca.teacher.teacher import TeacherError

SOURCE = Path("folder", "model.safetensors")


def test_weights_come_back_from_a_file_under_their_names(tmp_path: Path) -> None:
    wanted = {"a.weight": torch.rand(2, 3), "b": torch.rand(4)}
    save_file(wanted, tmp_path / "model.safetensors")
    found = read_weights(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("content", [b"cut short", None])
def test_a_file_that_is_damaged_or_absent_is_named(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TeacherError, match=r"model\.safetensors cannot be read .*get it again"):
        read_weights(path)


def test_a_model_is_filled_in_single_precision_whatever_the_file_has() -> None:
    model, weight = nn.Linear(3, 2), torch.rand(2, 3).half()
    load_exactly(model, {"weight": weight, "bias": torch.ones(2)}, source=SOURCE, kind="small")
    assert torch.equal(model.weight, weight.float())
    assert torch.equal(model.bias, torch.ones(2))


def test_what_is_missing_unknown_or_of_another_shape_is_named_and_nothing_is_loaded() -> None:
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    given = {"weight": torch.rand(3, 2), "more": torch.rand(1)}
    with pytest.raises(TeacherError, match=r"not fit a small model \('bias', 'more', 'weight'\)"):
        load_exactly(model, given, source=SOURCE, kind="small")
    assert torch.equal(model.weight, before)
