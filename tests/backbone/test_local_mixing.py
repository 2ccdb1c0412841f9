"""Local mixing: patches take in their neighbors, and nothing else about the model changes."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import veca
from veca.backbone.attention import Layout
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA, LocalMixing
from veca.backbone.rope import rope_at

CONFIG = BackboneConfig(
    layers=3, width=32, heads=2, patch_size=4, budgets=(2, 4, 8), local_kernel=3
)


def model(**fields: Any) -> VECA:
    """A model whose convolutions have an effect."""
    torch.manual_seed(0)
    made = VECA(BackboneConfig(**{**vars(CONFIG), **fields})).eval()
    for name, parameter in made.named_parameters():
        if "local_mixing" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return made


def images(batch: int = 2, height: int = 12, width: int = 20) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(batch, 3, height, width)


def mixed_by_hand(weight: Tensor, tokens: Tensor, budget: int, grid: tuple[int, int]) -> Tensor:
    """Every patch plus the weighted sum of its neighbors, one by one, the border repeated."""
    rows, columns = grid
    reach = weight.shape[-1] // 2
    found = tokens.clone()
    for row, column in itertools.product(range(rows), range(columns)):
        total = torch.zeros_like(tokens[:, 0])
        for down, across in itertools.product(range(-reach, reach + 1), repeat=2):
            there = min(max(row + down, 0), rows - 1), min(max(column + across, 0), columns - 1)
            neighbor = tokens[:, budget + there[0] * columns + there[1]]
            total += weight[:, 0, down + reach, across + reach] * neighbor
        found[:, budget + row * columns + column] += total
    return found


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 5),
    budget=st.integers(1, 4),
    kernel=st.sampled_from([3, 5]),
)
def test_the_convolution_equals_sums_over_neighbors_by_hand(
    rows: int, columns: int, budget: int, kernel: int
) -> None:
    mixing = LocalMixing(BackboneConfig(width=8, heads=1, local_kernel=kernel))
    torch.nn.init.normal_(mixing.weight)
    tokens = torch.randn(2, budget + rows * columns, 8)
    nowhere = rope_at(torch.zeros(1, 2), torch.zeros(2))
    layout = Layout(budget, (rows, columns), nowhere, nowhere)
    expected = mixed_by_hand(mixing.weight.detach(), tokens, budget, (rows, columns))
    torch.testing.assert_close(mixing(tokens, layout), expected, atol=1e-5, rtol=1e-5)


def test_an_untrained_convolution_changes_nothing() -> None:
    torch.manual_seed(0)
    plain = VECA(BackboneConfig(**{**vars(CONFIG), "local_kernel": 0})).eval()
    torch.manual_seed(0)
    local = VECA(CONFIG).eval()
    for mine, other in zip(local(images(), 4)[:3], plain(images(), 4)[:3], strict=True):
        assert torch.equal(mine, other)


def test_a_patch_hears_its_neighbors_and_no_other_patch_in_one_block() -> None:
    pixels = images(1).requires_grad_()
    (gradient,) = torch.autograd.grad(model(layers=1)(pixels).patches[0, 7].sum(), pixels)
    heard = gradient.unfold(2, 4, 4).unfold(3, 4, 4).abs().sum((0, 1, 4, 5))  # 3 x 5 patches
    near = torch.zeros(3, 5, dtype=torch.bool)
    near[0:3, 1:4] = True  # around row 1, column 2
    assert torch.equal(heard > 0, near)


@pytest.mark.parametrize("motion", ["paper", "normalized", "attention"])
@pytest.mark.parametrize("budget", [1, 3, 8])
def test_both_forms_of_attention_agree(motion: Any, budget: int) -> None:
    mine, other = model(core_motion=motion), model(core_motion=motion)
    mine.set_attention_form("plain")
    other.set_attention_form("folded")
    for one, two in zip(mine(images(), budget)[:3], other(images(), budget)[:3], strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_maps_show_the_tokens_that_attention_reads() -> None:
    made = model(layers=1)
    block = made.block_of(0)
    state = made.tokenize(images(), 4)
    tokens = block.attention_norm(
        mixed_by_hand(block.local_mixing.weight.detach(), state.tokens, 4, state.grid)  # type: ignore[union-attr]
    )
    weights = block.attention.core_weights(tokens, state.layout)
    expected = weights[..., 4:].unflatten(-1, state.grid)
    torch.testing.assert_close(
        made.attention_maps(images(), 0, budget=4), expected, atol=1e-6, rtol=1e-5
    )


@pytest.mark.parametrize(("stored", "asked"), [(0, 3), (0, 5), (3, 5), (3, 3)])
def test_a_stored_model_gains_a_larger_convolution_unchanged(
    stored: int, asked: int, tmp_path: Path
) -> None:
    made = model(local_kernel=stored)
    veca.save(made, tmp_path)
    opened = veca.load(tmp_path, local_kernel=asked)
    assert opened.config.local_kernel == asked
    for mine, other in zip(opened(images(), 4)[:3], made(images(), 4)[:3], strict=True):
        torch.testing.assert_close(mine, other, atol=1e-6, rtol=1e-5)
    opened.train()
    opened(images(), 4).patches.square().sum().backward()
    for parameter in (p for name, p in opened.named_parameters() if "local_mixing" in name):
        assert parameter.grad is not None
        assert parameter.grad.any()


def test_a_convolution_is_never_cut_silently(tmp_path: Path) -> None:
    veca.save(model(local_kernel=5), tmp_path)
    with pytest.raises(ValueError, match="would cut the model's convolution of side 5"):
        veca.load(tmp_path, local_kernel=3)


def test_only_tiny_mixes_locally_by_default() -> None:
    kernels = {name: config.local_kernel for name, config in veca.SIZES.items()}
    assert kernels == {"tiny": 3, "small": 0, "small-plus": 0, "base": 0, "large": 0}


def test_a_call_without_a_budget_asks_the_model_then_the_configuration() -> None:
    made = model(default_budget=4)
    assert made(images()).cores.shape[1] == made.num_prefix_tokens == 4
    made.budget = 2
    assert made(images()).cores.shape[1] == made.num_prefix_tokens == 2
    assert made(images(), budget=7).cores.shape[1] == 7
    assert model()(images()).cores.shape[1] == 8
