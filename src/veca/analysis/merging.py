"""Token merging (ToMe): the rival that needs no training, here on the full-attention twin.

After the attention of each layer, the r most similar pairs of patches become one token each, so
that later layers have fewer (Bolya et al., "Token Merging: Your ViT But Faster", ICLR 2023):

* Patches are dealt out alternately into two sets. Each of the first set finds its most similar one
  in the second, by the cosine of their keys, averaged over heads; the r best pairs merge.
* A merged token is the average of its patches, and counts as many in every attention it is read
  by: the logarithm of its size is added to its score (proportional attention).
* At the end each patch gets the token that it went into, so that features are dense again.

The paper leaves open what its networks do not have. Our choices: similarity is taken from keys
before rotary, since it is a matter of content; a merged token stands at the mean of its patches'
centers; prefix tokens take no part in merging.

Nothing of the twin is changed or copied: its modules are called in its own order, and with nothing
to merge the numbers are the same to the bit.

Shapes: B images, N patches, n tokens that are left of them, P prefix tokens, T = P + n,
        D width, H heads, K channels of a head.
"""

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from veca.backbone import rope as rotary
from veca.backbone.attention import Attention
from veca.backbone.config import BackboneConfig
from veca.backbone.cost import Cost, parameters, plain_flops
from veca.backbone.features import Features
from veca.backbone.model import VECA, State
from veca.backbone.rope import patch_centers

LEAST_PATCHES = 16
"""Tokens of patches that are always left: a picture in fewer is none."""


class Merged(NamedTuple):
    """What the tokens of patches stand for."""

    points: Float[Tensor, "B n 2"]
    """Mean center of the patches in a token."""

    sizes: Float[Tensor, "B n 1"]
    """How many patches are in a token."""

    owner: Int[Tensor, "B N"]
    """The token that each patch went into."""


class Matching(NamedTuple):
    """Which patches of the first set stay, and which join which one of the second set."""

    stays: Int[Tensor, "B s"]
    leaves: Int[Tensor, "B r"]
    joins: Int[Tensor, "B r"]
    """For each that leaves, where it goes, counted within the second set."""


class MergedTwin:
    """A full-attention model that merges the most similar patches in each layer."""

    def __init__(self, twin: VECA, rate: int, least: int = LEAST_PATCHES) -> None:
        """Merge `rate` pairs in each layer, as ToMe's r, as long as `least` patches are left."""
        if twin.config.attention != "full":
            raise ValueError(
                f"the model has {twin.config.attention} attention, but tokens are merged in a "
                "full-attention one; build it with attention='full'."
            )
        if rate < 0 or least < 1:
            raise ValueError(
                f"rate={rate} with least={least} cannot be merged by; use a rate of 0 or more and "
                "leave at least 1 patch."
            )
        self.twin, self.rate, self.least = twin, rate, least

    def __call__(self, images: Float[Tensor, "B channels height width"]) -> Features:
        """Encode images; every patch gets features."""
        twin = self.twin
        state = twin.enter(images, None)
        merged = _unmerged(state)
        counts = patches_left(merged.owner.shape[1], self.rate, twin.config.layers, self.least)
        for layer, (before, after) in enumerate(itertools.pairwise(counts)):
            state, merged = self._advance(state, merged, layer, before - after)
        features = twin.leave(state)
        return features._replace(patches=_rows(features.patches, merged.owner))

    def _advance(
        self, state: State, merged: Merged, layer: int, pairs: int
    ) -> tuple[State, Merged]:
        """One layer: attention, merging, feed-forward part."""
        block, prefix = self.twin.block_of(layer), state.budget
        mixed, keys = self._attend(
            block.attention, block.attention_norm(state.tokens), state, merged
        )
        tokens = state.tokens + mixed
        if pairs:
            matching = match(keys[:, prefix:], pairs)
            patches, merged = merge(tokens[:, prefix:], merged, matching)
            tokens = torch.cat((tokens[:, :prefix], patches), dim=1)
            state = state._replace(patch_rope=_turn_at(self.twin.config, merged.points))
        units = self.twin.config.hidden
        tokens = tokens + block.feedforward(block.feedforward_norm(tokens), units)
        return state._replace(tokens=tokens), merged

    def _attend(
        self, attention: Attention, tokens: Float[Tensor, "B T D"], state: State, merged: Merged
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T K"]]:
        """The twin's attention, with larger tokens counting more; and keys to compare tokens by."""
        turns = _turn_at(self.twin.config, state.core_points), state.patch_rope
        key = attention.key(tokens)
        queries = attention.turned(attention.query(tokens), state.budget, *turns)
        keys = attention.turned(key, state.budget, *turns)
        values = attention.heads(attention.value(tokens)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            torch.cat(queries, dim=2),
            torch.cat(keys, dim=2),
            values,
            attn_mask=_log_sizes(merged, state.budget, tokens.dtype),
        )
        return attention.output(mixed.transpose(1, 2).flatten(2)), attention.heads(key).mean(2)


def patches_left(patches: int, rate: int, layers: int, least: int = LEAST_PATCHES) -> list[int]:
    """How many tokens of patches enter each layer, and leave the last one.

    A layer merges at most half of them, since each of the first set goes into one of the second.
    """
    counts = [patches]
    for _ in range(layers):
        count = counts[-1]
        counts.append(count - min(rate, count // 2, max(count - least, 0)))
    return counts


def match(keys: Float[Tensor, "B n K"], pairs: int) -> Matching:
    """The `pairs` most similar pairs of a patch at an even and one at an odd place."""
    keys = F.normalize(keys, dim=-1)
    similarity = keys[:, ::2] @ keys[:, 1::2].transpose(1, 2)
    best, partner = similarity.max(dim=-1)
    order = best.argsort(dim=-1, descending=True, stable=True)
    leaves, stays = order[:, :pairs], order[:, pairs:].sort(dim=-1).values
    return Matching(stays, leaves, partner.gather(1, leaves))


def merge(
    tokens: Float[Tensor, "B n D"], merged: Merged, matching: Matching
) -> tuple[Float[Tensor, "B m D"], Merged]:
    """Tokens after merging: those of the first set that stay, then the second set."""
    sizes = _gathered(merged.sizes, matching)
    averages = _gathered(tokens * merged.sizes.to(tokens.dtype), matching) / sizes.to(tokens.dtype)
    points = _gathered(merged.points * merged.sizes, matching) / sizes
    owner = _new_places(merged.sizes.shape[1], matching).gather(1, merged.owner)
    return averages, Merged(points, sizes, owner)


def merged_cost(
    config: BackboneConfig, grid: tuple[int, int], rate: int, least: int = LEAST_PATCHES
) -> Cost:
    """What one image costs with merging, matching included; pairs are the mean over blocks."""
    prefix, width = config.prefix_tokens, config.width
    counts = patches_left(grid[0] * grid[1], rate, config.layers, least)
    flops = 2 * counts[0] * width * config.in_channels * config.patch_size**2
    for before, after in itertools.pairwise(counts):
        flops += plain_flops(config, before, prefix) + 6 * (prefix + after) * width * config.hidden
        if after < before:
            flops += 2 * (before - before // 2) * (before // 2) * config.head_width
    entering = counts[:-1]
    return Cost(
        pairs=round(sum((prefix + count) ** 2 for count in entering) / len(entering)),
        attention_flops=round(
            sum(plain_flops(config, count, prefix) for count in entering) / len(entering)
        ),
        flops=flops,
        parameters=parameters(config),
    )


def _unmerged(state: State) -> Merged:
    """Every patch a token of its own."""
    batch, device = state.tokens.shape[0], state.tokens.device
    points = patch_centers(state.grid, device, state.core_state.dtype).expand(batch, -1, -1)
    owner = torch.arange(points.shape[1], device=device).expand(batch, -1)
    return Merged(points, torch.ones_like(points[..., :1]), owner)


def _log_sizes(merged: Merged, prefix: int, dtype: torch.dtype) -> Float[Tensor, "B 1 1 T"] | None:
    """What is added to scores; nothing while all tokens are single patches."""
    if merged.sizes.shape[1] == merged.owner.shape[1]:
        return None
    logs = F.pad(merged.sizes.squeeze(-1).log(), (prefix, 0))
    return logs.to(dtype)[:, None, None]


def _turn_at(config: BackboneConfig, points: Float[Tensor, "B n 2"]) -> rotary.Rope:
    """How tokens at these points are turned."""
    periods = rotary.Periods(config.head_width, config.rotary_base, config.rotary_still)
    return rotary.rope_at(points, rotary.frequencies(periods, points.device, points.dtype))


def _rows(
    values: Float[Tensor, "B n width"], rows: Int[Tensor, "B m"]
) -> Float[Tensor, "B m width"]:
    """Rows of each image by their numbers."""
    return values.gather(1, rows.unsqueeze(-1).expand(-1, -1, values.shape[2]))


def _gathered(values: Float[Tensor, "B n width"], matching: Matching) -> Float[Tensor, "B m width"]:
    """What stays of the first set, then the second set with what joined it added."""
    first, second = values[:, ::2], values[:, 1::2]
    joins = matching.joins.unsqueeze(-1).expand(-1, -1, values.shape[2])
    sums = second.scatter_add(1, joins, _rows(first, matching.leaves))
    return torch.cat((_rows(first, matching.stays), sums), dim=1)


def _new_places(count: int, matching: Matching) -> Int[Tensor, "B n"]:
    """Where each token of before is found after merging."""
    batch, staying = matching.stays.shape
    places = matching.stays.new_empty(batch, count)
    numbers = torch.arange(count, device=places.device).expand(batch, -1)
    places[:, 1::2] = staying + numbers[:, : count // 2]
    evens = places[:, ::2]
    evens.scatter_(1, matching.stays, numbers[:, :staying])
    evens.scatter_(1, matching.leaves, staying + matching.joins)
    return places
