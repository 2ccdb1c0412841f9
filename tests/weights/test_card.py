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


def data_of(card: ModelCard) -> dict[str, Any]:
    """The fields that the hub reads."""
    fields: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return fields


def test_the_hub_reads_licence_library_task_and_teacher(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(licence="mit", teacher="owner/teacher"))
    assert data_of(card)["license"] == "mit"
    assert data_of(card)["library_name"] == "veca"
    assert data_of(card)["pipeline_tag"] == "image-feature-extraction"
    assert data_of(card)["base_model"] == "owner/teacher"
    assert "veca" in data_of(card)["tags"]


def test_a_custom_licence_has_a_license_name(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(licence="other (research weights; see notes)"))
    assert data_of(card)["license"] == "other"
    assert data_of(card)["license_name"] == "research weights; see notes"
    assert "* License: other (research weights; see notes)" in card.text


def test_unknown_licences_and_teachers_are_only_in_the_text(tmp_path: Path) -> None:
    card = card_of(tmp_path, Provenance(teacher="my own network"))
    assert "license" not in data_of(card)
    assert "* License: not recorded" in card.text
    assert "base_model" not in data_of(card)
    assert "Teacher: my own network" in card.text


def test_hostile_text_stays_inside_its_field(tmp_path: Path) -> None:
    hostile = 'x"\n---\nlicense: gpl\n---\n<script>'
    stated = Provenance(
        licence=hostile, data=hostile, notes="a\nb", command="b\udce9", recipe="[x](y)\x1b"
    )
    card = card_of(tmp_path, stated)
    assert data_of(card)["license"] == hostile
    assert data_of(card)["library_name"] == "veca"
    assert "\n---" not in card.text
    assert "<script>" not in card.text
    assert "* Notes: a b" in card.text
    assert "* Command: b?\n" in card.text
    assert "* Recipe: [x]\\(y)?\n" in card.text


def test_the_card_holds_the_whole_provenance(tmp_path: Path) -> None:
    stated = Provenance(
        teacher="owner/teacher", teacher_licence="apache-2.0", data="Objects365", recipe="base",
        command="veca distill base", seed=7, date="2026-05-12", notes="top-1 80 %",
    )  # fmt: skip
    text = card_of(tmp_path, stated).text
    for value in stated.known().values():
        assert str(value) in text


def test_the_card_has_the_cost_of_each_budget_at_two_sizes(tmp_path: Path) -> None:
    text = card_of(tmp_path).text
    model = veca.load(tmp_path)
    for budget in (2, 3, 6):
        for side in (256, 512):
            cost = model.cost(side, side, budget=budget)
            assert f"| {budget} | {side} | {cost.pairs:,} | {cost.flops / 1e9:.2f} |" in text


def test_the_card_of_an_untrained_model_says_so(tmp_path: Path) -> None:
    veca.save(veca.build("tiny", layers=1), tmp_path)
    assert "weights are untrained" in (tmp_path / "README.md").read_text("utf-8")
    assert "untrained" not in card_of(tmp_path).text


@pytest.mark.parametrize(
    "fields", [{}, {"attention": "full"}, {"in_channels": 1, "patch_size": 14}]
)
def test_the_usage_example_runs(fields: dict[str, Any], tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", card_of(tmp_path, **fields).text, re.DOTALL)
    assert found is not None
    lines = found[1].replace("THIS_MODEL", str(tmp_path))
    assert sum(map(bool, lines.splitlines())) == 6
    exec(lines)


def test_given_results_are_in_the_card(tmp_path: Path) -> None:
    veca.save(trained_model(), tmp_path, results="| cores | top1 |\n| --: | --: |\n| 8 | 61 |\n")
    text = ModelCard.load(tmp_path / "README.md").text
    assert "## Results\n\n| cores | top1 |\n| --: | --: |\n| 8 | 61 |\n\n## Where" in text
    assert "## Results" not in card_of(tmp_path).text


def test_the_name_is_used_in_title_and_example(tmp_path: Path) -> None:
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
def test_a_size_has_its_name_whatever_its_budgets(name: str) -> None:
    assert size_name(SIZES[name]) == name
    assert size_name(veca.build("tiny", budgets=(32, 64), ffn_shares=(0.5, 1.0)).config) == "tiny"
    assert size_name(BackboneConfig(attention="full")) == "base"
    assert size_name(BackboneConfig(budgets=(8,))) is None
    assert size_name(BackboneConfig(layers=11)) is None


def test_a_model_is_untrained_until_its_first_step() -> None:
    model = veca.build("tiny", layers=2, width=32, heads=2, patch_size=4)
    assert not is_trained(model.state_dict())
    features = model(torch.randn(1, 3, 8, 8))
    (features.image.sum() + features.patches.square().sum()).backward()
    torch.optim.AdamW(model.parameters(), lr=1e-4).step()
    assert is_trained(model.state_dict())


def test_the_training_status_depends_on_teacher_data_and_recipe() -> None:
    config = trained_model().config
    assert "untrained" in facts_of(config, None, untrained=True).training_status
    assert "not recorded" in facts_of(config, None, untrained=False).training_status
    vague = Provenance(notes="x", command="y", seed=1)
    assert "not recorded" in facts_of(config, vague, untrained=False).training_status
    stated = Provenance(teacher="owner/teacher")
    assert facts_of(config, stated, untrained=False).training_status == "The weights are trained."


def test_json_of_a_full_attention_model_has_null_budgets() -> None:
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
def test_provenance_survives_json(provenance: Provenance) -> None:
    assert provenance_from_json(provenance.known()) == provenance


def test_an_empty_licence_is_refused() -> None:
    with pytest.raises(WeightsError, match="licence is empty"):
        Provenance(licence="")


@pytest.mark.parametrize(
    "value",
    [None, 3, [], {"licence": ""}, {"licence": " "}, {"author": "x"}, {"seed": 1.5}, {"data": 1}],
)
def test_invalid_provenance_from_a_file_is_refused(value: object) -> None:
    with pytest.raises(WeightsError):
        provenance_from_json(value)


def test_text_from_a_file_is_printable_and_bounded() -> None:
    stated = provenance_from_json({"notes": "\x1b[2Jgone\nnext" + "x" * 100_000})
    assert stated.notes is not None
    assert stated.notes.isprintable()
    assert len(stated.notes) <= 10_000
