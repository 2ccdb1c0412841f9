"""Models by name, with any field overridden and really used."""

import pytest
import torch
from torch import nn

import veca


def test_overridden_fields_are_really_used() -> None:
    model = veca.build(
        "tiny", layers=3, width=64, heads=4, ffn_ratio=2.0, patch_size=8, in_channels=5,
        budgets=(2, 7), ffn_shares=(0.5, 1.0),
    )  # fmt: skip
    assert len(model.blocks) == 3
    assert model.patch_embedding.weight.shape == (64, 5, 8, 8)
    assert [len(chunk) for chunk in model.core_bank.tokens] == [2, 5]
    assert model.block_of(0).feedforward.hidden == 128
    features = model(torch.randn(1, 5, 16, 24), budget=3, ffn=0.5)
    assert features.cores.shape == (1, 3, 64)
    assert features.grid == (2, 3)


def test_an_unknown_size_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'huge' is not known; pick one of tiny, small"):
        veca.build("huge")


def test_an_unknown_field_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"depth cannot be overridden; .* layers, width"):
        veca.build("tiny", depth=3)


def test_lists_become_tuples_so_that_configurations_stay_comparable() -> None:
    assert veca.build("tiny", layers=1, budgets=[2, 4]).config.budgets == (2, 4)


def test_one_seed_builds_one_model() -> None:
    def weights(seed: int) -> list[nn.Parameter]:
        torch.manual_seed(seed)
        return list(veca.build("tiny", layers=1).parameters())

    assert all(map(torch.equal, weights(0), weights(0)))
    assert not all(map(torch.equal, weights(0), weights(1)))
