"""The model card: what the hub reads and what people read."""

import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

import veca
from tests.weights.models import trained_model
from veca.weights.card import Provenance


def card_of(folder: Path, provenance: Provenance | None = None, **fields: Any) -> ModelCard:
    """The card of a small model, as the hub reads it."""
    veca.save(trained_model(**fields), folder, provenance=provenance)
    return ModelCard.load(folder / "README.md")


def told(card: ModelCard) -> dict[str, Any]:
    """The fields that the hub reads."""
    fields: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return fields


def test_the_hub_reads_licence_library_task_and_teacher(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(licence="mit", teacher="owner/teacher"))
    assert told(card)["license"] == "mit"
    assert told(card)["library_name"] == "veca"
    assert told(card)["pipeline_tag"] == "image-feature-extraction"
    assert told(card)["base_model"] == "owner/teacher"
    assert "veca" in told(card)["tags"]


def test_a_licence_of_its_own_is_told_by_its_name(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(licence="other (research weights; see notes)"))
    assert told(card)["license"] == "other"
    assert told(card)["license_name"] == "research weights; see notes"
    assert "* Licence: other (research weights; see notes)" in card.text


def test_a_licence_that_is_not_recorded_is_told_to_people_and_to_no_program(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(teacher="owner/teacher"))
    assert "license" not in told(card)
    assert "* Licence: not recorded" in card.text


def test_a_teacher_that_is_not_on_the_hub_is_told_in_words_only(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(teacher="my own network"))
    assert "base_model" not in told(card)
    assert "Teacher: my own network" in card.text


def test_hostile_text_stays_inside_its_field(tmp_path: Path) -> None:
    hostile = 'x"\n---\nlicense: gpl\n---\n<script>'
    card = card_of(tmp_path, Provenance(licence=hostile, data=hostile, notes="a\nb"))
    assert told(card)["license"] == hostile
    assert told(card)["library_name"] == "veca"
    assert "\n---" not in card.text
    assert "<script>" not in card.text
    assert "* Notes: a b" in card.text


def test_everything_known_is_told(tmp_path: Path) -> None:
    told = Provenance(
        teacher="owner/teacher", teacher_licence="apache-2.0", data="Objects365", recipe="base",
        command="veca distill base", seed=7, date="2026-05-12", notes="top-1 80 %",
    )  # fmt: skip
    text = card_of(tmp_path, told).text
    for value in told.known().values():
        assert str(value) in text


def test_costs_are_told_for_each_budget_at_two_sizes(tmp_path: Path) -> None:
    text = card_of(tmp_path).text
    model = veca.load(tmp_path)
    for budget in (2, 3, 6):
        for side in (256, 512):
            cost = model.cost(side, side, budget=budget)
            assert f"| {budget} | {side} | {cost.pairs:,} | {cost.flops / 1e9:.2f} |" in text


def test_an_untrained_model_says_so_and_a_trained_one_does_not(tmp_path: Path) -> None:
    veca.save(veca.build("tiny", layers=1), tmp_path)
    assert "weights are untrained" in (tmp_path / "README.md").read_text("utf-8")
    assert "untrained" not in card_of(tmp_path).text


@pytest.mark.parametrize(
    "fields", [{}, {"attention": "full"}, {"in_channels": 1, "patch_size": 14}]
)
def test_the_usage_runs_as_it_stands(fields: dict[str, Any], tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", card_of(tmp_path, **fields).text, re.DOTALL)
    assert found is not None
    lines = found[1].replace("THIS_MODEL", str(tmp_path))
    assert sum(map(bool, lines.splitlines())) == 5
    exec(lines)


def test_results_stand_in_the_card_where_they_are_given(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path, results="| cores | top1 |\n| --: | --: |\n| 8 | 61 |\n")
    text = ModelCard.load(tmp_path / "README.md").text
    assert "## Results\n\n| cores | top1 |\n| --: | --: |\n| 8 | 61 |\n\n## Where" in text
    assert "## Results" not in card_of(tmp_path).text


def test_a_model_with_a_name_is_called_and_loaded_by_it(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path, name="my-veca")
    text = ModelCard.load(tmp_path / "README.md").text
    assert "# my-veca\n" in text
    assert 'model = veca.load("my-veca")\n' in text
    assert "THIS_MODEL" not in text
    veca.save(trained_model(), tmp_path, name="my\n<b>veca")
    assert "# my &lt;b>veca\n" in ModelCard.load(tmp_path / "README.md").text
