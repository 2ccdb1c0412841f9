"""Core-periphery attention in two forms, full attention, and maps of what cores read.

    cores   read cores and patches        C queries over C + N keys
    patches read cores only               N queries over C keys

so a block scores 2NC + C^2 pairs, and no patch attends to another one (or to itself).

The *plain* form projects values and outputs of all N patches. Both projections are linear and
without rotation, so they can trade places with the weighted sums: in the *folded* form cores sum
weighted tokens and project the C sums, and the C core values are projected to outputs before
patches mix them. Two D x D products for each patch become two of D x HC. Both forms compute the
same function; `cost.folds` decides which is cheaper.

Shapes: B images, C cores, N patches, T = C + N tokens, D width, H heads, K channels of a head.
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
"""How attention is computed: 'auto' takes the cheaper form for the given budget."""

MAX_MAP_SIZE = 2**25
"""Attention weights that may be materialized at once: 64 MB in bf16."""


Tokens = Float[Tensor, "B T D"]


class Layout(NamedTuple):
    """Which tokens are cores, and where all tokens are; the same for a whole layer."""

    budget: int
    """Cores; they come first among the tokens."""
    grid: tuple[int, int]
    """Rows and columns of patches."""
    core_rope: Rope
    patch_rope: Rope
    patch_points: Float[Tensor, "N 2"] | None = None
    """Centers of the patches, for cores that move toward what they read."""


class Mixed(NamedTuple):
    """Tokens after a layer or its attention."""

    tokens: Tokens
    reads: Float[Tensor, "B C 2"] | None
    """Center of mass of each core's attention on patches; None without `patch_points`."""


def split_cores(tokens: Tensor, budget: int, dim: int) -> tuple[Tensor, Tensor]:
    """Cores and patches of a dimension that holds both.

    Here and elsewhere `narrow` and `split` replace slices, because indexing does not run on the
    fake GPU tensors of the tests.
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

    On a CPU in bf16 two batched products are up to twice as fast as torch's fused kernel forward,
    and three to five times as fast backward (docs/decisions.md). They materialize the attention
    weights, so large ones are left to the fused kernel.
    """
    map_size = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    unfused = query.dtype == torch.bfloat16 and query.device.type == "cpu"
    if not unfused or torch.compiler.is_compiling() or map_size > MAX_MAP_SIZE:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    scores = (query * (scale or query.shape[3] ** -0.5)) @ key.transpose(-1, -2)
    return scores.softmax(dim=-1) @ value


class Attention(nn.Module):
    """Projections that both kinds of attention share."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.output = nn.Linear(config.width, config.width)

    def split_heads(self, channels: Tokens) -> Float[Tensor, "B T H K"]:
        """Divide channels among the heads."""
        return channels.unflatten(2, (self.config.heads, self.config.head_width))

    def rotate_qk(
        self, vectors: Tokens, layout: Layout
    ) -> tuple[Float[Tensor, "B H C K"], Float[Tensor, "B H N K"]]:
        """Queries or keys of cores and of patches, each rotated by its position."""
        cores, patches = split_cores(self.split_heads(vectors), layout.budget, dim=1)
        patches = apply_rope(patches, layout.patch_rope)
        return apply_rope(cores, layout.core_rope).transpose(1, 2), patches.transpose(1, 2)

    def core_weights(self, tokens: Tokens, layout: Layout) -> Float[Tensor, "B H C T"]:
        """Attention weights of cores over all tokens; they sum to one over tokens."""
        cores = self.split_heads(self.query(tokens.narrow(1, 0, layout.budget)))
        keys = self.rotate_qk(self.key(tokens), layout)
        return self.softmax_weights(apply_rope(cores, layout.core_rope).transpose(1, 2), *keys)

    def softmax_weights(
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

    def forward(self, tokens: Tokens, layout: Layout) -> Mixed:
        """Mix tokens in the cheaper form."""
        form = self.folded if self.is_folded(layout.budget) else self.plain
        return form(tokens, layout)

    def is_folded(self, budget: int) -> bool:
        """Whether a call with this many cores uses the folded form.

        Replaced projections (LoRA, quantized) must be called as modules, which only the plain form
        does.
        """
        if type(self.value) is not nn.Linear or type(self.output) is not nn.Linear:
            return False
        return folds(self.config, budget) if self.form == "auto" else self.form == "folded"

    def patch_weights(self, tokens: Tokens, layout: Layout) -> Float[Tensor, "B H N C"]:
        """Attention weights of patches over cores; they sum to one over cores."""
        patch_query = self.rotate_qk(self.query(tokens), layout)[1]
        core_key = self.split_heads(self.key(tokens.narrow(1, 0, layout.budget)))
        core_key = apply_rope(core_key, layout.core_rope).transpose(1, 2)
        scores = (patch_query * self.config.head_width**-0.5) @ core_key.transpose(-1, -2)
        return scores.softmax(dim=-1)

    def plain(self, tokens: Tokens, layout: Layout) -> Mixed:
        """The paper's form: project every token, then two ordinary attentions."""
        core_query, patch_query = self.rotate_qk(self.query(tokens), layout)
        core_key, patch_key = self.rotate_qk(self.key(tokens), layout)
        values = self.split_heads(self.value(tokens)).transpose(1, 2)
        keys = torch.cat((core_key, patch_key), dim=2)

        if layout.patch_points is None:
            cores, reads = attend(core_query, keys, values), None
        else:
            cores, reads = self._attend_with_reads(core_query, keys, values, layout.patch_points)
        patches = attend(patch_query, core_key, values.narrow(2, 0, layout.budget))
        mixed = torch.cat((cores, patches), dim=2).transpose(1, 2).flatten(2)
        return Mixed(self.output(mixed), reads)

    def folded(self, tokens: Tokens, layout: Layout) -> Mixed:
        """The same function without a value or output projection of any patch."""
        core_query, patch_query = self.rotate_qk(self.query(tokens), layout)
        core_key, patch_key = self.rotate_qk(self.key(tokens), layout)

        weights = self.softmax_weights(core_query, core_key, patch_key)  # (B, H, C, T)
        cores = self._project_sums(weights, tokens)
        scores = (core_key * self.config.head_width**-0.5) @ patch_query.transpose(-1, -2)
        core_values = self.split_heads(self.value(tokens.narrow(1, 0, layout.budget)))
        patches = self._mix_outputs(scores.softmax(dim=2), core_values)  # softmax over cores

        reads = None
        if layout.patch_points is not None:
            on_patches = split_cores(weights, layout.budget, dim=3)[1].flatten(1, 2)  # (B, HC, N)
            sums = on_patches @ _anchors(layout.patch_points).to(on_patches.dtype)
            reads = _centers(sums.unflatten(1, weights.shape[1:3]))
        return Mixed(torch.cat((cores, patches), dim=1), reads)

    def _attend_with_reads(
        self,
        query: Float[Tensor, "B H C K"],
        key: Float[Tensor, "B H T K"],
        values: Float[Tensor, "B H T K"],
        patch_points: Float[Tensor, "N 2"],
    ) -> tuple[Float[Tensor, "B H C K"], Float[Tensor, "B C 2"]]:
        """What cores read and where: coordinates ride along as value channels of fused attention.

        Fused kernels need queries, keys and values of one width, so queries and keys are padded
        with zeros, which change no score.
        """
        anchors = _anchors(patch_points)
        cores = values.shape[2] - anchors.shape[0]
        padded = F.pad(anchors, (0, ANCHOR_CHANNELS - anchors.shape[1], cores, 0))  # (T, 8)
        extra = padded.to(values.dtype).expand(*values.shape[:2], -1, -1)
        found = attend(
            F.pad(query, (0, ANCHOR_CHANNELS)),
            F.pad(key, (0, ANCHOR_CHANNELS)),
            torch.cat((values, extra), dim=3),
            scale=self.config.head_width**-0.5,
        )
        mixed, sums = found.split((values.shape[3], ANCHOR_CHANNELS), dim=3)
        return mixed, _centers(sums.narrow(3, 0, anchors.shape[1]))

    def _project_sums(
        self, weights: Float[Tensor, "B H C T"], tokens: Tokens
    ) -> Float[Tensor, "B C D"]:
        """What cores read: (A Z) W_v; the bias passes through, since the weights sum to one."""
        sums = (weights.flatten(1, 2) @ tokens).unflatten(1, weights.shape[1:3])  # (B, H, C, D)
        per_head = self.value.weight.unflatten(0, (self.config.heads, -1))  # (H, K, D)
        read = torch.einsum("bhcd,hkd->bchk", sums, per_head).flatten(2)
        return self.output(read + self.value.bias.to(read.dtype))

    def _mix_outputs(
        self, weights: Float[Tensor, "B H C N"], values: Float[Tensor, "B C H K"]
    ) -> Float[Tensor, "B N D"]:
        """What patches read: weights times core values that were already projected by W_o."""
        per_head = self.output.weight.unflatten(1, (self.config.heads, -1))  # (D, H, K)
        outputs = torch.einsum("bchk,dhk->bhcd", values, per_head)
        mixed = weights.flatten(1, 2).transpose(1, 2) @ outputs.flatten(1, 2)
        return mixed + self.output.bias.to(mixed.dtype)


class FullAttention(Attention):
    """The baseline: every token reads every token."""

    def forward(self, tokens: Tokens, layout: Layout) -> Mixed:
        """Mix tokens; the first `layout.budget` are prefix tokens, which have no position."""
        queries = torch.cat(self.rotate_qk(self.query(tokens), layout), dim=2)
        keys = torch.cat(self.rotate_qk(self.key(tokens), layout), dim=2)
        values = self.split_heads(self.value(tokens)).transpose(1, 2)
        mixed = attend(queries, keys, values).transpose(1, 2).flatten(2)
        return Mixed(self.output(mixed), None)


def contribution_shares(
    attention: Attention, tokens: Tokens, weights: Float[Tensor, "B H Q T"]
) -> Float[Tensor, "B Q T"]:
    """Norm-based maps (paper, A.9): each token's share in what a query reads; they sum to one.

    Weights alone mislead, because a token with a small value contributes little. So the map of
    query i (a core over all tokens, or a patch over the cores) holds norms of the vectors that
    token j adds to it,

        e_ij = sum over heads h of A_hij (v_hj W_o,h),      s_ij = |e_ij| / sum over j' of |e_ij'|.

    The norms come from the H x H inner products of a token's head contributions, so the (Q, T, D)
    vectors are never materialized; they are computed in fp32 also in a bf16 model.
    """
    values = attention.split_heads(attention.value(tokens))  # (B, T, H, K)
    per_head = attention.output.weight.unflatten(1, (attention.config.heads, -1))  # (D, H, K)
    added = torch.einsum("bthk,dhk->bthd", values, per_head).float()
    with torch.autocast(added.device.type, enabled=False):
        products = added @ added.transpose(-1, -2)  # (B, T, H, H)
        mixed = torch.einsum("bhqt,bthg->bgqt", weights.float(), products)
    squared_norms = (mixed * weights.float()).sum(dim=1)
    norms = squared_norms.clamp(min=0).sqrt()
    return norms / norms.sum(dim=-1, keepdim=True)


def _anchors(patch_points: Float[Tensor, "N 2"]) -> Float[Tensor, "N 3"]:
    """(x, y, 1) of each patch; the one sums up the attention that patches get."""
    return F.pad(patch_points, (0, 1), value=1.0)


def _centers(sums: Float[Tensor, "B H C 3"]) -> Float[Tensor, "B C 2"]:
    """Centers of mass over all heads, from weighted sums of anchors."""
    points, mass = sums.float().sum(dim=1).split((2, 1), dim=2)
    return points / mass.clamp(min=torch.finfo(torch.float32).tiny)
