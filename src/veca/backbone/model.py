"""VECA: from an image to its features, top to bottom.

An image becomes N patches. C learned cores, the first C of an ordered bank, read every patch and
each other; a patch reads only the cores. A block thus scores 2NC + C^2 pairs of tokens instead of
N^2 (paper, section 3). Each core has a position, which moves from layer to layer.

    images (B, channels, height, width)
      tokenize        PatchEmbedding: N patches; CoreBank: the first C cores and their positions
      L times
        move_cores    a core step moves the positions (from block 2 on)        cores.py
        run_block     Block: LocalMixing, attention with RoPE, FeedForward     attention.py, rope.py
      read_out        final norm
    Features: cores (B, C, D), patches (B, N, D), core_points (B, C, 2), grid

`forward` checks its arguments and calls `encode`, which is this picture; `trace` is its loop over
layers, which also serves intermediate layers, maps and paths. The file follows the data: `VECA`,
its modules, `build`, then checks of arguments.

Shapes: B images, N patches, C active cores, M cores in the bank, T = C + N tokens (cores first),
        D width, H heads, K channels of a head, L layers.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple, TypeVar, cast, get_args

import torch
from jaxtyping import Float
from torch import SymInt, Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from veca.backbone import rope
from veca.backbone.attention import (
    Attention,
    CorePeripheryAttention,
    Form,
    FullAttention,
    Layout,
    Mixed,
    Tokens,
    contribution_shares,
    split_cores,
)
from veca.backbone.config import SIZES, BackboneConfig, plain
from veca.backbone.cores import CORE_STEPS, AnyCoreStep, CoreBank
from veca.backbone.cost import Cost, cost
from veca.backbone.timm_api import TimmMixin

Images = Float[Tensor, "B channels height width"]

Method = TypeVar("Method", bound=Callable[..., Any])

INITIAL_STD = 0.02
"""Standard deviation of untrained weights; the authors' truncation at 2.0 is 100 of these away."""


class Features(NamedTuple):
    """Features of B images: C cores, N patches, and where they are."""

    cores: Float[Tensor, "B C D"]
    """The active cores in nesting order (prefix tokens of a full-attention model)."""

    patches: Float[Tensor, "B N D"]
    """The patches row by row."""

    core_points: Float[Tensor, "B C 2"]
    """Positions of the cores, x then y, within (-1, 1) (zeros for prefix tokens)."""

    grid: tuple[int, int]
    """Rows and columns of patches."""

    @property
    def image(self) -> Float[Tensor, "B D"]:
        """The global feature: the first core."""
        return self.cores.select(1, 0)

    @property
    def patch_map(self) -> Float[Tensor, "B D rows columns"]:
        """The patches as an image with D channels."""
        return self.patches.transpose(1, 2).unflatten(2, self.grid)


class LayerMaps(NamedTuple):
    """What one layer reads, and the features it gives."""

    features: Features
    """After the layer, normalized; its `core_points` are where the cores were in it."""

    core_maps: Float[Tensor, "B C rows columns"]
    """As from `VECA.core_maps`."""

    patch_maps: Float[Tensor, "B C rows columns"]
    """As from `VECA.patch_maps`."""


class State(NamedTuple):
    """What passes from layer to layer."""

    tokens: Tokens
    core_state: Float[Tensor, "B C 2"]
    """Unbounded positions of the cores; tanh maps them into the image."""
    reads: Float[Tensor, "B C 2"] | None
    """Where each core's attention was in the layer before, if core motion needs it."""
    rates: Float[Tensor, " quarter"]
    patch_rope: rope.Rope
    patch_points: Float[Tensor, "N 2"] | None
    grid: tuple[int, int]
    budget: int

    @property
    def core_points(self) -> Float[Tensor, "B C 2"]:
        """Positions of the cores, within (-1, 1)."""
        return self.core_state.tanh()

    @property
    def layout(self) -> Layout:
        """Which tokens are cores, and where all tokens are."""
        core_rope = rope.rope_at(self.core_points, self.rates)
        return Layout(self.budget, self.grid, core_rope, self.patch_rope, self.patch_points)


class Step(NamedTuple):
    """The states before and after a block."""

    layer: int
    before: State
    after: State


def in_precision(method: Method) -> Method:
    """Run a method of the model in its `precision`; fp32 leaves an outer autocast alone."""

    @functools.wraps(method)
    def run(model: "VECA", images: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if model.precision == "fp32":
            return method(model, images, *args, **kwargs)
        if model.precision != "bf16":
            raise ValueError(f"precision={model.precision!r} is unknown; use 'fp32' or 'bf16'.")
        with torch.autocast(images.device.type, torch.bfloat16):
            return method(model, images, *args, **kwargs)

    return cast(Method, run)


class VECA(TimmMixin, nn.Module):
    """A vision backbone whose cost is linear in patches and chosen at run time."""

    def __init__(self, config: BackboneConfig) -> None:
        """Build an untrained model; torch's global seed determines the weights."""
        super().__init__()
        self.config = config
        self.checkpoint_activations = False
        self.precision = "fp32"
        """Of matrix products: 'fp32', or 'bf16' by autocast. Weights, positions, the residual
        stream and features stay fp32. Not part of a saved model."""
        self.provenance: object | None = None
        """Where the weights come from; set by `veca.load`, stored by `veca.save`."""
        self.budget: int | None = None
        """Cores to use when a call gives no budget; None uses the configuration's default."""
        self.patch_embedding = PatchEmbedding(config)
        self.core_bank = CoreBank(config)
        steps = 0 if config.attention == "full" else config.layers - 1
        core_step = CORE_STEPS[config.core_motion]
        self.core_steps = nn.ModuleList(core_step(config) for _ in range(steps))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.LayerNorm(config.width)
        self.reset_parameters()

    @in_precision
    def forward(
        self, images: Images, budget: int | None = None, ffn: float | None = None
    ) -> Features:
        """Encode images with the first `budget` cores and the first share `ffn` of hidden units.

        `budget=None` uses `self.budget`, else the configuration's default, else all cores, as in
        every method; `ffn=None` all hidden units. Images are normalized, their sides multiples of
        the patch size.
        """
        check_images(self.config, images)
        return self.encode(images, self.chosen_budget(budget), check_ffn(self.config, ffn))

    def encode(self, images: Images, budget: int, units: int) -> Features:
        """`forward` without checks, defaults and autocast."""
        last = self.config.layers - 1
        return self.read_out(self.trace(images, [last], budget, units)[last].after)

    def trace(
        self, images: Images, layers: Sequence[int], budget: int, units: int
    ) -> dict[int, Step]:
        """Run all layers up to the last of `layers`; the states around each of these blocks."""
        state = self.tokenize(images, budget)
        steps: dict[int, Step] = {}
        for layer in range(max(layers, default=-1) + 1):
            before = self.move_cores(state, layer)
            state = self.run_block(before, layer, units)
            if layer in layers:
                steps[layer] = Step(layer, before, state)
        return steps

    def tokenize(self, images: Images, budget: int) -> State:
        """Embed patches, and put the first cores of the bank in front of them."""
        config = self.config
        grid = images.shape[2] // config.patch_size, images.shape[3] // config.patch_size
        cores, core_state = self.core_bank(images.shape[0], budget)
        patches = self.patch_embedding(images)
        # Autocast gives bf16 patches; the residual stream keeps the type of the weights.
        tokens = torch.cat((cores, patches.to(cores.dtype)), dim=1)
        points = rope.patch_centers(grid, images.device, core_state.dtype)
        if self.training:
            points = rope.jitter(points, config.coordinate_shift, config.coordinate_rescale)
        periods = rope.Periods(config.head_width, config.rotary_base, config.rotary_still)
        rates = rope.frequencies(periods, images.device, core_state.dtype)
        # The cache must not hold jittered points, or tensors of a tracer or of fake images.
        tracing = torch.compiler.is_compiling() or type(images) is not Tensor
        if self.training or tracing or not rope.can_cache(grid):
            patch_rope = rope.rope_at(points, rates)
        else:
            patch_rope = rope.cached_patch_rope(grid, periods, images.device, points.dtype)
        follows = config.attention != "full" and config.core_motion == "attention"
        patch_points = points if follows else None
        return State(tokens, core_state, None, rates, patch_rope, patch_points, grid, budget)

    def move_cores(self, state: State, layer: int) -> State:
        """Let every core take its step before a layer; the first layer uses the bank's points."""
        if layer == 0 or not self.core_steps:
            return state
        step = cast(AnyCoreStep, self.core_steps[layer - 1])
        cores = state.tokens.narrow(1, 0, state.budget)
        return state._replace(core_state=step(state.core_state, cores, state.reads))

    def run_block(self, state: State, layer: int, units: int) -> State:
        """Pass tokens through one block."""
        block = self.block_of(layer)
        if self.checkpoint_activations and torch.is_grad_enabled():
            mixed = checkpoint(block, state.tokens, state.layout, units, use_reentrant=False)
        else:
            mixed = block(state.tokens, state.layout, units)
        return state._replace(tokens=mixed.tokens, reads=mixed.reads)

    def read_out(self, state: State, norm: bool = True) -> Features:
        """Split tokens into cores and patches, and normalize them."""
        # Split first: features that share memory with all tokens would keep it alive.
        cores, patches = split_cores(state.tokens, state.budget, dim=1)
        if norm:
            cores, patches = self.final_norm(cores), self.final_norm(patches)
        return Features(cores, patches, state.core_points, state.grid)

    @in_precision
    def intermediates(
        self,
        images: Images,
        layers: int | Sequence[int] | None = None,
        budget: int | None = None,
        ffn: float | None = None,
        norm: bool = True,
    ) -> list[Features]:
        """Features after one or several layers, in the given order.

        Layers count from 0, negative ones from the end, and None is the last one, here and in
        all methods that take layers.
        """
        steps = self._checked_trace(images, layers, budget, ffn)
        return [self.read_out(step.after, norm) for step in steps]

    @in_precision
    def core_paths(
        self, images: Images, budget: int | None = None, ffn: float | None = None
    ) -> Float[Tensor, "L B C 2"]:
        """Positions of the cores in every layer."""
        steps = self._checked_trace(images, range(self.config.layers), budget, ffn)
        return torch.stack([step.before.core_points for step in steps])

    @in_precision
    def attention_maps(
        self,
        images: Images,
        layer: int | None = None,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "B H C rows columns"]:
        """Attention weights of each core over the patches, for each head of a layer.

        They sum to less than one: the rest is on cores.
        """
        (step,) = self._checked_trace(images, [layer], budget, ffn)
        state, tokens = step.before, self._read_tokens(step)
        weights = self.block_of(step.layer).attention.core_weights(tokens, state.layout)
        return split_cores(weights, state.budget, dim=-1)[1].unflatten(-1, state.grid)

    @in_precision
    def core_maps(
        self,
        images: Images,
        layer: int | None = None,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "B C rows columns"]:
        """The share of each patch in what each core of a layer reads (paper, A.9)."""
        return self.core_shares(self._checked_trace(images, [layer], budget, ffn)[0])

    @in_precision
    def patch_maps(
        self,
        images: Images,
        layer: int | None = None,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> Float[Tensor, "B C rows columns"]:
        """The share of each core in what each patch of a layer reads; they sum to one over cores.

        Norm-based like `core_maps`, which look the other way.
        """
        return self.patch_shares(self._checked_trace(images, [layer], budget, ffn)[0])

    @in_precision
    def layer_maps(
        self,
        images: Images,
        layers: int | Sequence[int] | None = None,
        budget: int | None = None,
        ffn: float | None = None,
    ) -> list[LayerMaps]:
        """Features and both kinds of maps of the given layers, from a single pass."""
        steps = self._checked_trace(images, layers, budget, ffn)
        return [
            LayerMaps(
                self.read_out(step.after),
                self.core_shares(step),
                self.patch_shares(step),
            )
            for step in steps
        ]

    def core_shares(self, step: Step) -> Float[Tensor, "B C rows columns"]:
        """`core_maps` of a layer that `trace` has run."""
        state, tokens = step.before, self._read_tokens(step)
        attention = self.block_of(step.layer).attention
        weights = attention.core_weights(tokens, state.layout)
        shares = contribution_shares(attention, tokens, weights)
        return split_cores(shares, state.budget, dim=-1)[1].unflatten(-1, state.grid)

    def patch_shares(self, step: Step) -> Float[Tensor, "B C rows columns"]:
        """`patch_maps` of a layer that `trace` has run."""
        state, tokens = step.before, self._read_tokens(step)
        attention = self.block_of(step.layer).attention
        if not isinstance(attention, CorePeripheryAttention):
            raise ValueError(
                "attention='full' has no patch maps, since its patches read each other; use "
                "core_maps, or a model with cores."
            )
        weights = attention.patch_weights(tokens, state.layout)
        cores = tokens.narrow(1, 0, state.budget)
        shares = contribution_shares(attention, cores, weights)
        return shares.transpose(1, 2).unflatten(-1, state.grid)

    def _read_tokens(self, step: Step) -> Tokens:
        """The tokens that the attention of a layer reads."""
        block, state = self.block_of(step.layer), step.before
        return block.attention_norm(block.mix_locally(state.tokens, state.layout))

    def _checked_trace(
        self,
        images: Tensor,
        layers: int | Sequence[int | None] | None,
        budget: int | None,
        ffn: float | None,
    ) -> list[Step]:
        """`trace` for arguments of a user: the layers asked for, in their order."""
        asked = layers if isinstance(layers, Iterable) else [layers]
        numbers = [self.layer_number(layer) for layer in asked]
        check_images(self.config, images)
        units = check_ffn(self.config, ffn)
        steps = self.trace(images, numbers, self.chosen_budget(budget), units)
        return [steps[number] for number in numbers]

    def cost(
        self, height: int, width: int, budget: int | None = None, ffn: float | None = None
    ) -> Cost:
        """Cost of one image of this size in the form of attention that this model runs."""
        cores = self.chosen_budget(budget)
        attention = self.block_of(0).attention
        return cost(
            self.config,
            patch_grid(self.config, height, width),
            cores=cores,
            hidden=check_ffn(self.config, ffn),
            folded=isinstance(attention, CorePeripheryAttention) and attention.is_folded(cores),
        )

    def chosen_budget(self, budget: int | None = None) -> int:
        """Cores that a call uses: its own budget, the model's, the configuration's, or all."""
        return check_budget(self.config, self.budget if budget is None else budget)

    def layer_number(self, layer: int | None = None) -> int:
        """The number of a layer from 0, given that, a negative one from the end, or None."""
        layers = self.config.layers
        number = layers - 1 if layer is None else _integer(layer)
        if number is None or not -layers <= number < layers:
            raise ValueError(
                f"layer {layer!r} is outside {-layers}..{layers - 1}; count from 0, or from "
                "the end with negative numbers."
            )
        return number % layers

    def set_attention_form(self, form: Form) -> None:
        """Compute attention 'folded', 'plain', or ('auto') in whichever form is cheaper."""
        if form not in get_args(Form):
            known = ", ".join(map(repr, get_args(Form)))
            raise ValueError(f"form={form!r} is unknown; use {known}.")
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
                nn.init.normal_(module.weight, std=INITIAL_STD)
                nn.init.zeros_(module.bias)
            elif isinstance(
                module, nn.LayerNorm | PatchEmbedding | CoreBank | LocalMixing | AnyCoreStep
            ):
                module.reset_parameters()


class PatchEmbedding(nn.Module):
    """One token for each patch of pixels: a convolution with non-overlapping windows."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.side = config.patch_size
        shape = (config.width, config.in_channels, self.side, self.side)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(config.width))

    def forward(self, images: Images) -> Float[Tensor, "B N D"]:
        """Patches row by row."""
        rows = images.to(self.weight.dtype).unflatten(2, (-1, self.side))
        squares = rows.unflatten(4, (-1, self.side))  # (B, channels, rows, side, columns, side)
        pixels = squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(pixels, self.weight.flatten(1), self.bias)

    def reset_parameters(self) -> None:
        """Initialize like a linear layer."""
        nn.init.normal_(self.weight, std=INITIAL_STD)
        nn.init.zeros_(self.bias)


class Block(nn.Module):
    """Pre-norm block: patches mix with neighbors, tokens in attention, channels in the FFN."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        kind = FullAttention if config.attention == "full" else CorePeripheryAttention
        self.local_mixing = LocalMixing(config) if config.local_kernel else None
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention: Attention = kind(config)
        self.feedforward_norm = nn.LayerNorm(config.width)
        self.feedforward = FeedForward(config)

    def forward(self, tokens: Tokens, layout: Layout, units: int) -> Mixed:
        """One layer, with the first `units` hidden units of the FFN."""
        tokens = self.mix_locally(tokens, layout)
        mixed, reads = self.attention(self.attention_norm(tokens), layout)
        tokens = tokens + mixed
        return Mixed(tokens + self.feedforward(self.feedforward_norm(tokens), units), reads)

    def mix_locally(self, tokens: Tokens, layout: Layout) -> Tokens:
        """Apply the local convolution, if the model has one."""
        return tokens if self.local_mixing is None else self.local_mixing(tokens, layout)


class LocalMixing(nn.Module):
    """Residual depthwise convolution on the patch grid.

    It starts at zero, so a model that gains it computes what it did before. The border patches
    are replicated: zero padding would reveal to every patch how far the border is.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        side = config.local_kernel
        self.weight = nn.Parameter(torch.empty(config.width, 1, side, side))

    def forward(self, tokens: Tokens, layout: Layout) -> Tokens:
        """Convolve patches, leave cores."""
        cores, patches = split_cores(tokens, layout.budget, dim=1)
        # Permuted, rows of tokens are a channels-last image already: nothing is copied.
        image = patches.unflatten(1, layout.grid).permute(0, 3, 1, 2)
        padded = _replicate_border(image, self.weight.shape[-1] // 2)
        mixed = F.conv2d(padded, self.weight, groups=self.weight.shape[0])
        return torch.cat((cores, patches + mixed.permute(0, 2, 3, 1).flatten(1, 2)), dim=1)

    def reset_parameters(self) -> None:
        """Start as the identity."""
        nn.init.zeros_(self.weight)


def _replicate_border(image: Float[Tensor, "B D R C"], border: int) -> Float[Tensor, "B D R2 C2"]:
    if not torch.compiler.is_dynamo_compiling():
        return F.pad(image, (border,) * 4, mode="replicate")
    # Inductor assumes other strides of replication_pad2d's gradient than the kernel returns for
    # channels-last images, and stops (torch 2.13); it fuses these joins into one copy anyway.
    for dim in (2, 3):
        first, last = image.narrow(dim, 0, 1), image.narrow(dim, -1, 1)
        image = torch.cat((*[first] * border, image, *[last] * border), dim=dim)
    return image


class FeedForward(nn.Module):
    """SwiGLU; any prefix of the hidden units is a smaller one."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.expand = nn.Linear(config.width, 2 * config.hidden)  # gates, then values
        self.contract = nn.Linear(config.hidden, config.width)

    def forward(self, tokens: Tokens, units: int) -> Tokens:
        """Use the first `units` hidden units."""
        if units == self.hidden or {type(self.expand), type(self.contract)} != {nn.Linear}:
            return self._through_modules(tokens, units)
        weight = self.expand.weight.unflatten(0, (2, self.hidden)).narrow(1, 0, units)
        bias = self.expand.bias.unflatten(0, (2, self.hidden)).narrow(1, 0, units)
        gates, values = F.linear(tokens, weight.flatten(0, 1), bias.flatten()).chunk(2, dim=-1)
        columns = self.contract.weight.narrow(1, 0, units)
        return F.linear(F.silu(gates) * values, columns, self.contract.bias)

    def _through_modules(self, tokens: Tokens, units: int) -> Tokens:
        """Call both layers as modules, which replaced ones (LoRA, quantized) need."""
        gates, values = self.expand(tokens).chunk(2, dim=-1)
        mixed = F.silu(gates) * values
        if units < self.hidden:
            mixed = mixed * (torch.arange(self.hidden, device=tokens.device) < units)
        return self.contract(mixed)


def build(size: str, **overrides: Any) -> VECA:  # noqa: ANN401 - typed in BackboneConfig
    """Build an untrained model of a named size; any field of `BackboneConfig` can be overridden.

    `veca.build("base", budgets=(4, 8, 16))` has the width and depth of base and 16 cores.
    """
    if size not in SIZES:
        raise ValueError(f"size {size!r} is unknown; use one of {', '.join(SIZES)}.")
    known = [field.name for field in fields(BackboneConfig)]
    if unknown := sorted(set(overrides) - set(known)):
        raise ValueError(
            f"{', '.join(unknown)} cannot be overridden; the fields are {', '.join(known)}."
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in overrides.items()
    }
    return VECA(replace(SIZES[size], **values))


def check_budget(config: BackboneConfig, budget: int | None) -> int:
    """The number of cores to use; None uses the configuration's default, else all of them."""
    if budget is None:
        return config.cores if config.default_budget is None else config.default_budget
    if config.attention == "full":
        raise ValueError(
            f"budget={budget} cannot be used: a full-attention model has no cores; leave it out."
        )
    cores = _integer(budget)
    if cores is None or not 1 <= cores <= config.cores:
        raise ValueError(
            f"budget={budget!r} is outside 1..{config.cores}, the cores of this model; use one of "
            "these numbers."
        )
    return cores


def check_ffn(config: BackboneConfig, share: float | None) -> int:
    """The number of hidden units that a share of the feed-forward layers uses."""
    share = plain(share)
    valid = isinstance(share, int | float) and 0 < share <= 1
    if share is None or (valid and share == 1):
        return config.hidden
    if config.ffn_shares == (1.0,):
        raise ValueError(
            f"ffn={share} needs a model with nested feed-forward layers; omit ffn, or build with "
            "ffn_shares=(0.25, 0.5, 1.0) and train the model."
        )
    if not valid:
        raise ValueError(
            f"ffn={share} is outside (0, 1]; this model was built for the shares "
            f"{', '.join(map(str, config.ffn_shares))}."
        )
    return config.hidden_units(share)


def check_images(config: BackboneConfig, images: Tensor) -> None:
    """Require a batch of float images whose sides are multiples of the patch size."""
    if not isinstance(images, Tensor):
        raise ValueError(
            f"images is a {type(images).__name__}, but must be a torch tensor; veca.preprocess "
            "converts images and arrays."
        )
    if images.ndim != 4 or images.shape[1] != config.in_channels:
        raise ValueError(
            f"images has shape {tuple(images.shape)}, but must be (B, {config.in_channels}, "
            "height, width); add a batch dimension with images[None], or build the model with "
            "other in_channels."
        )
    if not images.is_floating_point():
        raise ValueError(
            f"images has type {images.dtype}, but must be normalized floating point; "
            "veca.preprocess gives that."
        )
    patch_grid(config, images.shape[2], images.shape[3])


def patch_grid(config: BackboneConfig, height: int, width: int) -> tuple[int, int]:
    """Rows and columns of patches of an image of this size."""
    for name, side in (("height", height), ("width", width)):
        if side % config.patch_size or side < 1:
            below = max(side // config.patch_size, 1) * config.patch_size
            raise ValueError(
                f"{name}={side} is not a multiple of the patch size {config.patch_size}; resize, "
                f"crop or pad the image to {below} or {below + config.patch_size}."
            )
    return height // config.patch_size, width // config.patch_size


def _integer(value: object) -> int | None:
    """An integer of any library, or None; while compiling it may be a symbol, and stays one."""
    number = plain(value)
    whole = isinstance(number, int | SymInt) and not isinstance(number, bool)
    return cast(int, number) if whole else None
