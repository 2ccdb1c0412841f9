"""Provenance, facts about a model, and the model card."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard

import veca
from tests.weights.models import trained_model
from veca.backbone.config import SIZES, BackboneConfig
from veca.weights.card import ModelInfo, Provenance, is_trained, provenance_from_json, size_name
from veca.weights.format import WeightsError


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


def facts_of(config: BackboneConfig, provenance: Provenance | None, untrained: bool) -> ModelInfo:
    """ModelInfo with made-up files."""
    return ModelInfo(
        config=config,
        path=Path("model.safetensors"),
        dtype="float32",
        file_bytes=10,
        digest="0" * 64,
        untrained=untrained,
        provenance=provenance,
    )


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_known_by_its_name_whatever_it_is_trained_for(name: str) -> None:
    assert size_name(SIZES[name]) == name
    assert size_name(veca.build("tiny", budgets=(32, 64), ffn_shares=(0.5, 1.0)).config) == "tiny"


def test_the_full_attention_twin_of_a_size_has_its_name() -> None:
    assert size_name(BackboneConfig(attention="full")) == "base"


def test_other_sizes_have_no_name() -> None:
    assert size_name(BackboneConfig(budgets=(8,))) is None
    assert size_name(BackboneConfig(layers=11)) is None


def test_a_model_is_untrained_until_its_first_step() -> None:
    model = veca.build("tiny", layers=2, width=32, heads=2, patch_size=4)

    def trained() -> bool:
        return any(is_trained(name, tensor) for name, tensor in model.state_dict().items())

    assert not trained()
    features = model(torch.randn(1, 3, 8, 8))
    (features.image.sum() + features.patches.square().sum()).backward()
    torch.optim.AdamW(model.parameters(), lr=1e-4).step()
    assert trained()


def test_the_story_says_plainly_what_the_weights_are() -> None:
    config = trained_model().config
    assert "untrained" in facts_of(config, None, untrained=True).training_status
    assert "not recorded" in facts_of(config, None, untrained=False).training_status
    assert "not recorded" in facts_of(config, Provenance(), untrained=False).training_status
    told = Provenance(teacher="owner/teacher")
    assert facts_of(config, told, untrained=False).training_status == "The weights are trained."


def test_facts_are_plain_json_with_null_budgets_for_full_attention() -> None:
    core = facts_of(trained_model().config, Provenance(seed=1), untrained=False).as_json()
    assert json.loads(json.dumps(core)) == core
    assert core["budgets"] == [2, 3, 6]
    assert core["prefix_tokens"] is None
    assert core["provenance"] == {"seed": 1}
    full = facts_of(trained_model(attention="full").config, None, untrained=False).as_json()
    assert full["budgets"] is None
    assert full["prefix_tokens"] == 1
    assert [row["budget"] for row in full["costs"]] == [None, None]


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
    with pytest.raises(WeightsError, match=r"must be int or omitted|licence is empty"):
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
    assert WHOLE.describes_training
    assert not Provenance(notes="x", command="y", seed=1).describes_training
