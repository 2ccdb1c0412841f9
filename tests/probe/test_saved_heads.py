"""Heads on disk: what is read back is what was saved, and damage is noticed."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from veca.probe.predict import FACTS_NAME, TENSORS_NAME, HeadError, SavedHead, load_head, save_head
from veca.probe.rows import Setting


def head(**changes: Any) -> SavedHead:
    """A head of two classes."""
    values: dict[str, Any] = {
        "task": "logistic",
        "data": "pets",
        "classes": ("cat", "dog"),
        "model": "tiny",
        "weights": "ab" * 32,
        "setting": Setting(8, 0.5),
        "resolution": 128,
        "protocol": "dinov3",
        "seed": 3,
        "facts": {"margin": 1.125},
        "metrics": {"top1": 75.0},
        "tensors": {"weight": torch.randn(2, 5), "bias": torch.randn(2)},
    }
    return SavedHead(**{**values, **changes})


def test_a_head_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    saved = head()
    save_head(saved, tmp_path / "deep" / "head")
    found = load_head(tmp_path / "deep" / "head")
    assert {**vars(found), "tensors": None} == {**vars(saved), "tensors": None}
    assert found.tensors.keys() == saved.tensors.keys()
    assert all(torch.equal(found.tensors[name], saved.tensors[name]) for name in saved.tensors)
    assert isinstance(found.setting, Setting)
    assert isinstance(found.classes, tuple)


def test_equal_heads_give_equal_files_and_a_new_one_takes_the_place_of_the_old(
    tmp_path: Path,
) -> None:
    tensors = {"weight": torch.ones(2, 5)}
    for name in ("a", "b"):
        save_head(head(tensors=tensors), tmp_path / name)
    for name in (FACTS_NAME, TENSORS_NAME):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    save_head(head(seed=4), tmp_path / "a")
    assert load_head(tmp_path / "a").seed == 4


def test_a_folder_without_a_head_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(HeadError, match=r"has no head\.json.*below heads/"):
        load_head(tmp_path)


@pytest.mark.parametrize("name", [FACTS_NAME, TENSORS_NAME])
def test_a_cut_file_is_noticed(tmp_path: Path, name: str) -> None:
    save_head(head(), tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(HeadError, match="fit"):
        load_head(tmp_path)


def test_tensors_of_another_head_are_refused(tmp_path: Path) -> None:
    save_head(head(), tmp_path / "a")
    save_head(head(), tmp_path / "b")
    (tmp_path / "a" / TENSORS_NAME).write_bytes((tmp_path / "b" / TENSORS_NAME).read_bytes())
    with pytest.raises(HeadError, match="its hash differs"):
        load_head(tmp_path / "a")


def test_a_head_of_another_version_is_refused(tmp_path: Path) -> None:
    save_head(head(), tmp_path)
    facts = json.loads((tmp_path / FACTS_NAME).read_text("utf-8"))
    (tmp_path / FACTS_NAME).write_text(json.dumps({**facts, "format": 99}), "utf-8")
    with pytest.raises(HeadError, match="another version"):
        load_head(tmp_path)


@pytest.mark.parametrize("changes", [{"seed": None, "more": 1}, {"setting": None}])
def test_facts_that_are_not_those_of_a_head_are_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    save_head(head(), tmp_path)
    facts = json.loads((tmp_path / FACTS_NAME).read_text("utf-8"))
    (tmp_path / FACTS_NAME).write_text(json.dumps({**facts, **changes}), "utf-8")
    with pytest.raises(HeadError, match="a field"):
        load_head(tmp_path)
