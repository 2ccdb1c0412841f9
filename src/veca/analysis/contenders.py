"""Who is compared: VECA at its budgets, its plain form, and the full-attention twin, merged or not.

All are built untrained from one configuration: time, memory and FLOPs depend on sizes, not on what
the weights have learned.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import torch

from veca.analysis.merging import MergedTwin, merged_cost, patches_left
from veca.backbone.attention import CorePeripheryAttention
from veca.backbone.config import PAPER_BUDGETS, BackboneConfig
from veca.backbone.cost import folded_flops
from veca.backbone.features import Features
from veca.backbone.model import VECA, grid_of
from veca.runtime.device import ResolvedPrecision, autocast

Kind = Literal["veca", "plain", "twin", "merging"]
"""'plain' is VECA with attention unfolded, 'merging' the full-attention twin with token merging."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One model in one mode."""

    kind: Kind

    budget: int | None = None
    """Cores; None for a twin, which has none."""

    ffn: float = 1.0
    """Share of the hidden units."""

    rate: int = 0
    """Pairs of patches merged in each layer, r in the paper of token merging."""

    precision: ResolvedPrecision = "fp32"
    """What it computes with; weights are fp32 in any case."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        end = "" if self.precision == "fp32" else f", {self.precision}"
        if self.kind == "twin":
            return f"full-attention twin{end}"
        if self.kind == "merging":
            return f"twin, merging tokens{end}"
        form = "plain form" if self.kind == "plain" else "VECA"
        share = "" if self.ffn == 1 else f", FFN {self.ffn:g}"
        return f"{form}, {self.budget} core{'' if self.budget == 1 else 's'}{share}{end}"


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all contenders of a run have in common."""

    backbone: BackboneConfig
    """Of the VECA model; its twin is built from it."""

    resolution: int
    """Side of the square images in pixels."""

    batch: int = 1
    """Images in one call."""

    device: str = "cpu"
    """Where to run, as torch names it."""

    threads: int | None = None
    """Threads of a CPU; None leaves torch's choice."""

    seed: int = 0
    """Decides weights and images."""

    @property
    def patches(self) -> int:
        """Patches N of an image."""
        rows, columns = self.grid
        return rows * columns

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return grid_of(self.backbone, self.resolution, self.resolution)


class Work(NamedTuple):
    """What a contender computes for one image, by formula."""

    gflops: float
    pairs: int
    """Query-key pairs of a block (their mean over blocks where tokens are merged)."""

    attention_share: float
    """Of the FLOPs, projections included."""

    folded: bool
    """Whether attention is computed in the folded form."""


class Lineup:
    """The models of a setup, each built when it is first needed, and images to run them on."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @cached_property
    def images(self) -> torch.Tensor:
        """Normally distributed pixels."""
        setup = self.setup
        side, channels = setup.resolution, setup.backbone.in_channels
        draw = torch.Generator().manual_seed(setup.seed)
        images = torch.randn(setup.batch, channels, side, side, generator=draw)
        return images.to(setup.device)

    @cached_property
    def veca(self) -> VECA:
        """The model itself."""
        return self._built(self.setup.backbone)

    @cached_property
    def twin(self) -> VECA:
        """Its baseline: the same blocks with full attention and one class token."""
        config = replace(
            self.setup.backbone, attention="full", budgets=PAPER_BUDGETS, ffn_shares=(1.0,)
        )
        return self._built(config)

    def call(self, contender: Contender) -> Callable[[], Features]:
        """A function that encodes the images and returns when the result is there."""
        model, images = self._encoder(contender), self.images

        def encode() -> Features:
            with autocast(images.device, contender.precision):
                features = model(images)
            if images.device.type != "cpu":
                torch.accelerator.synchronize(images.device)
            return features

        return encode

    def work(self, contender: Contender) -> Work:
        """What the contender computes for one image."""
        side = self.setup.resolution
        folded = False
        if contender.kind == "merging":
            config = self.twin.config
            cost = merged_cost(config, self.setup.grid, contender.rate)
        elif contender.kind == "twin":
            config, cost = self.twin.config, self.twin.cost(side, side)
        else:
            config = self.veca.config
            self.veca.set_attention_form("plain" if contender.kind == "plain" else "auto")
            cost = self.veca.cost(side, side, contender.budget, contender.ffn)
            folded = self._folds(contender)
        attention = cost.attention_flops
        if folded:
            cores = config.cores if contender.budget is None else contender.budget
            attention = folded_flops(config, self.setup.patches, cores)
        share = config.layers * attention / cost.flops
        return Work(cost.flops / 1e9, cost.pairs, share, folded)

    def patches_left(self, contender: Contender) -> int:
        """Tokens of patches that leave the last layer."""
        rate, layers = contender.rate, self.setup.backbone.layers
        return patches_left(self.setup.patches, rate, layers)[-1]

    def _encoder(self, contender: Contender) -> Callable[[torch.Tensor], Features]:
        """The model in its mode; the form is set at each call, since the modes share weights."""
        if contender.kind == "twin":
            return self.twin
        if contender.kind == "merging":
            return MergedTwin(self.twin, contender.rate)
        veca = self.veca

        def encode(images: torch.Tensor) -> Features:
            veca.set_attention_form("plain" if contender.kind == "plain" else "auto")
            return veca(images, contender.budget, contender.ffn)

        return encode

    def _folds(self, contender: Contender) -> bool:
        """Whether VECA, in the form that is set, folds at this budget."""
        attention = self.veca.block_of(0).attention
        budget = contender.budget or self.veca.config.cores
        return isinstance(attention, CorePeripheryAttention) and attention.is_folded(budget)

    def _built(self, config: BackboneConfig) -> VECA:
        """An untrained model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.setup.seed)
            model = VECA(config)
        return model.eval().to(self.setup.device)
