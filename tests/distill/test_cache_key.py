"""Keys: equal where outputs would be equal, different where they could differ."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distill.kept_outputs import PLAIN, SMALL, CellTeacher, pictures
from veca.data.image_index import image_index
from veca.distill.cache_key import cache_facts, kept_channels, key_of, teacher_facts
from veca.distill.cache_store import CacheError
from veca.distill.margin import Margin


@pytest.fixture(name="wanted")
def fixture_wanted(tmp_path: Path) -> dict[str, Any]:
    """What a key depends on."""
    return {
        "teacher": CellTeacher(),
        "index": pictures(tmp_path / "images"),
        "images": np.arange(5),
        "config": SMALL,
        "views": PLAIN,
        "sizes": [32],
        "patch_size": 8,
        "precision": "fp32",
    }


def key(wanted: dict[str, Any], **changes: Any) -> str:
    """The key of what is wanted."""
    wanted = {**wanted, **changes}
    return key_of(cache_facts(wanted.pop("teacher"), **wanted))


def test_the_same_wish_has_the_same_key(wanted: dict[str, Any]) -> None:
    assert key(wanted) == key(wanted, teacher=CellTeacher())


@pytest.mark.parametrize(
    "changes",
    [
        {"teacher": CellTeacher(name="other")},
        {"teacher": CellTeacher(seed=1)},
        {"teacher": CellTeacher(image_width=4)},
        {"images": np.arange(1, 6)},
        {"config": dataclasses.replace(SMALL, seed=1)},
        {"config": dataclasses.replace(SMALL, crops=3)},
        {"config": dataclasses.replace(SMALL, dtype="int8")},
        {"config": dataclasses.replace(SMALL, channels=7)},
        {"views": dataclasses.replace(PLAIN, flip=0.25)},
        {"sizes": [32, 48]},
        {"patch_size": 16},
        {"precision": "bf16"},
        {"margin": Margin(patches=1, pixels=8)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_whatever_outputs_depend_on_changes_the_key(
    wanted: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert key(wanted, **changes) != key(wanted)


def test_size_and_kind_of_a_margin_change_the_key_and_no_margin_leaves_it_as_it_was(
    wanted: dict[str, Any],
) -> None:
    narrow, wide = Margin(patches=1, pixels=8), Margin(patches=2, pixels=16)
    margins = [narrow, wide, dataclasses.replace(wide, surroundings="contextual")]
    assert len({key(wanted, margin=margin) for margin in margins} | {key(wanted)}) == 4
    assert key(wanted, margin=Margin(surroundings="contextual")) == key(wanted)
    facts = cache_facts(wanted.pop("teacher"), **wanted)
    assert "margin" not in facts


def test_another_image_or_an_image_of_another_size_changes_the_key(
    wanted: dict[str, Any], tmp_path: Path
) -> None:
    before = key(wanted)
    pictures(tmp_path / "images", 7)
    assert key(wanted, index=image_index(tmp_path / "images")) != before
    (tmp_path / "images" / "0006.png").unlink()
    assert key(wanted, index=image_index(tmp_path / "images")) == before
    (tmp_path / "images" / "0000.png").write_bytes(b"something else")
    assert key(wanted, index=image_index(tmp_path / "images")) != before


def test_a_projection_to_all_channels_is_none(wanted: dict[str, Any]) -> None:
    every = dataclasses.replace(SMALL, channels=None)
    more = dataclasses.replace(SMALL, channels=16)

    assert key(wanted, config=every) == key(wanted, config=more)
    assert kept_channels(CellTeacher(), more) is None
    assert kept_channels(CellTeacher(), SMALL) == 6


def test_without_a_projection_other_resolutions_do_not_matter(wanted: dict[str, Any]) -> None:
    wanted["config"] = dataclasses.replace(SMALL, channels=None)
    assert key(wanted, sizes=[32, 48]) == key(wanted)


def test_the_facts_are_in_clear_text(wanted: dict[str, Any]) -> None:
    facts = cache_facts(wanted.pop("teacher"), **wanted)

    assert facts["teacher"]["name"] == "cells"
    assert facts["views"]["flip"] == 0.5
    assert facts["crops"] == 2


def test_a_teacher_without_a_digest_is_refused() -> None:
    teacher = CellTeacher()
    teacher.__dict__["digest"] = None
    with pytest.raises(CacheError, match="teacher cells cannot be kept, since it has no digest"):
        teacher_facts(teacher)
