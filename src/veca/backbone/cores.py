"""The cores: an ordered bank of learned tokens, each with a place that moves.

Training with changing budgets drops suffixes of the bank (nested dropout), so that its order means
importance and any prefix works alone.
"""

import itertools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.config import BackboneConfig, CoreMotion
from veca.backbone.rope import spread_points

FIRST_STEP_SCALE = 0.01
"""Cores hardly move until training finds a use for it."""

NORMALIZED_STEP = 0.1
"""Factor of a step that is read from a normalized feature, whose norm is the root of the width: a
head as it is drawn moves a core by about 0.03."""

FIRST_SHARE = -2.944
"""Log-odds of one in twenty."""

FARTHEST = 0.999
"""Cores that follow their attention stay within this, where atanh is finite."""


class CoreBank(nn.Module):
    """The ordered cores and the points they start from, in chunks that follow the budgets.

    A budget of the configuration uses whole chunks, so cores beyond it take no part and get no
    gradient at all. With one parameter for the bank they would get a gradient of zero, and AdamW
    would still decay them and move them by their momentum. Under DistributedDataParallel this needs
    `find_unused_parameters=True`. A bank that was stored in other chunks loads, as long as it has
    as many cores.
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
        """Positions are computed in single precision at least, also in a model cast to half."""
        return torch.promote_types(self.tokens[0].dtype, torch.float32)

    def forward(
        self, batch: int, budget: int
    ) -> tuple[Float[Tensor, "B C D"], Float[Tensor, "B C 2"]]:
        """The first `budget` cores and their unbounded positions, the same for every image."""
        cores = _first_rows(self.tokens, budget)
        if len(self.points):
            positions = _first_rows(self.points, budget).to(self.position_dtype)
        else:  # prefix tokens stand at the center, where rotary turns nothing
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
    """The paper's motion: each core's step is read from its own raw feature.

    Raw features grow with training, so that the learned scale shrinks and cores stop moving
    (docs/decisions.md); the motions below were made for that.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.width, 2)
        self.scale = nn.Parameter(torch.empty(1))  # not a scalar: fully_shard takes none

    def forward(
        self,
        positions: Float[Tensor, "B C 2"],
        cores: Float[Tensor, "B C D"],
        reads: Float[Tensor, "B C 2"] | None,
    ) -> Float[Tensor, "B C 2"]:
        """Positions in the unbounded plane after a step."""
        del reads
        return positions + (self.scale * self.head(cores)).to(positions.dtype)

    def reset_parameters(self) -> None:
        """Start with small steps; the head is drawn with all linear layers."""
        nn.init.constant_(self.scale, FIRST_STEP_SCALE)


class NormalizedCoreStep(nn.Module):
    """A step read from the normalized feature, with a factor that training cannot shrink."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.head = nn.Linear(config.width, 2)

    def forward(
        self,
        positions: Float[Tensor, "B C 2"],
        cores: Float[Tensor, "B C D"],
        reads: Float[Tensor, "B C 2"] | None,
    ) -> Float[Tensor, "B C 2"]:
        """Positions in the unbounded plane after a step."""
        del reads
        step = self.head(F.layer_norm(cores, cores.shape[-1:]))
        return positions + NORMALIZED_STEP * step.to(positions.dtype)

    def reset_parameters(self) -> None:
        """The head is drawn with all linear layers."""


class AttentionCoreStep(nn.Module):
    """A step toward the center of mass of what the core read in the layer before.

    A share of the way, between 0 and 1 and learned for each layer, so that a core stays inside the
    image wherever its attention is.
    """

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        del config
        self.share = nn.Parameter(torch.empty(1))

    def forward(
        self,
        positions: Float[Tensor, "B C 2"],
        cores: Float[Tensor, "B C D"],
        reads: Float[Tensor, "B C 2"] | None,
    ) -> Float[Tensor, "B C 2"]:
        """Positions in the unbounded plane after a step."""
        del cores
        if reads is None:
            return positions
        points = positions.tanh()
        share = self.share.to(points.dtype).sigmoid()
        moved = points + share * (reads.to(points.dtype) - points)
        return moved.clamp(-FARTHEST, FARTHEST).atanh()

    def reset_parameters(self) -> None:
        """Start with a twentieth of the way: attention of an untrained layer is everywhere."""
        nn.init.constant_(self.share, FIRST_SHARE)


CORE_STEPS: dict[CoreMotion, type[CoreStep | NormalizedCoreStep | AttentionCoreStep]] = {
    "paper": CoreStep,
    "normalized": NormalizedCoreStep,
    "attention": AttentionCoreStep,
}
"""What moves cores, by the name in the configuration."""

AnyCoreStep = CoreStep | NormalizedCoreStep | AttentionCoreStep


def _first_rows(chunks: nn.ParameterList, count: int) -> Tensor:
    """The first rows, from no more chunks than they fill."""
    starts = itertools.accumulate((len(chunk) for chunk in chunks), initial=0)
    used = [chunk for chunk, start in zip(chunks, starts, strict=False) if start < count]
    return torch.cat(used).narrow(0, 0, count)


def _cut_into_chunks(bank: CoreBank, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Before loading, cut a bank that was stored in other chunks as this one is cut."""
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
            continue  # nothing to do, or other cores: torch names the sizes that differ
        rows = torch.cat([state.pop(f"{stem}{number}") for number in numbers])
        for number, chunk in enumerate(rows.split(sizes)):
            state[f"{stem}{number}"] = chunk.clone()  # may be assigned: each owns its memory
