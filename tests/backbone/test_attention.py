"""Both forms of attention against dense attention under a mask, and maps against the formula."""

import copy
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from veca.backbone.attention import (
    Attention,
    CorePeripheryAttention,
    FullAttention,
    Layout,
    attend,
    contribution_shares,
)
from veca.backbone.config import BackboneConfig
from veca.backbone.cost import folds
from veca.backbone.rope import Periods, apply_rope, frequencies, patch_centers, rope_at

CONFIG = BackboneConfig(width=32, heads=2, budgets=(4, 8))
GRID = (3, 5)
PATCHES = 15


class Case(NamedTuple):
    """Inputs of one attention."""

    tokens: Tensor
    layout: Layout


def case(budget: int, dtype: torch.dtype = torch.float64, batch: int = 2) -> Case:
    torch.manual_seed(budget)
    device = torch.device("cpu")
    turns = frequencies(Periods(CONFIG.head_width, 100.0, 0.125), device, dtype)
    core_points = torch.rand(batch, budget, 2, dtype=dtype) * 2 - 1
    tokens = torch.randn(batch, budget + PATCHES, CONFIG.width, dtype=dtype)
    patch_rope = rope_at(patch_centers(GRID, device, dtype), turns)
    return Case(tokens, Layout(budget, GRID, rope_at(core_points, turns), patch_rope))


def attention(kind: type[Attention], dtype: torch.dtype = torch.float64) -> Attention:
    torch.manual_seed(1)
    made = kind(CONFIG).to(dtype)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.3)
    return made


def dense_weights(module: Attention, inputs: Case, *, patches_meet: bool) -> Tensor:
    """All tokens against all tokens, forbidden pairs set to minus infinity: slow and obvious."""
    tokens, (budget, _, core_rope, patch_rope, _) = inputs
    query, key = (
        part(tokens).unflatten(2, (CONFIG.heads, -1)) for part in (module.query, module.key)
    )
    query, key = (
        torch.cat(
            (apply_rope(x[:, :budget], core_rope), apply_rope(x[:, budget:], patch_rope)), dim=1
        )
        for x in (query, key)
    )
    is_patch = torch.arange(tokens.shape[1]) >= budget
    forbidden = is_patch[:, None] & is_patch[None, :] & (not patches_meet)
    weights = []
    for head in range(CONFIG.heads):
        scores = query[:, :, head] @ key[:, :, head].mT / math.sqrt(CONFIG.head_width)
        weights.append(scores.masked_fill(forbidden, -math.inf).softmax(-1))
    return torch.stack(weights, dim=1)


def dense(module: Attention, inputs: Case, *, patches_meet: bool) -> Tensor:
    weights = dense_weights(module, inputs, patches_meet=patches_meet)
    values = module.value(inputs.tokens).unflatten(2, (CONFIG.heads, -1))
    outputs = [weights[:, head] @ values[:, :, head] for head in range(CONFIG.heads)]
    return module.output(torch.cat(outputs, dim=-1))


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_weights_of_cores_and_of_patches_are_those_of_dense_attention(budget: int) -> None:
    module, inputs = attention(CorePeripheryAttention), case(budget)
    assert isinstance(module, CorePeripheryAttention)
    expected = dense_weights(module, inputs, patches_meet=False)
    torch.testing.assert_close(module.core_weights(*inputs), expected[:, :, :budget])
    torch.testing.assert_close(module.patch_weights(*inputs), expected[:, :, budget:, :budget])
    assert not expected[:, :, budget:, budget:].any()


@pytest.mark.parametrize("form", ["plain", "folded"])
@pytest.mark.parametrize("budget", [1, 3, 8])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-6), (torch.float32, 1e-5)])
def test_outputs_and_gradients_equal_dense_attention_under_the_core_periphery_mask(
    form: str, budget: int, dtype: torch.dtype, tolerance: float
) -> None:
    inputs = case(budget, dtype)
    module = attention(CorePeripheryAttention, dtype)
    oracle = copy.deepcopy(module)
    ours, theirs = (inputs.tokens.clone().requires_grad_() for _ in range(2))
    actual = getattr(module, form)(ours, inputs.layout).tokens
    expected = dense(oracle, inputs._replace(tokens=theirs), patches_meet=False)
    assert (actual - expected).abs().max() <= tolerance * expected.abs().max()

    direction = torch.randn_like(actual)
    gradients = [
        torch.autograd.grad((output * direction).sum(), [tokens, *owner.parameters()])
        for owner, output, tokens in ((module, actual, ours), (oracle, expected, theirs))
    ]
    for mine, other in zip(*gradients, strict=True):
        assert (mine - other).abs().max() <= tolerance * max(1.0, other.abs().max().item())


def test_full_attention_equals_dense_attention_without_a_mask() -> None:
    inputs = case(3)
    module = attention(FullAttention)
    torch.testing.assert_close(module(*inputs).tokens, dense(module, inputs, patches_meet=True))


def test_a_patch_is_blind_to_other_patches_and_to_itself_within_one_attention() -> None:
    inputs = case(2)
    module = attention(CorePeripheryAttention)
    assert isinstance(module, CorePeripheryAttention)
    tokens = inputs.tokens.clone()
    tokens[:, 5] += 1.0  # the fourth patch changes; only its own question can change its answer
    for form in (module.plain, module.folded):
        before, after = form(*inputs).tokens, form(tokens, inputs.layout).tokens
        others = [2, 3, 4, *range(6, 2 + PATCHES)]
        torch.testing.assert_close(after[:, others], before[:, others])
        assert not torch.allclose(after[:, :2], before[:, :2])

    # With nothing to ask, a patch gets the mean of the core values whatever it holds.
    nn.init.zeros_(module.query.weight)
    nn.init.zeros_(module.query.bias)
    after, before = module(tokens, inputs.layout).tokens, module(*inputs).tokens
    torch.testing.assert_close(after[:, 5], before[:, 5])


def test_attention_of_cores_sums_to_one_over_cores_and_patches() -> None:
    inputs = case(4)
    weights = attention(CorePeripheryAttention).core_weights(*inputs)
    assert weights.shape == (2, CONFIG.heads, 4, 4 + PATCHES)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


@pytest.mark.parametrize("form", ["plain", "folded"])
@pytest.mark.parametrize("budget", [1, 3, 8])
def test_reads_are_the_center_of_mass_of_what_cores_take_from_patches(
    form: str, budget: int
) -> None:
    inputs = case(budget)
    module = attention(CorePeripheryAttention)
    points = patch_centers(GRID, torch.device("cpu"), torch.float64)
    mixed = getattr(module, form)(inputs.tokens, inputs.layout._replace(patch_points=points))
    torch.testing.assert_close(mixed.tokens, getattr(module, form)(*inputs).tokens)

    taken = module.core_weights(*inputs)[..., budget:].mean(dim=1)  # over heads
    expected = (taken @ points) / taken.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(mixed.reads.double(), expected, atol=1e-6, rtol=1e-5)


def test_the_cheaper_form_is_taken_unless_one_is_asked_for() -> None:
    config = BackboneConfig(width=384, heads=6)
    module = CorePeripheryAttention(config)
    assert folds(config, 8)
    assert not folds(config, 64)
    assert module.is_folded(8)
    assert not module.is_folded(64)
    module.form = "plain"
    assert not module.is_folded(8)
    module.form = "folded"
    assert module.is_folded(64)


def test_a_replaced_projection_is_really_called() -> None:
    class Doubled(nn.Linear):
        """Stands for a LoRA or quantized layer: its weight alone is not what it computes."""

        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens) * 2

    module = attention(CorePeripheryAttention)
    assert isinstance(module, CorePeripheryAttention)
    module.form = "folded"
    inputs = case(3)
    plain = module(*inputs).tokens
    replaced = Doubled(CONFIG.width, CONFIG.width, dtype=torch.float64)
    replaced.load_state_dict(module.output.state_dict())
    module.output = replaced
    torch.testing.assert_close(module(*inputs).tokens, plain * 2)


@pytest.mark.parametrize("scale", [None, 0.1])
@pytest.mark.parametrize("largest", [0, 2**25])
def test_attention_in_bf16_equals_fp32_rounded_by_either_implementation(
    scale: float | None, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("veca.backbone.attention.MAX_MAP_SIZE", largest)
    query, key, value = torch.randn(2, 2, 5, 8), torch.randn(2, 2, 9, 8), torch.randn(2, 2, 9, 8)
    exact = attend(query, key, value, scale)
    torch.testing.assert_close(
        exact, torch.nn.functional.scaled_dot_product_attention(query, key, value, scale=scale)
    )
    rounded = attend(query.bfloat16(), key.bfloat16(), value.bfloat16(), scale)
    torch.testing.assert_close(rounded.float(), exact, atol=0.03, rtol=0.03)


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
