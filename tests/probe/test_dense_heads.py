"""Heads with their norm folded in are what torch's layers are, in training and after it."""

import pytest
import torch
from torch import Tensor, nn

from tests.probe.dense_scenes import ALONE
from veca.probe.dense import (
    DenseHead,
    FeatureNorm,
    LearningHead,
    drop_channels,
    head_from,
    maps_of,
)
from veca.probe.models import FrozenFeatures

PATCH, IMAGE, OUTPUTS = 5, 3, 4


def observed(pictures: int = 6, seed: int = 0) -> FrozenFeatures:
    draw = torch.Generator().manual_seed(seed)
    patches = torch.randn(pictures, PATCH, 3, 4, generator=draw) * 2 + 1
    return FrozenFeatures(torch.randn(pictures, IMAGE, generator=draw) - 2, patches)


def joined(seen: FrozenFeatures, append: bool) -> Tensor:
    """The image feature repeated at every patch, after the patch feature."""
    if not append:
        return seen.patches
    image = seen.image[..., None, None].expand(-1, -1, *seen.patches.shape[2:])
    return torch.cat((seen.patches, image), 1)


class Layers(nn.Module):
    """The head as anyone would write it."""

    def __init__(self, head: LearningHead, width: int, norm: str) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width) if norm == "batch" else nn.Identity()
        self.linear = nn.Conv2d(width, OUTPUTS, 1)
        self.linear.weight.data = head.weight.detach()[..., None, None].clone()
        self.linear.bias.data = head.bias.detach().clone()  # type: ignore[union-attr]

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.linear(self.norm(values))
        return found


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_a_head_tells_and_learns_what_layers_would(append: bool, norm: str) -> None:
    width = PATCH + IMAGE * append
    head = LearningHead(OUTPUTS, width, norm == "batch", seed=1)
    layers = Layers(head, width, norm)
    normalize = FeatureNorm(width, norm, ALONE)
    ours = torch.optim.AdamW(head.parameters(), lr=0.05, weight_decay=0.1)
    theirs = torch.optim.AdamW(layers.parameters(), lr=0.05, weight_decay=0.1)
    for step in range(5):
        batch = observed(seed=step)
        goal = torch.randn(6, OUTPUTS, 3, 4)
        weight, bias = head.effective()
        found = maps_of(normalize(batch, append, None), weight, bias, slice(None))
        expected = layers(joined(batch, append))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        (found - goal).square().sum().backward()
        (expected - goal).square().sum().backward()
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    layers.eval()
    new = observed(seed=99)
    finished = normalize.finished(*head.effective(), PATCH)
    torch.testing.assert_close(
        finished.maps(new), layers(joined(new, append)), rtol=1e-4, atol=1e-4
    )


def test_some_pictures_can_be_told_alone() -> None:
    head = LearningHead(OUTPUTS, PATCH + IMAGE, normalized=True, seed=0)
    seen = FeatureNorm(PATCH + IMAGE, "batch", ALONE)(observed(), True, None)
    weight, bias = head.effective()
    everything = maps_of(seen, weight, bias, slice(None))
    torch.testing.assert_close(maps_of(seen, weight, bias, slice(2, 4)), everything[2:4])


def test_dropped_channels_are_zero_before_the_norm() -> None:
    batch, kept = observed(), drop_channels(6, PATCH + IMAGE, 0.5, seed=3)
    seen = FeatureNorm(PATCH + IMAGE, "batch", ALONE)(batch, True, kept)
    values = joined(batch, append=True) * kept[..., None, None]
    expected = nn.BatchNorm2d(PATCH + IMAGE)(values)
    torch.testing.assert_close(
        seen.patches, expected[:, :PATCH].flatten(2).transpose(0, 1), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(seen.image, expected[:, PATCH:, 0, 0].T, rtol=1e-4, atol=1e-5)


def test_channels_are_dropped_by_their_share_and_made_up_for() -> None:
    kept = drop_channels(200, 300, 0.1, seed=0)
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.9])
    assert float(kept.mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(kept, drop_channels(200, 300, 0.1, seed=0))
    assert not torch.equal(kept, drop_channels(200, 300, 0.1, seed=1))


def test_first_weights_are_small_and_follow_from_the_seed() -> None:
    head = LearningHead(200, 300, normalized=True, seed=4)
    assert float(head.weight.detach().std()) == pytest.approx(0.01, rel=0.02)
    assert not head.bias.any()
    assert torch.equal(head.weight, LearningHead(200, 300, normalized=True, seed=4).weight)


@pytest.mark.parametrize("width", [PATCH, PATCH + IMAGE])
def test_a_finished_head_comes_back_from_its_tensors_and_facts(width: int) -> None:
    head = DenseHead(weight=torch.randn(4, width), bias=torch.randn(4), patch_width=PATCH)
    again = head_from(head.tensors(), head.facts()).to(torch.device("cpu"))
    assert torch.equal(again.maps(observed()), head.maps(observed()))
