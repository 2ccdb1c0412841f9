"""From what a user calls a model to something that probes can look through."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from veca.backbone.arguments import checked_budget, checked_units
from veca.backbone.model import VECA
from veca.backbone.sizes import SIZES
from veca.data.normalisation import IMAGENET
from veca.probe import raw_pixels
from veca.probe.frozen import Frozen, ModelFacts, ProbeModel, ProbeModelError
from veca.probe.paper_sides import paper_side
from veca.probe.raw_pixels import RawPixels
from veca.probe.setting import Setting
from veca.probe.speed import milliseconds
from veca.runtime.paths import existing_path, missing_path
from veca.teacher.find import TEACHERS, find_teacher
from veca.teacher.teacher import Teacher
from veca.teacher.untrained import PREFIX
from veca.teacher.veca_model import VecaTeacher
from veca.teacher.vision_transformer import VisionTransformerTeacher
from veca.weights.facts import shows_training
from veca.weights.named import named_model
from veca.weights.sources import bundled_names

__all__ = [
    "Frozen",
    "ProbeModel",
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


class VecaModel(ProbeModel):
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
            trained=any(shows_training(key, item) for key, item in model.state_dict().items()),
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
                checked_budget(config, budget)
            for share in parts:
                checked_units(config, share)
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
        features = self.model(IMAGENET.normalise(images), setting.budget, setting.ffn)
        return Frozen(features.image, features.patch_map)

    def gflops(self, sides: tuple[int, int], setting: Setting) -> float | None:
        """By formula, which says the same as torch's counter."""
        return self.model.cost(*sides, setting.budget, setting.ffn).flops / 1e9


class TeacherModel(ProbeModel):
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


def find_probe_model(name: str, device: torch.device) -> ProbeModel:
    """The model that a name means.

    Args:
        name: a VECA (folder, file, bundled name, name on the hub; that of a size means an untrained
            one, always the same), any teacher that `find_teacher` knows, or 'pixels'.
        device: where it is to run.
    """
    exists = existing_path(name) is not None
    if not exists and name == raw_pixels.NAME:
        return RawPixels(device)
    if not exists and name in SIZES:
        found = named_model(name)
        return VecaModel(found.model, device, name=name, digest=found.digest)
    known, problem = {*TEACHERS, *bundled_names()}, missing_path(name)
    if not exists and "/" not in name and ":" not in name and name.partition("@")[0] not in known:
        problem = problem or f"{name!r} is no model"
    if problem is not None:
        raise ProbeModelError(
            f"{problem}; give {raw_pixels.NAME}, one of {', '.join(SIZES)} (untrained), one of "
            f"{', '.join((*TEACHERS, *bundled_names()))}, a folder or .safetensors file that "
            "exists, a name on the hub such as 'owner/name', or 'module:attribute'."
        )
    teacher = find_teacher(name)
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
    if isinstance(teacher, VisionTransformerTeacher) and _kind(teacher) in FIXED_SIZE:
        config: Any = teacher.network.config
        if isinstance(config.image_size, int):
            return config.image_size
    return 224 if teacher.stride == 14 else _usual(teacher.stride)


def _kind(teacher: Teacher) -> str | None:
    """What the library calls a vision transformer; None for other teachers."""
    if not isinstance(teacher, VisionTransformerTeacher):
        return None
    config: Any = teacher.network.config
    return config.model_type


def _usual(stride: int) -> int:
    """256 pixels, or what the paper has in their place, brought up to whole patches."""
    return math.ceil(paper_side(256, stride) / stride) * stride
