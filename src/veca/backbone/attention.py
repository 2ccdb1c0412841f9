"""Core-periphery attention and full attention.

Attention between cores and patches, in two forms that give the same numbers.

    cores   read cores and patches        C queries over C + N keys
    patches read cores only               N queries over C keys

so a block scores 2NC + C^2 pairs, and no patch ever meets another one (or itself).

The *plain* form projects values and outputs of all N patches. Both projections are linear and
carry no rotation, so they can change places with the weighted sums. The *folded* form lets cores
sum weighted tokens and projects the C sums, and projects the C core values to outputs before
patches mix them: two D x D products for each patch become two of D x HC. `cost.folds` says when
that is cheaper.

Shapes: B images, C cores, N patches, T = C + N tokens, D width, H heads, K channels of a head.

What a core takes from each token, measured by what arrives (paper, appendix A.9).

A weight alone misleads: a token with a small value contributes little however much of it is taken.
So the map of core i holds the norms of the vectors that token j adds to it,

    e_ij = sum over heads h of A_hij (v_hj W_o,h),      s_ij = |e_ij| / sum over j' of |e_ij'|.

The norms come from the H x H inner products of a token's head contributions, so that the (C, T, D)
vectors are never made.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.config import BackboneConfig
from veca.backbone.cost import ANCHOR_CHANNELS, folds
from veca.backbone.rope import Rope, apply_rope

Form = Literal["auto", "plain", "folded"]
"""How attention is computed: 'auto' takes the cheaper form for the budget at hand."""


LARGEST_MAP = 2**25
"""Weights that may be written out at once: 64 MB in bf16."""


class Mixed(NamedTuple):
    """What attention answers with."""

    tokens: Float[Tensor, "B T D"]

    reads: Float[Tensor, "B C 2"] | None
    """Center of mass of what each core took from the patches; None where nobody asked."""


def split(tokens: Tensor, budget: int, dim: int) -> tuple[Tensor, Tensor]:
    """Cores and patches of a dimension that holds both.

    Here and elsewhere in the model `narrow` and `split` stand for slices: Python's indexing does
    not run on the fake GPU tensors that the tests use.
    """
    cores, patches = tokens.split((budget, tokens.shape[dim] - budget), dim=dim)
    return cores, patches


def attend(
    query: Float[Tensor, "B H Q K"],
    key: Float[Tensor, "B H T K"],
    value: Float[Tensor, "B H T K"],
    scale: float | None = None,
) -> Float[Tensor, "B H Q K"]:
    """Scaled dot-product attention.

    On a CPU in bf16 two batched products are up to twice as fast as torch's fused kernel, and three
    to five times as fast backward (docs/decisions.md); they write a map of weights, so a large one
    is left to the fused kernel.
    """
    by_hand = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    if not by_hand or torch.compiler.is_compiling() or _map_size(query, key) > LARGEST_MAP:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    scores = (query * (scale or query.shape[3] ** -0.5)) @ key.transpose(-1, -2)
    return scores.softmax(dim=-1) @ value


def _map_size(query: Tensor, key: Tensor) -> int:
    """Weights that attention has."""
    return query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]


class Attention(nn.Module):
    """Projections that both kinds of attention share; cores come first among the tokens."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)

    def heads(self, channels: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """Channels dealt out to the heads."""
        return channels.unflatten(2, (self.config.heads, self.config.head_width))

    def turned(
        self, vectors: Float[Tensor, "B T D"], budget: int, core_rope: Rope, patch_rope: Rope
    ) -> tuple[Float[Tensor, "B H C K"], Float[Tensor, "B H N K"]]:
        """Queries or keys of the cores and of the patches, each turned by its own place."""
        cores, patches = split(self.heads(vectors), budget, dim=1)
        turned_patches = apply_rope(patches, patch_rope)
        return apply_rope(cores, core_rope).transpose(1, 2), turned_patches.transpose(1, 2)

    def core_weights(
        self, tokens: Float[Tensor, "B T D"], budget: int, core_rope: Rope, patch_rope: Rope
    ) -> Float[Tensor, "B H C T"]:
        """How much each core takes from each token; sums to one over tokens."""
        cores = self.heads(self.query(tokens.narrow(1, 0, budget)))
        keys = self.turned(self.key(tokens), budget, core_rope, patch_rope)
        return self.weights(apply_rope(cores, core_rope).transpose(1, 2), *keys)

    def weights(
        self,
        query: Float[Tensor, "B H C K"],
        core_key: Float[Tensor, "B H C K"],
        patch_key: Float[Tensor, "B H N K"],
    ) -> Float[Tensor, "B H C T"]:
        """Softmax of the cores' scores over cores and patches together."""
        query = query * self.config.head_width**-0.5
        scores = (query @ core_key.transpose(-1, -2), query @ patch_key.transpose(-1, -2))
        return torch.cat(scores, dim=-1).softmax(dim=-1)


class CorePeripheryAttention(Attention):
    """VECA's attention: cores read everything, patches read cores."""

    form: Form = "auto"

    def forward(
        self,
        tokens: Float[Tensor, "B T D"],
        budget: int,
        core_rope: Rope,
        patch_rope: Rope,
        patch_points: Float[Tensor, "N 2"] | None = None,
    ) -> Mixed:
        """Mix tokens, the first `budget` of which are cores, in the form that costs less.

        With `patch_points` the answer tells where each core's attention lies, too.
        """
        form = self.folded if self.is_folded(budget) else self.plain
        return form(tokens, budget, core_rope, patch_rope, patch_points)

    def is_folded(self, budget: int) -> bool:
        """Whether a call with this many cores is computed in the folded form.

        Projections that were replaced (by LoRA or quantized ones, say) are called as they are,
        which only the plain form does.
        """
        if type(self.value) is not nn.Linear or type(self.output) is not nn.Linear:
            return False
        return folds(self.config, budget) if self.form == "auto" else self.form == "folded"

    def plain(
        self,
        tokens: Float[Tensor, "B T D"],
        budget: int,
        core_rope: Rope,
        patch_rope: Rope,
        patch_points: Float[Tensor, "N 2"] | None = None,
    ) -> Mixed:
        """The paper's form: project every token, then two ordinary attentions."""
        queries = self.turned(self.query(tokens), budget, core_rope, patch_rope)
        keys = self.turned(self.key(tokens), budget, core_rope, patch_rope)
        values = self.heads(self.value(tokens)).transpose(1, 2)

        if patch_points is None:
            cores = attend(queries[0], torch.cat(keys, dim=2), values)
            reads = None
        else:
            cores, reads = self._read_with_anchors(
                queries[0], torch.cat(keys, dim=2), values, _anchors(patch_points)
            )
        patches = attend(queries[1], keys[0], values.narrow(2, 0, budget))
        mixed = torch.cat((cores, patches), dim=2).transpose(1, 2).flatten(2)
        return Mixed(self.output(mixed), reads)

    def folded(
        self,
        tokens: Float[Tensor, "B T D"],
        budget: int,
        core_rope: Rope,
        patch_rope: Rope,
        patch_points: Float[Tensor, "N 2"] | None = None,
    ) -> Mixed:
        """The same numbers with no value or output projection of a patch."""
        core_query, patch_query = self.turned(self.query(tokens), budget, core_rope, patch_rope)
        core_key, patch_key = self.turned(self.key(tokens), budget, core_rope, patch_rope)

        taken = self.weights(core_query, core_key, patch_key)  # (B, H, C, T)
        cores = self._project_sums(taken, tokens)
        scores = (core_key * self.config.head_width**-0.5) @ patch_query.transpose(-1, -2)
        given = scores.softmax(dim=2)  # (B, H, C, N), over the cores
        patches = self._mix_outputs(given, self.heads(self.value(tokens.narrow(1, 0, budget))))
        reads = None
        if patch_points is not None:
            from_patches = split(taken, budget, dim=3)[1].flatten(1, 2)  # (B, HC, N)
            sums = from_patches @ _anchors(patch_points).to(from_patches.dtype)
            reads = _centers(sums.unflatten(1, taken.shape[1:3]))
        return Mixed(torch.cat((cores, patches), dim=1), reads)

    def _read_with_anchors(
        self,
        query: Float[Tensor, "B H C K"],
        key: Float[Tensor, "B H T K"],
        values: Float[Tensor, "B H T K"],
        anchors: Float[Tensor, "N 3"],
    ) -> tuple[Float[Tensor, "B H C K"], Float[Tensor, "B C 2"]]:
        """What cores read, and where: anchors ride along as value channels, no map is made.

        Fused kernels want queries, keys and values of one width, so the first two get channels of
        zeros, which change no score.
        """
        cores = values.shape[2] - anchors.shape[0]
        padded = F.pad(anchors, (0, ANCHOR_CHANNELS - anchors.shape[1], cores, 0))  # (T, 8)
        rider = padded.to(values.dtype).expand(*values.shape[:2], -1, -1)
        found = attend(
            F.pad(query, (0, ANCHOR_CHANNELS)),
            F.pad(key, (0, ANCHOR_CHANNELS)),
            torch.cat((values, rider), dim=3),
            scale=self.config.head_width**-0.5,
        )
        read, sums = found.split((values.shape[3], ANCHOR_CHANNELS), dim=3)
        return read, _centers(sums.narrow(3, 0, anchors.shape[1]))

    def _project_sums(
        self, weights: Float[Tensor, "B H C T"], tokens: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B C D"]:
        """What cores read: (A Z) W_v, since weights that sum to one pass the bias through."""
        sums = (weights.flatten(1, 2) @ tokens).unflatten(1, weights.shape[1:3])  # (B, H, C, D)
        per_head = self.value.weight.unflatten(0, (self.config.heads, -1))  # (H, K, D)
        read = torch.einsum("bhcd,hkd->bchk", sums, per_head).flatten(2)
        return self.output(read + self.value.bias.to(read.dtype))

    def _mix_outputs(
        self, weights: Float[Tensor, "B H C N"], values: Float[Tensor, "B C H K"]
    ) -> Float[Tensor, "B N D"]:
        """What patches read: one product of weights and core values already taken through W_o."""
        per_head = self.output.weight.unflatten(1, (self.config.heads, -1))  # (D, H, K)
        outputs = torch.einsum("bchk,dhk->bhcd", values, per_head)
        mixed = weights.flatten(1, 2).transpose(1, 2) @ outputs.flatten(1, 2)
        return mixed + self.output.bias.to(mixed.dtype)


class FullAttention(Attention):
    """The baseline: every token reads every token."""

    def forward(
        self,
        tokens: Float[Tensor, "B T D"],
        budget: int,
        core_rope: Rope,
        patch_rope: Rope,
        patch_points: Float[Tensor, "N 2"] | None = None,
    ) -> Mixed:
        """Mix tokens, the first `budget` of which are prefix tokens, which stand nowhere."""
        del patch_points
        queries = self.turned(self.query(tokens), budget, core_rope, patch_rope)
        keys = self.turned(self.key(tokens), budget, core_rope, patch_rope)
        values = self.heads(self.value(tokens)).transpose(1, 2)

        mixed = attend(torch.cat(queries, dim=2), torch.cat(keys, dim=2), values)
        return Mixed(self.output(mixed.transpose(1, 2).flatten(2)), None)


def _anchors(patch_points: Float[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
    """Where patches are, and a one that counts how much of a core's attention they get."""
    return F.pad(patch_points, (0, 1), value=1.0)


def _centers(sums: Float[Tensor, "B H C 3"]) -> Float[Tensor, "B C 2"]:
    """Centers of mass over all heads, from sums of weighted anchors."""
    places, mass = sums.float().sum(dim=1).split((2, 1), dim=2)
    return places / mass.clamp(min=torch.finfo(torch.float32).tiny)


def contribution_shares(
    attention: Attention, tokens: Float[Tensor, "B T D"], weights: Float[Tensor, "B H C T"]
) -> Float[Tensor, "B C T"]:
    """Shares of tokens in what each core reads; they sum to one over tokens.

    Norms are taken in fp32 also where the model computes in bf16.
    """
    values = attention.heads(attention.value(tokens))  # (B, T, H, K)
    per_head = attention.output.weight.unflatten(1, (attention.config.heads, -1))  # (D, H, K)
    added = torch.einsum("bthk,dhk->bthd", values, per_head).float()
    with torch.autocast(added.device.type, enabled=False):
        products = added @ added.transpose(-1, -2)  # (B, T, H, H)
        mixed = torch.einsum("bhct,bthg->bgct", weights.float(), products)
    squared_norms = (mixed * weights.float()).sum(dim=1)
    norms = squared_norms.clamp(min=0).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)
