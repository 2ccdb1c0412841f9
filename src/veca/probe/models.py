"""Any frozen network behind one interface.

Sizes of pictures that the paper uses, which depend on the patches of a model.

Any frozen network behind one door: 8-bit images in, image and patch features out.

All models see the same images by the same code; each brings its own normalization and stride.

Time of a forward pass, so measured that the times of one report can be compared.

Raw pixels as features: what a probe makes of colors alone is the least that counts.

From what a user calls a model to something that probes can look through.
"""

import hashlib
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from veca.backbone.config import SIZES
from veca.backbone.model import VECA, check_budget, check_ffn
from veca.data.transforms import IMAGENET
from veca.probe.rows import Setting
from veca.runtime import VecaError
from veca.runtime.device import ResolvedPrecision, autocast
from veca.teacher.registry import PREFIX, TEACHERS, load_teacher
from veca.teacher.teacher import Teacher, VecaTeacher
from veca.teacher.vit import ViTTeacher
from veca.weights.card import is_trained
from veca.weights.checkpoint import named_model
from veca.weights.hub import bundled_names, existing_path, missing_path

PATCH_14: Mapping[int, int] = {256: 252, 384: 392, 512: 518, 768: 770}
"""Pixels for patches of 14 in the place of those for 16 (section A.5, Table S.10)."""


def paper_side(pixels: int, stride: int) -> int:
    """The size for a stride where the paper has `pixels` for 16; the same where it tells none."""
    return PATCH_14.get(pixels, pixels) if stride == 14 else pixels


Kind = Literal["veca", "teacher", "pixels"]


class ProbeModelError(VecaError, ValueError):
    """A model that cannot be had, or asked for what it does not do."""


class Frozen(NamedTuple):
    """What a model says of B images, in single precision and without gradients."""

    image: Float[Tensor, "B DI"]

    patches: Float[Tensor, "B DP rows columns"]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What a report says of a model."""

    name: str

    kind: Kind

    digest: str | None
    """SHA-256 over weights and all else that decides the features; None where nothing can tell."""

    licence: str | None
    """Of the weights; None where it is not recorded."""

    trained: bool

    stride: int
    """Pixels for one patch, in height and in width."""

    image_width: int

    patch_width: int

    elastic: bool
    """Whether it can be run at several settings."""

    default_resolution: int
    """Side of the images that the paper classifies with this kind of model, in pixels."""

    appended: bool = True
    """Whether the paper's dense heads see the image feature beside each patch; not that of SigLIP,
    which has no class token."""


class FrozenModel:
    """The base of all models; `look` is what each one must define."""

    def __init__(self, facts: ModelFacts, device: torch.device) -> None:
        self.facts, self.device = facts, device
        self.name, self.digest, self.licence = facts.name, facts.digest, facts.licence
        self.trained, self.elastic, self.stride = facts.trained, facts.elastic, facts.stride
        self.image_width, self.patch_width = facts.image_width, facts.patch_width
        self.default_resolution = facts.default_resolution
        self.precision: ResolvedPrecision = "fp32"
        """What it computes with; features come out in fp32."""

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """Features of images on the model's device, whose sides are known to fit."""
        raise NotImplementedError(f"{type(self).__name__} does not define look.")

    def settings(
        self, budgets: Sequence[int] | None, shares: Sequence[int | float] | None
    ) -> tuple[Setting, ...]:
        """What budgets and shares of a run mean for this model: one setting if it has no choice.

        Teachers and baselines take part in runs over budgets, so what is not for them is no error.
        """
        del budgets, shares
        return (Setting(),)

    def round_down_to_patch(self, pixels: int) -> int:
        """The greatest multiple of the stride that is not above `pixels`, at least one stride."""
        return max(pixels // self.stride, 1) * self.stride

    @torch.no_grad()
    def observe(self, images: UInt8[Tensor, "B 3 H W"], setting: Setting) -> Frozen:
        """Features of 8-bit images whose sides are multiples of the stride."""
        grid = self.grid_of((images.shape[2], images.shape[3]))
        with autocast(self.device, self.precision):
            image, patches = self.look(images.to(self.device), grid, setting)
        return Frozen(image.float(), patches.float().contiguous())

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """What an image of this height and width costs, two operations for a multiply-add.

        Counted by torch over matrix products, convolutions and attention; None where it sees none.
        """
        image = torch.zeros(1, 3, *sides, dtype=torch.uint8)
        # Of the fused forms of attention the counter does not know that of the CPU.
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            self.observe(image, setting)
        return counter.get_total_flops() / 1e9 or None

    def grid_of(self, sides: tuple[int, int]) -> tuple[int, int]:
        """Rows and columns of patches of an image of this height and width."""
        for side in sides:
            if side < 1 or side % self.stride:
                raise ProbeModelError(
                    f"{self.name} cannot see images of {sides[0]} x {sides[1]} pixels, which are "
                    f"no multiples of its stride {self.stride}; use {self.round_down_to_patch(side)} in "
                    f"place of {side}."
                )
        return sides[0] // self.stride, sides[1] // self.stride

    def describe(self) -> dict[str, Any]:
        """What a report says of it, as plain values."""
        return asdict(self.facts)


MOST_SECONDS = 60.0
"""No further round begins after so long."""


def milliseconds(
    models: Sequence[tuple[FrozenModel, Setting]],
    sides: tuple[int, int],
    rounds: int = 7,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Median time for one image of this height and width, for each model at its setting.

    Each side is brought to the nearest that fits a model's stride and is not larger. Everybody
    takes part in every round, in an order that is drawn anew: what slows the machine for a while
    slows all, so ratios hold where times do not.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds} measures nothing; use at least 1.")
    calls = [_call(model, sides, setting) for model, setting in models]
    for call in calls:
        call()  # the first one also loads kernels and reserves memory
    order, draw = list(range(len(calls))), random.Random(0)
    samples: list[list[float]] = [[] for _ in calls]
    begin = clock()
    for _ in range(rounds):
        draw.shuffle(order)
        for number in order:
            start = clock()
            calls[number]()
            samples[number].append(1000 * (clock() - start))
        if clock() - begin > MOST_SECONDS:
            break
    return [statistics.median(found) for found in samples]


def _call(model: FrozenModel, sides: tuple[int, int], setting: Setting) -> Callable[[], None]:
    """A function that returns when the features of one image are there."""
    height, width = (model.round_down_to_patch(side) for side in sides)
    draw = torch.Generator().manual_seed(0)
    image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8, generator=draw)
    image = image.to(model.device)

    def observe() -> None:
        model.observe(image, setting)
        if model.device.type != "cpu":
            torch.accelerator.synchronize(model.device)

    return observe


NAME = "pixels"

STRIDE = 16

IMAGE_CELLS = 16
"""Rows and columns of means that an image is summed up by."""

PATCH_CELLS = 4
"""Rows and columns of means that a patch is summed up by."""


class PixelModel(FrozenModel):
    """Mean colors of 16 x 16 cells of the image, and of 4 x 4 cells of each patch.

    In ImageNet's normalization: about zero and of unit size, so that cosines and steps of a
    gradient mean something. Within a feature the colors come first, then rows, then columns.
    """

    def __init__(self, device: torch.device) -> None:
        words = f"{NAME} {STRIDE} {IMAGE_CELLS} {PATCH_CELLS} {IMAGENET}"
        facts = ModelFacts(
            name=NAME,
            kind="pixels",
            digest=hashlib.sha256(words.encode()).hexdigest(),
            licence=None,
            trained=False,
            stride=STRIDE,
            image_width=3 * IMAGE_CELLS**2,
            patch_width=3 * PATCH_CELLS**2,
            elastic=False,
            default_resolution=256,
        )
        super().__init__(facts, device)

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """Means of colors."""
        del grid, setting
        pixels = IMAGENET.normalize(images)
        image = F.adaptive_avg_pool2d(pixels, IMAGE_CELLS).flatten(1)
        cells = F.avg_pool2d(pixels, STRIDE // PATCH_CELLS)
        return Frozen(image, F.pixel_unshuffle(cells, PATCH_CELLS))


__all__ = [
    "Frozen",
    "FrozenModel",
    "ProbeModelError",
    "TeacherModel",
    "VecaModel",
    "find_probe_model",
    "milliseconds",
]

FIXED_SIZE = {"clip_vision_model", "siglip_vision_model", "vit"}
"""Kinds whose learned places are for one size of images, at which the paper classifies."""

WITHOUT_CLASS_TOKEN = {"siglip_vision_model", "siglip2_vision_model"}
"""Kinds whose dense heads see patches alone in the paper, SigLIP 2 of one size and of any."""


class VecaModel(FrozenModel):
    """A VECA, or its full-attention twin: the first core, and the patches."""

    def __init__(
        self,
        model: VECA,
        device: torch.device,
        *,
        name: str,
        digest: str | None,
        licence: str | None = None,
    ) -> None:
        config = model.config
        whole = config.attention == "full" and config.ffn_shares == (1.0,)
        facts = ModelFacts(
            name=name,
            kind="veca",
            digest=digest,
            licence=licence,
            trained=any(is_trained(key, item) for key, item in model.state_dict().items()),
            stride=config.patch_size,
            image_width=config.width,
            patch_width=config.width,
            elastic=not whole,
            default_resolution=_usual(config.patch_size),
        )
        super().__init__(facts, device)
        self.model = model.to(device).eval().requires_grad_(False)

    def settings(
        self, budgets: Sequence[int] | None, shares: Sequence[int | float] | None
    ) -> tuple[Setting, ...]:
        """Every budget with every share; without budgets those that the model was trained with.

        A twin has no budgets, and shares only if it is nested. All hidden units are written as
        None, so that one measurement has one name.
        """
        config = self.model.config
        cores: Sequence[int | None] = config.budgets if budgets is None else budgets
        if config.attention == "full":
            cores = (None,)
        parts = (1.0,) if not self.elastic or shares is None else tuple(map(float, shares))
        if not cores or not parts:
            raise ProbeModelError("no budget or no share is named; leave the flag out for all.")
        try:
            for budget in cores:
                check_budget(config, budget)
            for share in parts:
                check_ffn(config, share)
        except ValueError as error:
            raise ProbeModelError(f"{self.name}: {error}") from error
        found = (
            Setting(budget, None if share == 1 else share) for budget in cores for share in parts
        )
        return tuple(dict.fromkeys(found))

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """What the model says with so many cores and hidden units."""
        del grid
        features = self.model(IMAGENET.normalize(images), setting.budget, setting.ffn)
        return Frozen(features.image, features.patch_map)

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """By formula, which says the same as torch's counter."""
        return self.model.cost(*sides, setting.budget, setting.ffn).flops / 1e9


class TeacherModel(FrozenModel):
    """Any teacher of the distillation package, at its own stride."""

    def __init__(self, teacher: Teacher, device: torch.device) -> None:
        facts = ModelFacts(
            name=teacher.name,
            kind="teacher",
            digest=teacher.digest,
            licence=teacher.licence,
            trained=not teacher.name.startswith(PREFIX),
            stride=teacher.stride,
            image_width=teacher.image_width,
            patch_width=teacher.patch_width,
            elastic=False,
            default_resolution=_resolution(teacher),
            appended=_kind(teacher) not in WITHOUT_CLASS_TOKEN,
        )
        super().__init__(facts, device)
        self.teacher = teacher.to(device)

    def look(
        self, images: UInt8[Tensor, "B 3 H W"], grid: tuple[int, int], setting: Setting
    ) -> Frozen:
        """What the teacher says of images that have its own size."""
        del setting
        targets = self.teacher(images, grid)
        return Frozen(targets.image, targets.patches.transpose(1, 2).unflatten(2, grid))


def find_probe_model(name: str, device: torch.device) -> FrozenModel:
    """The model that a name means.

    Args:
        name: a VECA (folder, file, bundled name, name on the hub; that of a size means an untrained
            one, always the same), any teacher that `load_teacher` knows, or 'pixels'.
        device: where it is to run.
    """
    exists = existing_path(name) is not None
    if not exists and name == NAME:
        return PixelModel(device)
    if not exists and name in SIZES:
        found = named_model(name)
        return VecaModel(found.model, device, name=name, digest=found.digest)
    known, problem = {*TEACHERS, *bundled_names()}, missing_path(name)
    if not exists and "/" not in name and ":" not in name and name.partition("@")[0] not in known:
        problem = problem or f"{name!r} is no model"
    if problem is not None:
        raise ProbeModelError(
            f"{problem}; give {NAME}, one of {', '.join(SIZES)} (untrained), one of "
            f"{', '.join((*TEACHERS, *bundled_names()))}, a folder or .safetensors file that "
            "exists, a name on the hub such as 'owner/name', or 'module:attribute'."
        )
    teacher = load_teacher(name)
    if not isinstance(teacher, VecaTeacher):
        return TeacherModel(teacher, device)
    return VecaModel(
        teacher.network,
        device,
        name=teacher.name,
        digest=teacher.digest,
        licence=teacher.licence,
    )


def _resolution(teacher: Teacher) -> int:
    """Side of the images that the paper classifies with this kind of model (section A.5)."""
    if isinstance(teacher, ViTTeacher) and _kind(teacher) in FIXED_SIZE:
        config: Any = teacher.network.config
        if isinstance(config.image_size, int):
            return config.image_size
    return 224 if teacher.stride == 14 else _usual(teacher.stride)


def _kind(teacher: Teacher) -> str | None:
    """What the library calls a vision transformer; None for other teachers."""
    if not isinstance(teacher, ViTTeacher):
        return None
    config: Any = teacher.network.config
    return config.model_type


def _usual(stride: int) -> int:
    """256 pixels, or what the paper has in their place, brought up to whole patches."""
    return math.ceil(paper_side(256, stride) / stride) * stride
