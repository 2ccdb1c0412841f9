"""Teachers of the real class and size with random weights: to prove a recipe without a download."""

import torch

from veca.teacher.families import FAMILIES
from veca.teacher.known import TEACHERS
from veca.teacher.libraries import quiet, transformers_class
from veca.teacher.teacher import TeacherError
from veca.teacher.vision_transformer import VisionTransformerTeacher

PREFIX = "random:"
"""What stands before the short name of such a teacher."""


def random_teacher(name: str, seed: int = 0) -> VisionTransformerTeacher:
    """An untrained model that has the size of the teacher with this short name."""
    known = TEACHERS.get(name)
    if known is None or known.kind is None:
        buildable = ", ".join(short for short, one in TEACHERS.items() if one.kind)
        raise TeacherError(
            f"{name!r} is no teacher that can be built with random weights; pick one of "
            f"{buildable}."
        )
    family = FAMILIES[known.kind]
    found = transformers_class(family.model)
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = found(found.config_class(**known.config), **family.options)
    return VisionTransformerTeacher(model, name=f"{PREFIX}{name}")
