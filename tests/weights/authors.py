"""The authors' model as plain functions of its state dict: an oracle that is slow and obvious.

Written from the paper's equations and the names of the keys, and on purpose in another way than
ours: one dense attention under a mask, neighboring channels turned one pair at a time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

State = dict[str, Tensor]


class Layout(NamedTuple):
    """Sizes of a checkpoint of the authors."""

    layers: int
    width: int
    hidden: int
    chunks: int = 2
    chunk: int = 8
    patch: int = 4
    channels: int = 3
    teacher_width: int | None = None


def shapes(layout: Layout) -> dict[str, tuple[int, ...]]:
    """Every key of the authors' state dict and its shape."""
    width, hidden = layout.width, layout.hidden
    found: dict[str, tuple[int, ...]] = {
        "patch_embed.proj.weight": (width, layout.channels, layout.patch, layout.patch),
        "patch_embed.proj.bias": (width,),
        "pos_alpha": (layout.layers - 1,),
        "final_norm.weight": (width,),
        "final_norm.bias": (width,),
    }
    for number in range(layout.chunks):
        found[f"query_token_chunks.{number}"] = (1, layout.chunk, width)
        found[f"qcoord_chunks.{number}"] = (1, layout.chunk, 2)
    for layer in range(layout.layers - 1):
        found[f"pos_linears.{layer}.weight"] = (2, width)
        found[f"pos_linears.{layer}.bias"] = (2,)
    for layer in range(layout.layers):
        linears = {
            "attn.q_proj": (width, width),
            "attn.k_proj": (width, width),
            "attn.v_proj": (width, width),
            "attn.out_proj": (width, width),
            "fc1": (2 * hidden, width),
            "fc2": (width, hidden),
        }
        for name, shape in linears.items():
            found[f"blocks.{layer}.{name}.weight"] = shape
            found[f"blocks.{layer}.{name}.bias"] = shape[:1]
        for name in ("norm_attn", "norm_ffn"):
            found[f"blocks.{layer}.{name}.weight"] = (width,)
            found[f"blocks.{layer}.{name}.bias"] = (width,)
    if layout.teacher_width is not None:
        found["output_proj.weight"] = (layout.teacher_width, width)
        found["output_proj.bias"] = (layout.teacher_width,)
    return found


def random_state(layout: Layout, seed: int = 0) -> State:
    """A state dict in which every number matters: biases, norms, scales and coordinates too."""
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in shapes(layout).items():
        numbers = torch.randn(shape, generator=draw)
        if "norm" in name and name.endswith("weight"):
            state[name] = 1 + 0.2 * numbers
        elif name.startswith(("query_token", "qcoord", "pos_alpha")):
            state[name] = numbers
        else:
            fan = math.prod(shape[1:]) or 1
            state[name] = numbers * (0.3 if len(shape) == 1 else fan**-0.5)
    return state


def features(
    state: State, layout: Layout, heads: int, images: Tensor, budget: int
) -> tuple[Tensor, Tensor]:
    """The global feature and the patches, for a budget of whole chunks."""
    used = range(budget // layout.chunk)
    count = len(images)
    cores = torch.cat([state[f"query_token_chunks.{n}"] for n in used], 1).repeat(count, 1, 1)
    places = torch.cat([state[f"qcoord_chunks.{n}"] for n in used], 1).repeat(count, 1, 1)
    embedding = F.conv2d(
        images, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], layout.patch
    )
    rows, columns = embedding.shape[2:]
    tokens = torch.cat((cores, embedding.flatten(2).transpose(1, 2)), 1)
    centers = [
        [(column + 0.5) / columns * 2 - 1, (row + 0.5) / rows * 2 - 1]
        for row in range(rows)
        for column in range(columns)
    ]
    grid = torch.tensor(centers).repeat(count, 1, 1)
    for layer in range(layout.layers):
        if layer > 0:
            step = linear(state, f"pos_linears.{layer - 1}", tokens[:, :budget])
            places = places + state["pos_alpha"][layer - 1] * step
        points = torch.cat((places.tanh(), grid), 1)
        tokens = block(state, f"blocks.{layer}", tokens, points, heads=heads, budget=budget)
    tokens = norm(state, "final_norm", tokens)
    return tokens[:, 0], tokens[:, budget:]


def block(
    state: State, name: str, tokens: Tensor, points: Tensor, *, heads: int, budget: int
) -> Tensor:
    """Attention under the core-periphery mask, then SwiGLU."""
    normed = norm(state, f"{name}.norm_attn", tokens)
    query, key, value = (
        linear(state, f"{name}.attn.{part}_proj", normed).unflatten(2, (heads, -1)).transpose(1, 2)
        for part in "qkv"
    )
    total = tokens.shape[1]
    reads = torch.zeros(total, total, dtype=torch.bool)
    reads[:budget] = True  # cores read everything
    reads[:, :budget] = True  # everything reads cores
    scores = turned(query, points) @ turned(key, points).transpose(2, 3) / query.shape[3] ** 0.5
    mixed = scores.masked_fill(~reads, -math.inf).softmax(3) @ value
    tokens = tokens + linear(state, f"{name}.attn.out_proj", mixed.transpose(1, 2).flatten(2))
    normed = norm(state, f"{name}.norm_ffn", tokens)
    gates, values = linear(state, f"{name}.fc1", normed).chunk(2, 2)
    return tokens + linear(state, f"{name}.fc2", F.silu(gates) * values)


def turned(vectors: Tensor, points: Tensor) -> Tensor:
    """Rotary position: x turns the first half of the channels, y the second, in neighbor pairs."""
    channels = vectors.shape[3]
    quarter = channels // 4
    still = round(0.125 * quarter)
    found = torch.empty_like(vectors)
    for axis in range(2):
        for number in range(quarter):
            first = axis * channels // 2 + 2 * number
            period = math.inf if number >= quarter - still else 100 ** (number / quarter)
            angle = (2 * math.pi * points[:, None, :, axis]) / period
            one, other = vectors[..., first], vectors[..., first + 1]
            found[..., first] = one * angle.cos() - other * angle.sin()
            found[..., first + 1] = other * angle.cos() + one * angle.sin()
    return found


def linear(state: State, name: str, inputs: Tensor) -> Tensor:
    """A linear layer."""
    return inputs @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def norm(state: State, name: str, inputs: Tensor) -> Tensor:
    """Layer normalization."""
    centered = inputs - inputs.mean(-1, keepdim=True)
    spread = (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return centered / spread * state[f"{name}.weight"] + state[f"{name}.bias"]
