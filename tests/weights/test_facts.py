"""What a card and `veca info` tell of a model."""

import json
from pathlib import Path

import pytest
import torch

import veca
from tests.weights.models import trained_model
from veca.backbone.config import SIZES, BackboneConfig
from veca.weights.card import Facts, Provenance, is_trained, size_name


def facts_of(config: BackboneConfig, provenance: Provenance | None, untrained: bool) -> Facts:
    """Facts with made-up files."""
    return Facts(
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
    assert "untrained" in facts_of(config, None, untrained=True).story
    assert "not recorded" in facts_of(config, None, untrained=False).story
    assert "not recorded" in facts_of(config, Provenance(), untrained=False).story
    told = Provenance(teacher="owner/teacher")
    assert facts_of(config, told, untrained=False).story == "The weights are trained."


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
