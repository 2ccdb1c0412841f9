"""Token merging against the twin it wraps, and against loops that are slow and obvious."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from veca.analysis.merging import (
    LEAST_PATCHES,
    Matching,
    Merged,
    MergedTwin,
    match,
    merge,
    merged_cost,
    patches_left,
)
from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA

TINY = BackboneConfig(
    layers=3, width=32, heads=2, patch_size=4, attention="full", prefix_tokens=2
)  # fmt: skip


def twin(**fields: Any) -> VECA:
    """A twin whose weights are large enough for attention to matter."""
    model = VECA(replace(TINY, **fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def singles(count: int) -> Merged:
    """Tokens that are single patches."""
    owner = torch.arange(count).expand(2, -1)
    return Merged(torch.randn(2, count, 2), torch.ones(2, count, 1), owner)


@torch.no_grad()
def test_with_nothing_to_merge_the_twin_answers_to_the_bit() -> None:
    model, images = twin(), torch.randn(2, 3, 24, 32)
    expected, found = model(images), MergedTwin(model, 0)(images)
    for name in ("cores", "patches", "core_points", "grid"):
        assert torch.equal(
            torch.as_tensor(getattr(found, name)), torch.as_tensor(getattr(expected, name))
        )


@torch.no_grad()
@pytest.mark.parametrize("rate", [1, 5, 100])
def test_every_patch_gets_features_back(rate: int) -> None:
    model, images = twin(), torch.randn(2, 3, 28, 20)
    expected, found = model(images), MergedTwin(model, rate, least=3)(images)
    assert found.patches.shape == expected.patches.shape
    assert found.patch_map.shape == (2, 32, 7, 5)
    assert torch.isfinite(found.patches).all()
    assert not torch.allclose(found.patches, expected.patches)
    distinct = patches_left(35, rate, TINY.layers, 3)[-1]
    assert all(len(image.unique(dim=0)) == distinct for image in found.patches)


@torch.no_grad()
def test_patches_that_are_alike_merge_without_a_trace() -> None:
    """Nothing is lost, in prefix tokens neither, if larger tokens weigh what their patches did."""
    model = twin(rotary_still=1.0)  # without rotary, equal patches stay equal
    images = torch.randn(1, 3, 4, 4).repeat(1, 1, 6, 6)
    expected, found = model(images), MergedTwin(model, 10, least=2)(images)
    torch.testing.assert_close(found.patches, expected.patches, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.cores, expected.cores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [9, 10])
def test_matching_finds_the_most_similar_pairs_as_a_search_over_all_does(count: int) -> None:
    keys = torch.randn(1, count, 4)
    matching = match(keys, 3)
    best = []
    for even in range(0, count, 2):
        similar = [
            (torch.cosine_similarity(keys[0, even], keys[0, odd], dim=0).item(), odd // 2)
            for odd in range(1, count, 2)
        ]
        best.append((*max(similar), even // 2))
    chosen = sorted(best, reverse=True)[:3]
    assert matching.leaves[0].tolist() == [even for *_, even in chosen]
    assert matching.joins[0].tolist() == [odd for _, odd, _ in chosen]
    left = set(range((count + 1) // 2)) - {even for *_, even in chosen}
    assert matching.stays[0].tolist() == sorted(left)


def merged_by_hand(patches: Tensor, owner: Tensor, count: int) -> Tensor:
    """Means over the patches that each token owns."""
    return torch.stack([patches[owner == token].mean(dim=0) for token in range(count)])


@pytest.mark.parametrize("count", [15, 16])
def test_merged_tokens_are_the_plain_averages_of_all_their_patches(count: int) -> None:
    patches, state = torch.randn(2, count, 5), singles(count)
    centers, tokens = state.points, patches
    for pairs in (4, 3, 2):
        tokens, state = merge(tokens, state, match(tokens, pairs))
    for image in range(2):
        owner, left = state.owner[image], tokens.shape[1]
        assert left == count - 9
        torch.testing.assert_close(tokens[image], merged_by_hand(patches[image], owner, left))
        torch.testing.assert_close(state.points[image], merged_by_hand(centers[image], owner, left))
        assert owner.bincount().tolist() == state.sizes[image].flatten().tolist()


def test_sizes_sum_to_the_number_of_patches() -> None:
    state, tokens = singles(20), torch.randn(2, 20, 5)
    for pairs in (10, 5, 2, 1):
        tokens, state = merge(tokens, state, match(tokens, pairs))
        assert state.sizes.sum(dim=(1, 2)).tolist() == [20, 20]


def test_two_that_join_the_same_token_both_count() -> None:
    matching = Matching(
        stays=torch.tensor([[2]]), leaves=torch.tensor([[0, 1]]), joins=torch.tensor([[1, 1]])
    )
    state = Merged(torch.zeros(1, 6, 2), torch.ones(1, 6, 1), torch.arange(6)[None])
    tokens, after = merge(torch.arange(6.0).reshape(1, 6, 1), state, matching)
    assert tokens.flatten().tolist() == pytest.approx([4, 1, (0 + 2 + 3) / 3, 5])
    assert after.sizes.flatten().tolist() == [1, 1, 3, 1]
    assert after.owner[0].tolist() == [2, 1, 2, 2, 0, 3]


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (0, [100, 100, 100, 100, 100]),
        (10, [100, 90, 80, 70, 60]),
        (40, [100, 60, 30, 20, 20]),
        (9999, [100, 50, 25, 20, 20]),
    ],
)
def test_patches_never_fall_below_the_floor(rate: int, expected: list[int]) -> None:
    assert patches_left(100, rate, layers=4, least=20) == expected


def test_a_picture_smaller_than_the_floor_is_left_whole() -> None:
    assert patches_left(LEAST_PATCHES - 1, 50, layers=2) == [LEAST_PATCHES - 1] * 3


@pytest.mark.parametrize("rate", [0, 7, 1000])
def test_flops_are_what_torch_counts(rate: int) -> None:
    model, counter = twin(), FlopCounterMode(display=False)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        MergedTwin(model, rate)(torch.randn(1, 3, 28, 28))
    assert counter.get_total_flops() == merged_cost(TINY, (7, 7), rate).flops


def test_without_merging_the_cost_is_that_of_the_twin() -> None:
    assert merged_cost(TINY, (8, 8), 0) == twin().cost(32, 32)


def test_a_model_with_cores_is_refused() -> None:
    with pytest.raises(ValueError, match="build it with attention='full'"):
        MergedTwin(VECA(BackboneConfig(layers=1, width=32, heads=2)), 4)


@pytest.mark.parametrize(("rate", "least"), [(-1, 16), (4, 0)])
def test_rates_that_mean_nothing_are_refused(rate: int, least: int) -> None:
    with pytest.raises(ValueError, match="use a rate of 0 or more"):
        MergedTwin(twin(), rate, least)
