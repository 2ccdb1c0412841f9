"""What is told of where weights come from, by their maker or by a stranger's file."""

from typing import Any

import pytest

from veca.weights.card import Provenance, provenance_from_json
from veca.weights.format import WeightsError

WHOLE = Provenance(
    licence="mit",
    teacher="owner/teacher",
    teacher_licence="other",
    data="1,000 photographs",
    recipe="quick",
    command="veca distill quick",
    seed=3,
    date="2026-05-12",
    notes="none",
)


@pytest.mark.parametrize("provenance", [Provenance(), WHOLE, Provenance(seed=0)])
def test_provenance_survives_the_way_through_json(provenance: Provenance) -> None:
    assert provenance_from_json(provenance.known()) == provenance


def test_what_is_not_known_is_left_out() -> None:
    assert Provenance(data="photographs").known() == {"data": "photographs"}
    assert Provenance().known() == {}


@pytest.mark.parametrize("fields", [{"seed": True}, {"licence": ""}])
def test_provenance_that_cannot_be_told_is_refused(fields: Any) -> None:
    with pytest.raises(WeightsError, match=r"is no provenance|licence is empty"):
        Provenance(**fields)


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {"licence": ""}, {"licence": " "}, {"author": "x"}, {"seed": 1.5}, {"data": 1}],
)
def test_a_file_that_tells_nonsense_is_refused(value: object) -> None:
    with pytest.raises(WeightsError):
        provenance_from_json(value)


def test_text_from_a_file_cannot_command_a_terminal_or_fill_it() -> None:
    told = provenance_from_json({"notes": "\x1b[2Jgone\nnext" + "x" * 100_000})
    assert told.notes is not None
    assert told.notes.isprintable()
    assert len(told.notes) <= 10_000


def test_only_teacher_data_and_recipe_tell_of_training() -> None:
    assert WHOLE.tells_of_training
    assert not Provenance(notes="x", command="y", seed=1).tells_of_training
