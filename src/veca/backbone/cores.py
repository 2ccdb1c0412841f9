"""The cores: an ordered bank of learned tokens, each with a position that moves.

Training with varying budgets drops suffixes of the bank (nested dropout), so cores are ordered by
importance and any prefix works alone.
"""

import itertools
from typing import Any

import torch
from jaxtyping import Float
from torch import SymInt, Tensor, nn
from torch.nn import functional as F

from veca.backbone.config import BackboneConfig, CoreMotion
from veca.backbone.rope import spread_points

Cores = Float[Tensor, "B C D"]
Points = Float[Tensor, "B C 2"]

INITIAL_STEP_SCALE = 0.01
"""Cores hardly move until training finds a use for motion."""

NORMALIZED_STEP = 0.1
"""Factor of a step that is read from a normalized feature (of norm root of the width): an untrained
head moves a core by about 0.03."""

INITIAL_SHARE_LOGIT = -2.944
"""Logit of 1/20."""

MAX_POINT = 0.999
"""Cores that follow their attention stay within this, where atanh is finite."""


class CoreBank(nn.Module):
    """The ordered cores and the points they start from, in chunks that follow the budgets.

    A configured budget uses whole chunks, so cores beyond it get no gradient at all. With one
    parameter for the bank they would get a gradient of zero, and AdamW would still decay them and
    move them by their momentum. DistributedDataParallel needs `find_unused_parameters=True` for
    this. A bank stored in other chunks loads if it has as many cores.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        full = config.attention == "full"
        budgets = (config.cores,) if full else config.budgets
        sizes = [after - before for before, after in itertools.pairwise((0, *budgets))]
        self.tokens = nn.ParameterList(torch.empty(size, config.width) for size in sizes)
        self.points = nn.ParameterList([] if full else [torch.empty(size, 2) for size in sizes])
        self.register_load_state_dict_pre_hook(_cut_into_chunks)  # type: ignore[no-untyped-call]

    @property
    def position_dtype(self) -> torch.dtype:
        """Positions are computed in fp32 at least, also in a model cast to half precision."""
        return torch.promote_types(self.tokens[0].dtype, torch.float32)

    def forward(self, batch: int, budget: int) -> tuple[Cores, Points]:
        """The first `budget` cores and their unbounded positions, the same for every image."""
        cores = _first_rows(self.tokens, budget)
        if len(self.points):
            positions = _first_rows(self.points, budget).to(self.position_dtype)
        else:  # prefix tokens are at the center, where RoPE is the identity
            positions = cores.new_zeros(budget, 2, dtype=self.position_dtype)
        return cores.expand(batch, -1, -1), positions.expand(batch, -1, -1)

    def reset_parameters(self) -> None:
        """Tokens of norm about one; points spread so that each prefix covers the image."""
        for chunk in self.tokens:
            nn.init.normal_(chunk, std=chunk.shape[1] ** -0.5)
        sizes = [len(chunk) for chunk in self.points]
        if not sizes or self.points[0].is_meta:
            return
        starts = torch.tensor(spread_points(sum(sizes))).atanh().split(sizes)
        with torch.no_grad():
            for chunk, start in zip(self.points, starts, strict=True):
                chunk.copy_(start)


class CoreStep(nn.Module):
    """The paper's motion: each core's step is a linear function of its raw feature.

    Raw features grow in training, so the learned scale shrinks and cores stop moving
    (docs/decisions.md). The motions below avoid that.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.width, 2)
        self.scale = nn.Parameter(torch.empty(1))  # not a scalar: fully_shard takes none

    def forward(self, positions: Points, cores: Cores, reads: Points | None) -> Points:
        """Unbounded positions after the step."""
        del reads
        return positions + (self.scale * self.head(cores)).to(positions.dtype)

    def reset_parameters(self) -> None:
        """Start with small steps; `VECA.reset_parameters` draws the head."""
        nn.init.constant_(self.scale, INITIAL_STEP_SCALE)


class NormalizedCoreStep(nn.Module):
    """A step read from the normalized feature, with a fixed factor."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.width, 2)

    def forward(self, positions: Points, cores: Cores, reads: Points | None) -> Points:
        """Unbounded positions after the step."""
        del reads
        step = self.head(F.layer_norm(cores, cores.shape[-1:]))
        return positions + NORMALIZED_STEP * step.to(positions.dtype)

    def reset_parameters(self) -> None:
        """Nothing: `VECA.reset_parameters` draws the head."""


class AttentionCoreStep(nn.Module):
    """A step toward the center of mass of what the core read in the layer before.

    The step is a share of the way, between 0 and 1 and learned for each layer, so a core stays
    inside the image.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        del config
        self.share = nn.Parameter(torch.empty(1))

    def forward(self, positions: Points, cores: Cores, reads: Points | None) -> Points:
        """Unbounded positions after the step."""
        del cores
        if reads is None:
            return positions
        points = positions.tanh()
        share = self.share.to(points.dtype).sigmoid()
        moved = points + share * (reads.to(points.dtype) - points)
        return moved.clamp(-MAX_POINT, MAX_POINT).atanh()

    def reset_parameters(self) -> None:
        """Start with 1/20 of the way: an untrained layer attends everywhere."""
        nn.init.constant_(self.share, INITIAL_SHARE_LOGIT)


CORE_STEPS: dict[CoreMotion, type[CoreStep | NormalizedCoreStep | AttentionCoreStep]] = {
    "paper": CoreStep,
    "normalized": NormalizedCoreStep,
    "attention": AttentionCoreStep,
}
"""Core motion by its name in the configuration."""

AnyCoreStep = CoreStep | NormalizedCoreStep | AttentionCoreStep


def _first_rows(chunks: nn.ParameterList, count: int | SymInt) -> Tensor:
    """The first rows, using no more chunks than needed (all of them if the count is a symbol)."""
    if isinstance(count, SymInt):
        return torch.cat(list(chunks)).narrow(0, 0, count)
    starts = itertools.accumulate((len(chunk) for chunk in chunks), initial=0)
    used = [chunk for chunk, start in zip(chunks, starts, strict=False) if start < count]
    return torch.cat(used).narrow(0, 0, count)


def _cut_into_chunks(bank: CoreBank, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading, regroup a bank that was stored in other chunks."""
    for name, chunks in (("tokens", bank.tokens), ("points", bank.points)):
        stem = f"{prefix}{name}."
        numbers = sorted(
            int(key.removeprefix(stem))
            for key in state
            if key.startswith(stem) and key.removeprefix(stem).isdecimal()
        )
        sizes = [len(chunk) for chunk in chunks]
        stored = [len(state[f"{stem}{number}"]) for number in numbers]
        if stored == sizes or sum(stored) != sum(sizes):
            continue  # nothing to do, or torch reports the sizes that differ
        rows = torch.cat([state.pop(f"{stem}{number}") for number in numbers])
        for number, chunk in enumerate(rows.split(sizes)):
            # Cloned, since a chunk may be assigned and must not keep the others alive.
            state[f"{stem}{number}"] = chunk.clone()
