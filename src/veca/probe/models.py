"""Any frozen network behind one interface: 8-bit images in, image and patch features out.

All models see the same pixels; each one applies its own normalization and has its own stride.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from veca.backbone.config import SIZES
from veca.backbone.model import VECA, check_budget, check_ffn
from veca.data.transforms import IMAGENET
from veca.probe.rows import ProbeError, Setting
from veca.runtime.device import ResolvedPrecision, autocast
from veca.runtime.timing import Effort, measure
from veca.teacher.registry import PREFIX, TEACHERS, load_teacher
from veca.teacher.teacher import Grid, Images, Teacher, VecaTeacher
from veca.teacher.vit import ViTTeacher
from veca.weights.card import is_trained
from veca.weights.checkpoint import load_or_build
from veca.weights.hub import bundled_names, existing_path, missing_path

PATCH14_SIZES: Mapping[int, int] = {256: 252, 384: 392, 512: 518, 768: 770}
"""Resolutions for patches of 14 pixels by those for 16 (section A.5, Table S.10)."""

MAX_TIMING_SECONDS = 60.0
"""No further round of a timing begins after this time, which all models share."""

PIXELS = "pixels"
"""The name of `PixelModel`."""

IMAGE_CELLS = 16
"""Rows and columns of mean colors that describe an image."""

PATCH_CELLS = 4
"""Rows and columns of mean colors that describe a patch."""

FIXED_SIZE = {"clip_vision_model", "siglip_vision_model", "vit"}
"""Kinds with position embeddings for one image size, at which the paper classifies."""

WITHOUT_CLASS_TOKEN = {"siglip_vision_model", "siglip2_vision_model"}
"""Kinds whose dense heads see only patches in the paper: SigLIP, and both forms of SigLIP 2."""


class FrozenFeatures(NamedTuple):
    """Features of B images in single precision, without gradients."""

    image: Float[Tensor, "B DI"]
    patches: Float[Tensor, "B DP rows columns"]


@dataclass(kw_only=True, eq=False)
class FrozenModel:
    """The base class of all models; a subclass defines `forward`."""

    device: torch.device
    name: str
    kind: Literal["veca", "teacher", "pixels"]
    digest: str | None
    """SHA-256 over the weights and whatever else the features depend on; None if unknown."""
    trained: bool
    stride: int
    """Height and width of a patch in pixels."""
    image_width: int
    patch_width: int
    default_resolution: int
    """Side of the images at which the paper classifies with this kind of model, in pixels."""
    append_image_feature: bool = True
    """Whether the paper's dense heads see the image feature beside each patch."""
    precision: ResolvedPrecision = "fp32"
    """Of the computation; features are returned in fp32."""

    def forward(self, images: Images, grid: Grid, setting: Setting) -> FrozenFeatures:
        """Features of images on the model's device, with `grid` rows and columns of patches."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward.")

    def settings(
        self, budgets: Sequence[int] | None, shares: Sequence[int | float] | None
    ) -> tuple[Setting, ...]:
        """The settings to evaluate, given the budgets and shares of a run.

        A model without budgets has one, so that teachers can take part in runs over budgets.
        """
        del budgets, shares
        return (Setting(),)

    def round_down_to_patch(self, pixels: int) -> int:
        """The largest multiple of the stride that is at most `pixels`, at least one stride."""
        return max(pixels // self.stride, 1) * self.stride

    @torch.no_grad()
    def extract(self, images: Images, setting: Setting) -> FrozenFeatures:
        """Features of 8-bit images whose sides are multiples of the stride."""
        grid = self.grid_of((images.shape[2], images.shape[3]))
        with autocast(self.device, self.precision):
            image, patches = self.forward(images.to(self.device), grid, setting)
        return FrozenFeatures(image.float(), patches.float().contiguous())

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """Cost of one image of this height and width; a multiply-add counts as two operations.

        torch counts matrix products, convolutions and attention; None if there are none.
        """
        image = torch.zeros(1, 3, *sides, dtype=torch.uint8)
        # The counter does not know the fused attention of the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.extract(image, setting)
        return counter.get_total_flops() / 1e9 or None

    def grid_of(self, sides: tuple[int, int]) -> Grid:
        """Rows and columns of patches of an image of this height and width."""
        for side in sides:
            if side < 1 or side % self.stride:
                raise ProbeError(
                    f"images of {sides[0]} x {sides[1]} pixels do not fit the stride "
                    f"{self.stride} of {self.name}; use {self.round_down_to_patch(side)} in "
                    f"place of {side}."
                )
        return sides[0] // self.stride, sides[1] // self.stride


def time_models(
    models: Sequence[tuple[FrozenModel, Setting]],
    sides: tuple[int, int],
    rounds: int = 7,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median milliseconds for one image of this height and width, for each model at its setting.

    Sides are rounded down to each model's stride. All models take turns in every round, so that
    their ratios hold even where the machine slows down.
    """
    cases = {}
    for number, (model, setting) in enumerate(models):
        height, width = (model.round_down_to_patch(side) for side in sides)
        generator = torch.Generator().manual_seed(0)
        image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8, generator=generator)
        name = f"{number} {model.name} ({setting.label})"
        cases[name] = partial(_run, model, image.to(model.device), setting)
    limit = MAX_TIMING_SECONDS / max(1, len(cases))
    effort = Effort(rounds=rounds, seconds=0.0, most_seconds=limit)
    return [timing.milliseconds.median for timing in measure(cases, effort, clock=clock).values()]


def _run(model: FrozenModel, image: Tensor, setting: Setting) -> None:
    """Return once the features are computed."""
    model.extract(image, setting)
    if model.device.type != "cpu":
        torch.accelerator.synchronize(model.device)


class VecaModel(FrozenModel):
    """A VECA or a full-attention baseline: the first core and the patches."""

    def __init__(self, model: VECA, device: torch.device, *, name: str, digest: str | None) -> None:
        config = model.config
        super().__init__(
            device=device,
            name=name,
            kind="veca",
            digest=digest,
            trained=is_trained(model.state_dict()),
            stride=config.patch_size,
            image_width=config.width,
            patch_width=config.width,
            default_resolution=_classification_size(config.patch_size),
        )
        self.model = model.to(device).eval().requires_grad_(False)

    def settings(
        self, budgets: Sequence[int] | None, shares: Sequence[int | float] | None
    ) -> tuple[Setting, ...]:
        """Every budget with every share; by default the budgets of training, all hidden units.

        A full-attention model has no budgets. All hidden units are None, so that a measurement
        has one name.
        """
        config = self.model.config
        cores: Sequence[int | None] = config.budgets if budgets is None else budgets
        if config.attention == "full":
            cores = (None,)
            shares = shares if config.ffn_shares != (1.0,) else None
        parts = (1.0,) if shares is None else tuple(map(float, shares))
        if not cores or not parts:
            raise ProbeError("no budget or no share is given; leave the flag out for all.")
        try:
            for budget in cores:
                check_budget(config, budget)
            for share in parts:
                check_ffn(config, share)
        except ValueError as error:
            raise ProbeError(f"{self.name}: {error}") from error
        found = (
            Setting(budget, None if share == 1 else share) for budget in cores for share in parts
        )
        return tuple(dict.fromkeys(found))

    def forward(self, images: Images, grid: Grid, setting: Setting) -> FrozenFeatures:
        """The features at this number of cores and share of hidden units."""
        del grid
        features = self.model(IMAGENET.normalize(images), setting.budget, setting.ffn)
        return FrozenFeatures(features.image, features.patch_map)

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """By formula, which agrees with torch's counter."""
        return self.model.cost(*sides, setting.budget, setting.ffn).flops / 1e9


class TeacherModel(FrozenModel):
    """Any teacher that `veca distill` can use, at its own stride."""

    def __init__(self, teacher: Teacher, device: torch.device) -> None:
        config: Any = teacher.network.config if isinstance(teacher, ViTTeacher) else None
        kind = getattr(config, "model_type", None)  # of transformers
        resolution = 224 if teacher.stride == 14 else _classification_size(teacher.stride)
        if kind in FIXED_SIZE and isinstance(config.image_size, int):
            resolution = config.image_size
        super().__init__(
            device=device,
            name=teacher.name,
            kind="teacher",
            digest=teacher.digest,
            trained=not teacher.name.startswith(PREFIX),
            stride=teacher.stride,
            image_width=teacher.image_width,
            patch_width=teacher.patch_width,
            default_resolution=resolution,
            append_image_feature=kind not in WITHOUT_CLASS_TOKEN,
        )
        self.teacher = teacher.to(device)

    def forward(self, images: Images, grid: Grid, setting: Setting) -> FrozenFeatures:
        """The outputs of the teacher."""
        del setting
        outputs = self.teacher(images, grid)
        return FrozenFeatures(outputs.image, outputs.patches.transpose(1, 2).unflatten(2, grid))


class PixelModel(FrozenModel):
    """Mean colors of 16 x 16 cells of the image and of 4 x 4 cells of each patch, as a baseline.

    ImageNet's normalization gives them mean 0 and unit scale, as cosines and SGD need. Colors come
    first within a feature, then rows, then columns.
    """

    def __init__(self, device: torch.device) -> None:
        stride = 16
        text = f"{PIXELS} {stride} {IMAGE_CELLS} {PATCH_CELLS} {IMAGENET}"
        super().__init__(
            device=device,
            name=PIXELS,
            kind="pixels",
            digest=hashlib.sha256(text.encode()).hexdigest(),
            trained=False,
            stride=stride,
            image_width=3 * IMAGE_CELLS**2,
            patch_width=3 * PATCH_CELLS**2,
            default_resolution=256,
        )

    def forward(self, images: Images, grid: Grid, setting: Setting) -> FrozenFeatures:
        """Mean colors."""
        del grid, setting
        pixels = IMAGENET.normalize(images)
        image = F.adaptive_avg_pool2d(pixels, IMAGE_CELLS).flatten(1)
        cells = F.avg_pool2d(pixels, self.stride // PATCH_CELLS)
        return FrozenFeatures(image, F.pixel_unshuffle(cells, PATCH_CELLS))


def find_model(name: str, device: torch.device) -> FrozenModel:
    """Find a model by name.

    That is a VECA (folder, file, bundled name, name on the hub, or a size, which means a fixed
    untrained model), any teacher that `load_teacher` knows, or 'pixels'.
    """
    exists = existing_path(name) is not None
    if not exists and name == PIXELS:
        return PixelModel(device)
    if not exists and name in SIZES:
        found = load_or_build(name)
        return VecaModel(found.model, device, name=name, digest=found.digest)
    known, problem = {*TEACHERS, *bundled_names()}, missing_path(name)
    if not exists and "/" not in name and ":" not in name and name.partition("@")[0] not in known:
        problem = problem or f"{name!r} is not a known model"
    if problem is not None:
        raise ProbeError(
            f"{problem}; use {PIXELS}, one of {', '.join(SIZES)} (untrained), one of "
            f"{', '.join((*TEACHERS, *bundled_names()))}, an existing folder or .safetensors file, "
            "a name on the hub such as 'owner/name', or 'module:attribute'."
        )
    teacher = load_teacher(name)
    if not isinstance(teacher, VecaTeacher):
        return TeacherModel(teacher, device)
    return VecaModel(teacher.network, device, name=teacher.name, digest=teacher.digest)


def resolution_for(pixels: int, stride: int) -> int:
    """The paper's resolution for a stride, given the one that it uses for patches of 16."""
    return PATCH14_SIZES.get(pixels, pixels) if stride == 14 else pixels


def _classification_size(stride: int) -> int:
    """The paper's 256 pixels (252 for patches of 14), rounded up to whole patches."""
    return math.ceil(resolution_for(256, stride) / stride) * stride
