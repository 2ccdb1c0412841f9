"""The student: a backbone and an adaptor per teacher, and their initial weights."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.model import INITIAL_STD, VECA, Features
from veca.data.transforms import IMAGENET
from veca.distill.config import AdaptorKind, DistillConfig
from veca.distill.losses import Prediction
from veca.distill.run_folder import ADAPTORS_NAME
from veca.runtime.device import seed_for
from veca.runtime.tensors import DamagedFileError, load_tensors, read_tensors
from veca.teacher.teacher import Teacher
from veca.weights.checkpoint import load

Initialize = Callable[[VECA], None]
"""Gives a backbone initial weights, such as slices of a larger model."""


class Adaptor(nn.Module):
    """Maps the student's image feature and patches to a teacher's widths.

    It is trained with the student and not part of the published model.
    """

    def __init__(self, width: int, image_width: int, patch_width: int, kind: AdaptorKind) -> None:
        super().__init__()
        self.image = _layers(width, image_width, kind)
        self.patches = _layers(width, patch_width, kind)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)
                nn.init.zeros_(module.bias)

    def forward(self, features: Features) -> Prediction:
        """Predict a teacher's image feature and patches."""
        return Prediction(self.image(features.image), self.patches(features.patches))


def _layers(width: int, target: int, kind: AdaptorKind) -> nn.Module:
    if kind == "auto":
        kind = "none" if width == target else "linear"
    if kind == "none":
        if width != target:
            raise ValueError(
                f"adaptor='none' needs equal widths, got {width} for the student and {target} for "
                "the teacher; use 'auto', 'linear' or 'two-layer'."
            )
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(width, target)
    hidden = max(width, target)
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, target))


class Student(nn.Module):
    """The trained module: `backbone` is published, `adaptors` are not."""

    def __init__(self, backbone: VECA, adaptors: Sequence[Adaptor]) -> None:
        super().__init__()
        self.backbone = backbone
        self.adaptors = nn.ModuleList(adaptors)

    def forward(
        self, images: UInt8[Tensor, "B 3 height width"], budget: int | None, ffn: float
    ) -> list[Prediction]:
        """Predict every teacher's features of 8-bit images."""
        features = self.backbone(IMAGENET.normalize(images), budget, ffn)
        return [adaptor(features) for adaptor in self.adaptors]


def build_student(
    config: DistillConfig,
    widths: Sequence[tuple[int, int]],
    teachers: Sequence[Teacher],
    *,
    initialize: Initialize | None = None,
    resuming: bool = False,
) -> Student:
    """The student before its first step; `widths` are those of each teacher's targets.

    If `resuming`, all weights will come from a checkpoint and no initial ones are loaded.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, 0, "student"))
        backbone = VECA(config.student)
        torch.manual_seed(seed_for(config.seed, 0, "adaptors"))
        adaptors = [
            Adaptor(config.student.width, image, patches, config.adaptor)
            for image, patches in widths
        ]
    student = Student(backbone, adaptors)
    if resuming:
        return student
    if config.start is not None:
        _start_from(student, config)
    elif initialize is not None:
        initialize(backbone)
    elif config.slices is not None:
        raise ValueError(
            f"slices={config.slices!r} needs the weights to slice: pass "
            "initialize=veca.convert.slices.slices_of(config) to distill()."
        )
    if config.copy_patch_embedding != "no" and config.start is None:
        _copy_patch_embedding(backbone, teachers[0], config.copy_patch_embedding == "yes")
    return student


def _start_from(student: Student, config: DistillConfig) -> None:
    """Load a stored model of the same size, and the adaptors beside it if they fit.

    It may lack local mixing, move its cores in another way, or have full attention where the
    student has cores: what it lacks stays as initialized. The class token of a full-attention
    model becomes the first core, the image feature; the other cores are new.
    """
    source, backbone = str(config.start), student.backbone
    _load_backbone(backbone, _compatible(source, backbone))
    path = Path(source).expanduser() / ADAPTORS_NAME
    stored = _read_adaptors(path) if path.is_file() else {}
    own = {f"adaptors.{name}": value for name, value in student.adaptors.state_dict().items()}
    if {name: value.shape for name, value in stored.items()} == {
        name: value.shape for name, value in own.items()
    }:
        student.load_state_dict(stored, strict=False)


def _read_adaptors(path: Path) -> dict[str, Tensor]:
    """Read adaptors; files of earlier versions have no metadata, and so no hash."""
    try:
        with safe_open(path, framework="pt") as file:
            hashed = file.metadata() is not None
        return load_tensors(path)[0] if hashed else read_tensors(path)
    except SafetensorError as error:
        raise DamagedFileError(path, str(error)) from error


def _compatible(source: str, backbone: VECA) -> VECA:
    """Load a model, and refuse it if its weights do not fit the student."""
    config = backbone.config
    model = load(source, dtype=torch.float32, device="cpu")
    if model.config.attention == config.attention and config.attention != "full":
        model = load(source, dtype=torch.float32, device="cpu", budgets=config.budgets)
    found, expected = model.config.architecture(), config.architecture()
    if model.config.attention == config.attention:
        found["cores"], expected["cores"] = model.config.cores, config.cores
    elif config.attention == "full":
        found["attention"], expected["attention"] = model.config.attention, config.attention
    for name, value in found.items():
        if value != expected[name]:
            raise ValueError(
                f"start={source} has {name}={value}, but the student has {name}={expected[name]}; "
                "start from a model of the same kind and size, or use the recipe of that size."
            )
    if model.config.local_kernel > config.local_kernel:
        raise ValueError(
            f"start={source} has local_kernel={model.config.local_kernel}, but the student has "
            f"local_kernel={config.local_kernel}; set --backbone.local-kernel to "
            f"{model.config.local_kernel} or more."
        )
    return model


@torch.no_grad()
def _load_backbone(backbone: VECA, model: VECA) -> None:
    """Copy what both models have; a smaller local kernel goes into the middle of a larger one."""
    switched = model.config.attention != backbone.config.attention
    excluded = ["core_bank.", "core_steps."] if switched else []
    if model.config.core_motion != backbone.config.core_motion:
        excluded.append("core_steps.")
    if switched:
        backbone.core_bank.tokens[0][0] = model.core_bank.tokens[0][0]
    margin = (backbone.config.local_kernel - model.config.local_kernel) // 2
    stored = {
        name: F.pad(item, (margin,) * 4) if name.endswith("local_mixing.weight") else item
        for name, item in model.state_dict().items()
        if not name.startswith(tuple(excluded))
    }
    if not model.config.local_kernel:
        excluded += [f"blocks.{layer}.local_mixing." for layer in range(model.config.layers)]
    kept = {
        name: item
        for name, item in backbone.state_dict().items()
        if name.startswith(tuple(excluded))
    }
    backbone.load_state_dict({**kept, **stored})


def _copy_patch_embedding(backbone: VECA, teacher: Teacher, required: bool) -> None:
    """Copy the teacher's patch embedding if it fits, which may be required."""
    found = teacher.patch_embedding(backbone.config.patch_size)
    target = backbone.patch_embedding
    if found is None or found[0].shape != target.weight.shape:
        if not required:
            return
        got = "none" if found is None else f"one of shape {tuple(found[0].shape)}"
        raise ValueError(
            f"copy_patch_embedding='yes' needs a ViT teacher whose patch embedding has the shape "
            f"{tuple(target.weight.shape)}, but {teacher.name} has {got}; use 'auto' or 'no', or "
            "a teacher of the student's width and patch size."
        )
    with torch.no_grad():
        target.weight.copy_(found[0])
        target.bias.copy_(found[1])
