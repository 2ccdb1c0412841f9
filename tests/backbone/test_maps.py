"""Norm-based core maps against the paper's formula, vector by vector."""

import pytest
import torch

from veca.backbone.attention import CorePeripheryAttention, contribution_shares
from veca.backbone.config import BackboneConfig


def test_shares_are_the_norms_of_what_each_token_adds_to_each_core() -> None:
    torch.manual_seed(0)
    config = BackboneConfig(width=24, heads=3, budgets=(4,))
    attention = CorePeripheryAttention(config)
    tokens = torch.randn(2, 9, 24)
    weights = torch.rand(2, 3, 4, 9).softmax(-1)
    shares = contribution_shares(attention, tokens, weights)

    values = attention.value(tokens)
    for b in range(2):
        for i in range(4):
            norms = []
            for j in range(9):
                added = torch.zeros(24)
                for h in range(3):
                    channels = slice(h * 8, h * 8 + 8)
                    through = attention.output.weight[:, channels] @ values[b, j, channels]
                    added += weights[b, h, i, j] * through
                norms.append(added.norm().item())
            expected = [norm / sum(norms) for norm in norms]
            assert shares[b, i].tolist() == pytest.approx(expected, rel=1e-4)
