"""VECA: from an image to its features, top to bottom.

VECA: from an image to its features, top to bottom.

An image becomes N patches. C learned cores, the first C of an ordered bank, read every patch and
each other; a patch reads only the cores. A block so scores 2NC + C^2 pairs of tokens instead of
N^2 (paper, section 3). Each core stands at a point that moves from layer to layer.

`VECA.forward` is the whole way of the data: `enter`, then `advance` through every layer, then
`leave`. The parts follow below; the cores (`cores.py`) and attention (`attention.py`), where
the ideas of the paper sit, have files of their own.

Shapes: B images, N patches, C active cores, M cores in the bank, T = C + N tokens (cores first),
        D width, H heads, K channels of a head, L layers.

The door of the model: what a caller can get wrong, and what to do instead.

An untrained model by name.
"""

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, SupportsIndex, TypeVar, cast, get_args

import torch
from jaxtyping import Float
from torch import SymInt, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from veca.backbone import rope as rotary
from veca.backbone.attention import (
    Attention,
    CorePeripheryAttention,
    Form,
    FullAttention,
    Mixed,
    contribution_shares,
    split,
)
from veca.backbone.config import SIZES, BackboneConfig
from veca.backbone.cores import CORE_STEPS, AnyCoreStep, CoreBank
from veca.backbone.cost import Cost, cost
from veca.backbone.features import Features
from veca.backbone.rope import jittered, patch_centers
from veca.backbone.timm_api import TimmMixin


def checked_budget(config: BackboneConfig, budget: int | None) -> int:
    """The number of cores to use; None uses the configuration's default, else all of them."""
    if budget is None:
        return config.cores if config.default_budget is None else config.default_budget
    if config.attention == "full":
        raise ValueError(
            f"budget={budget} means nothing to a full-attention model, which has no cores to "
            "leave out; pass budget=None."
        )
    cores = _whole(budget)
    if cores is None or not 1 <= cores <= config.cores:
        raise ValueError(
            f"budget={budget!r} is outside 1..{config.cores}, the cores of this model; pick one "
            "of these, or leave budget out to use every core."
        )
    return cores


def checked_units(config: BackboneConfig, share: float | None) -> int:
    """The number of hidden units that a share of the feed-forward parts uses."""
    if share is None or share == 1:
        return config.hidden
    if config.ffn_shares == (1.0,):
        raise ValueError(
            f"ffn={share} needs a model with nested feed-forward parts, but this one has only "
            "whole ones; leave ffn out, or build with ffn_shares=(0.25, 0.5, 1.0) and train it."
        )
    if not isinstance(share, int | float) or not 0 < share <= 1:
        raise ValueError(
            f"ffn={share} is outside (0, 1]; this model was made for the shares "
            f"{', '.join(map(str, config.ffn_shares))}."
        )
    return config.hidden_units(share)


def checked_grid(config: BackboneConfig, images: Tensor) -> tuple[int, int]:
    """Rows and columns of patches."""
    if not isinstance(images, Tensor):
        raise ValueError(
            f"images is a {type(images).__name__}, but a torch tensor is needed; veca.preprocess "
            "makes one of a picture or an array."
        )
    if images.ndim != 4 or images.shape[1] != config.in_channels:
        raise ValueError(
            f"images has the shape {tuple(images.shape)}, but a batch of shape "
            f"(B, {config.in_channels}, height, width) is needed; add a batch dimension with "
            "images[None], or build the model with other in_channels."
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images holds {images.dtype} numbers, but normalized floating-point ones are needed; "
            "veca.preprocess gives them."
        )
    return grid_of(config, images.shape[2], images.shape[3])


def grid_of(config: BackboneConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches of an image of this size."""
    for name, side in (("height", height), ("width", width)):
        if side % config.patch_size or side < 1:
            below = max(side // config.patch_size, 1) * config.patch_size
            raise ValueError(
                f"{name}={side} is not a multiple of the patch size {config.patch_size}; the "
                f"nearest that fit are {below} and {below + config.patch_size}: resize, crop or "
                "pad the image to one of them."
            )
    return height // config.patch_size, width // config.patch_size


def checked_layers(config: BackboneConfig, layers: Sequence[int]) -> tuple[int, ...]:
    """Layers counted from 0."""
    for layer in layers:
        if _whole(layer) is None or not 0 <= layer < config.layers:
            raise ValueError(
                f"layer {layer!r} is outside 0..{config.layers - 1}, the layers of this model, "
                "which count from 0."
            )
    return tuple(layers)


def checked_form(form: Form) -> None:
    """Refuse a form of attention that is not known."""
    if form not in get_args(Form):
        raise ValueError(f"form={form!r} is not known; use {', '.join(map(repr, get_args(Form)))}.")


def _whole(value: SupportsIndex) -> int | None:
    """A whole number of any library, or None; while compiling it may be a symbol, and stays one."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | SymInt):
        return cast(int, value)
    return operator.index(value) if hasattr(value, "__index__") else None


Method = TypeVar("Method", bound=Callable[..., Any])

INITIAL_DEVIATION = 0.02
"""Standard deviation of untrained weights; the authors' cut at 2.0 is a hundred of these away."""


class State(NamedTuple):
    """What travels from layer to layer."""

    tokens: Float[Tensor, "B T D"]
    core_state: Float[Tensor, "B C 2"]
    """Unbounded; the cores stand at its tanh."""
    frequencies: Float[Tensor, " quarter"]
    patch_rope: rotary.Rope
    patch_points: Float[Tensor, "N 2"] | None
    """Where patches are, for cores that follow their attention."""
    reads: Float[Tensor, "B C 2"] | None
    """Where each core's attention lay in the layer before, likewise."""
    grid: tuple[int, int]
    budget: int

    @property
    def core_points(self) -> Float[Tensor, "B C 2"]:
        """Where the cores stand, within (-1, 1)."""
        return self.core_state.tanh()

    @property
    def core_rope(self) -> rotary.Rope:
        """How the cores' queries and keys are turned where they stand."""
        return rotary.rope_at(self.core_points, self.frequencies)


def in_precision(method: Method) -> Method:
    """Run a method of the model in the model's precision; fp32 leaves an outer autocast alone."""

    @functools.wraps(method)
    def run(model: "VECA", images: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if model.precision == "fp32":
            return method(model, images, *args, **kwargs)
        if model.precision != "bf16":
            raise ValueError(f"precision={model.precision!r} is not known; use 'fp32' or 'bf16'.")
        with torch.autocast(images.device.type, torch.bfloat16):
            return method(model, images, *args, **kwargs)

    return cast(Method, run)


class VECA(TimmMixin, nn.Module):
    """A vision backbone whose cost is linear in patches and chosen at run time."""

    def __init__(self, config: BackboneConfig) -> None:
        """Build an untrained model; torch's global seed decides the weights."""
        super().__init__()
        self.config = config
        self.checkpoint_activations = False
        self.precision = "fp32"
        """Of matrix products: 'fp32', or 'bf16' by autocast over the weights as they are; features,
        positions and the residual stream stay fp32. No part of what is saved."""
        self.provenance: object | None = None
        """Where the weights come from; `veca.load` fills it in, `veca.save` writes it on."""
        self.budget: int | None = None
        """Cores to use when a call names no budget; None asks the configuration."""
        self.patch_embedding = PatchEmbedding(config)
        self.core_bank = CoreBank(config)
        moves = 0 if config.attention == "full" else config.layers - 1
        step = CORE_STEPS[config.core_motion]
        self.core_steps = nn.ModuleList(step(config) for _ in range(moves))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.reset_parameters()

    @in_precision
    def forward(
        self,
        images: Float[Tensor, "B channels height width"],
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Features:
        """Encode images with the first `budget` cores and the first share `ffn` of hidden units.

        `budget=None` uses `self.budget`, else the configuration's default, else all cores;
        `ffn=None` all hidden units. Images are normalized, their sides multiples of the patch size.
        """
        state = self.enter(images, budget)
        units = checked_units(self.config, ffn)
        for layer in range(self.config.layers):
            state = self.advance(self.move_cores(state, layer), layer, units)
        return self.leave(state)

    def enter(self, images: Float[Tensor, "B channels height width"], budget: int | None) -> State:
        """Cut images into patches and put the first cores of the bank before them."""
        budget = self.chosen_budget(budget)
        grid = checked_grid(self.config, images)
        patches = self.patch_embedding(images)
        cores, core_state = self.core_bank(images.shape[0], budget)
        # Under autocast patches come in half precision; the residual stream keeps the weights' own.
        tokens = torch.cat((cores, patches.to(cores.dtype)), dim=1)
        config, dtype = self.config, core_state.dtype
        periods = rotary.Periods(config.head_width, config.rotary_base, config.rotary_still)
        turns = rotary.frequencies(periods, images.device, dtype)
        points = self._patch_points(images, grid, dtype)
        patch_rope = self._patch_turn(images, grid, periods, points)
        followed = config.attention != "full" and config.core_motion == "attention"
        return State(
            tokens,
            core_state,
            turns,
            patch_rope,
            patch_points=points if followed else None,
            reads=None,
            grid=grid,
            budget=budget,
        )

    def move_cores(self, state: State, layer: int) -> State:
        """Let every core step to where it stands in this layer; the first has the bank's points."""
        if layer == 0 or not self.core_steps:
            return state
        step = cast(AnyCoreStep, self.core_steps[layer - 1])
        cores = state.tokens.narrow(1, 0, state.budget)
        return state._replace(core_state=step(state.core_state, cores, state.reads))

    def advance(self, state: State, layer: int, units: int) -> State:
        """Take tokens through one block."""
        block = self.block_of(layer)
        inputs = (state.tokens, state.budget, state.core_rope, state.patch_rope, units,
                  state.grid, state.patch_points)  # fmt: skip
        if self.checkpoint_activations and torch.is_grad_enabled():
            mixed = checkpoint(block, *inputs, use_reentrant=False)
        else:
            mixed = block(*inputs)
        return state._replace(tokens=mixed.tokens, reads=mixed.reads)

    def leave(self, state: State, norm: bool = True) -> Features:
        """Normalize tokens and sort them into cores and patches."""
        # Apart, so that who keeps the cores alone does not keep the memory of all tokens.
        cores, patches = split(state.tokens, state.budget, dim=1)
        if norm:
            cores, patches = self.final_norm(cores), self.final_norm(patches)
        return Features(cores, patches, state.core_points, state.grid)

    @in_precision
    def intermediates(
        self,
        images: Float[Tensor, "B channels height width"],
        layers: Sequence[int],
        budget: int | None = None,
        ffn: float | None = None,
        norm: bool = True,
    ) -> list[Features]:
        """Features after the given layers, which count from 0, in the order they are given in."""
        layers = checked_layers(self.config, layers)
        units = checked_units(self.config, ffn)
        state, found = self.enter(images, budget), {}
        for layer in range(max(layers, default=-1) + 1):
            state = self.advance(self.move_cores(state, layer), layer, units)
            if layer in layers:
                found[layer] = self.leave(state, norm)
        return [found[layer] for layer in layers]

    @in_precision
    def core_paths(
        self,
        images: Float[Tensor, "B channels height width"],
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "L B C 2"]:
        """Where the cores stand in every layer."""
        units = checked_units(self.config, ffn)
        state, points = self.enter(images, budget), []
        for layer in range(self.config.layers):
            state = self.move_cores(state, layer)
            points.append(state.core_points)
            state = self.advance(state, layer, units)
        return torch.stack(points)

    @in_precision
    def attention_maps(
        self,
        images: Float[Tensor, "B channels height width"],
        layer: int,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "B H C rows columns"]:
        """What each head of a layer lets each core take from each patch.

        A core also reads cores: what is missing from a sum of one over the patches went there.
        """
        state, _, weights = self._reading(images, layer, budget, ffn)
        return split(weights, state.budget, dim=-1)[1].unflatten(-1, state.grid)

    @in_precision
    def core_maps(
        self,
        images: Float[Tensor, "B channels height width"],
        layer: int,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "B C rows columns"]:
        """What each patch really adds to each core in a layer, as a share (paper, A.9)."""
        state, tokens, weights = self._reading(images, layer, budget, ffn)
        shares = contribution_shares(self.block_of(layer).attention, tokens, weights)
        return split(shares, state.budget, dim=-1)[1].unflatten(-1, state.grid)

    def cost(
        self, height: int, width: int, budget: int | None = None, ffn: float | None = None
    ) -> Cost:
        """What one image of this size costs in the form that this model runs."""
        cores = self.chosen_budget(budget)
        attention = self.block_of(0).attention
        return cost(
            self.config,
            grid_of(self.config, height, width),
            cores=cores,
            hidden=checked_units(self.config, ffn),
            folded=isinstance(attention, CorePeripheryAttention) and attention.is_folded(cores),
        )

    def chosen_budget(self, budget: int | None = None) -> int:
        """Cores that a call uses: its own budget, the model's, the configuration's, or all."""
        return checked_budget(self.config, self.budget if budget is None else budget)

    def set_attention_form(self, form: Form) -> None:
        """Compute attention 'folded', 'plain', or ('auto') in whichever form is cheaper."""
        checked_form(form)
        for layer in range(self.config.layers):
            attention = self.block_of(layer).attention
            if isinstance(attention, CorePeripheryAttention):
                attention.form = form

    def block_of(self, layer: int) -> "Block":
        """The block of a layer."""
        return cast(Block, self.blocks[layer])

    def reset_parameters(self) -> None:
        """Draw new weights: small normal ones, cores of norm one spread over the image."""
        if self.final_norm.weight.is_meta:
            return  # nothing to draw; torch would load a compiler to find that out
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_DEVIATION)
                nn.init.zeros_(module.bias)
            elif isinstance(
                module, nn.LayerNorm | PatchEmbedding | CoreBank | LocalMixing | AnyCoreStep
            ):
                module.reset_parameters()

    def _reading(
        self, images: Tensor, layer: int, budget: int | None, ffn: float | None
    ) -> tuple[State, Float[Tensor, "B T D"], Float[Tensor, "B H C T"]]:
        """State and normalized tokens entering a layer's attention, and what its cores take."""
        checked_layers(self.config, (layer,))
        units = checked_units(self.config, ffn)
        state = self.enter(images, budget)
        for earlier in range(layer):
            state = self.advance(self.move_cores(state, earlier), earlier, units)
        state = self.move_cores(state, layer)
        block = self.block_of(layer)
        tokens = block.attention_norm(block.mixed_locally(state.tokens, state.budget, state.grid))
        weights = block.attention.core_weights(
            tokens, state.budget, state.core_rope, state.patch_rope
        )
        return state, tokens, weights

    def _patch_points(
        self, images: Tensor, grid: tuple[int, int], dtype: torch.dtype
    ) -> Float[Tensor, "N 2"]:
        """Where the patches are, in training with one random shift and scale for all."""
        points = patch_centers(grid, images.device, dtype)
        if not self.training:
            return points
        return jittered(points, self.config.coordinate_shift, self.config.coordinate_rescale)

    def _patch_turn(
        self,
        images: Tensor,
        grid: tuple[int, int],
        periods: rotary.Periods,
        points: Float[Tensor, "N 2"],
    ) -> rotary.Rope:
        """How patches are turned, from the cache where it is safe: not while tracing or faking."""
        device, dtype = images.device, points.dtype
        tracing = torch.compiler.is_compiling() or type(images) is not Tensor
        if not self.training and not tracing and rotary.fits_cache(grid):
            return rotary.cached_patch_turn(grid, periods, device, dtype)
        return rotary.rope_at(points, rotary.frequencies(periods, device, dtype))


class PatchEmbedding(nn.Module):
    """Each patch of pixels becomes one token: a convolution whose windows do not overlap."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.side = config.patch_size
        shape = (config.width, config.in_channels, self.side, self.side)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(config.width))

    def forward(self, images: Float[Tensor, "B channels height width"]) -> Float[Tensor, "B N D"]:
        """Patches row by row."""
        rows = images.to(self.weight.dtype).unflatten(2, (-1, self.side))
        squares = rows.unflatten(4, (-1, self.side))  # (B, channels, rows, side, columns, side)
        pixels = squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(pixels, self.weight.flatten(1), self.bias)

    def reset_parameters(self) -> None:
        """As small as all linear layers."""
        nn.init.normal_(self.weight, std=INITIAL_DEVIATION)
        nn.init.zeros_(self.bias)


class Block(nn.Module):
    """Pre-norm block: tokens mix in attention, then each goes through the feed-forward part."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        kind = FullAttention if config.attention == "full" else CorePeripheryAttention
        self.local_mixing = LocalMixing(config) if config.local_kernel else None
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention: Attention = kind(config)
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config)

    def forward(  # noqa: PLR0913, PLR0917 - a checkpointed call passes by position
        self,
        tokens: Float[Tensor, "B T D"],
        budget: int,
        core_rope: rotary.Rope,
        patch_rope: rotary.Rope,
        units: int,
        grid: tuple[int, int],
        patch_points: Float[Tensor, "N 2"] | None = None,
    ) -> Mixed:
        """One layer; the first `budget` tokens are cores."""
        tokens = self.mixed_locally(tokens, budget, grid)
        mixed, reads = self.attention(
            self.attention_norm(tokens), budget, core_rope, patch_rope, patch_points
        )
        tokens = tokens + mixed
        return Mixed(tokens + self.feedforward(self.feedforward_norm(tokens), units), reads)

    def mixed_locally(
        self, tokens: Float[Tensor, "B T D"], budget: int, grid: tuple[int, int]
    ) -> Float[Tensor, "B T D"]:
        """Tokens as they enter attention: after the convolution, where the model has one."""
        return tokens if self.local_mixing is None else self.local_mixing(tokens, budget, grid)


class LocalMixing(nn.Module):
    """Patches take in their neighbors: a depthwise convolution on the patch grid, residual.

    It starts at zero, so that a model that gains it computes what it did before. Beyond the border
    the outermost patches repeat: zeros there would tell every patch how far the border is.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        side = config.local_kernel
        self.weight = nn.Parameter(torch.empty(config.width, 1, side, side))

    def forward(
        self, tokens: Float[Tensor, "B T D"], budget: int, grid: tuple[int, int]
    ) -> Float[Tensor, "B T D"]:
        """Tokens whose patches, all but the first `budget`, have taken in their neighbors."""
        cores, patches = split(tokens, budget, dim=1)
        # Permuted, rows of tokens are a channels-last image already: nothing is copied.
        image = patches.unflatten(1, grid).permute(0, 3, 1, 2)
        reach = self.weight.shape[-1] // 2
        padded = F.pad(image, (reach,) * 4, mode="replicate")
        mixed = F.conv2d(padded, self.weight, groups=self.weight.shape[0])
        near = mixed.permute(0, 2, 3, 1).flatten(1, 2)
        return torch.cat((cores, patches + near), dim=1)

    def reset_parameters(self) -> None:
        """Start without an effect."""
        nn.init.zeros_(self.weight)


class FeedForward(nn.Module):
    """SwiGLU; any prefix of the hidden units is a smaller one."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.expand = nn.Linear(config.width, 2 * config.hidden)  # gates, then values
        self.contract = nn.Linear(config.hidden, config.width)

    def forward(self, tokens: Float[Tensor, "B T D"], units: int) -> Float[Tensor, "B T D"]:
        """Use the first `units` hidden units."""
        if units == self.hidden or {type(self.expand), type(self.contract)} != {nn.Linear}:
            return self._through_layers(tokens, units)
        weight = self.expand.weight.unflatten(0, (2, self.hidden)).narrow(1, 0, units)
        bias = self.expand.bias.unflatten(0, (2, self.hidden)).narrow(1, 0, units)
        gates, values = F.linear(tokens, weight.flatten(0, 1), bias.flatten()).chunk(2, dim=-1)
        columns = self.contract.weight.narrow(1, 0, units)
        return F.linear(F.silu(gates) * values, columns, self.contract.bias)

    def _through_layers(self, tokens: Float[Tensor, "B T D"], units: int) -> Float[Tensor, "B T D"]:
        """Call both layers as they are, which replaced ones (LoRA, quantized) need."""
        gates, values = self.expand(tokens).chunk(2, dim=-1)
        mixed = F.silu(gates) * values
        if units < self.hidden:
            mixed = mixed * (torch.arange(self.hidden, device=tokens.device) < units)
        return self.contract(mixed)


def build(size: str, **overrides: Any) -> VECA:  # noqa: ANN401 - the types stand in BackboneConfig
    """Build an untrained model of a named size; any field of `BackboneConfig` can be overridden.

    `veca.build("base", budgets=(4, 8, 16))` has the width and depth of base and 16 cores.
    """
    if size not in SIZES:
        raise ValueError(f"size {size!r} is not known; pick one of {', '.join(SIZES)}.")
    known = [field.name for field in fields(BackboneConfig)]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} cannot be overridden; the fields of a model are "
            f"{', '.join(known)}."
        )
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in overrides.items()
    }
    return VECA(replace(SIZES[size], **given))
