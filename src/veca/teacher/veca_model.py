"""A VECA as the teacher of another one, with all its cores and hidden units."""

import os
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from veca.backbone.model import VECA
from veca.data.normalisation import IMAGENET
from veca.teacher.strided import StridedTeacher, TeacherFacts
from veca.teacher.teacher import Targets, TeacherError
from veca.weights.checkpoint import load_with_digest
from veca.weights.provenance import Provenance
from veca.weights.sources import Source


class VecaTeacher(StridedTeacher):
    """Says its first core of the image, and its patches of the patches."""

    network: VECA

    def __init__(self, model: VECA, *, name: str, digest: str | None = None) -> None:
        """Freeze a model; its licence is the one that its provenance tells."""
        config = model.config
        if config.in_channels != 3:
            raise TeacherError(f"{name} has {config.in_channels} colours; a teacher needs three.")
        known = model.provenance
        facts = TeacherFacts(
            name=name,
            licence=known.licence if isinstance(known, Provenance) else None,
            image_width=config.width,
            patch_width=config.width,
            stride=config.patch_size,
            normalisation=IMAGENET,
        )
        super().__init__(facts, model)
        self._file_digest = digest

    @cached_property
    def digest(self) -> str | None:
        """That of the file, as `veca info` tells it."""
        return self._file_digest or super().digest

    def observe(self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]) -> Targets:
        """What the model says with the whole bank."""
        del grid
        features = self.network(pixels)
        return Targets(features.image, features.patches)

    def patch_embedding(
        self, patch_size: int
    ) -> tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"]] | None:
        """The model's own."""
        if patch_size != self.stride:
            return None
        own = self.network.patch_embedding
        return own.weight.detach().clone(), own.bias.detach().clone()


def veca_teacher(source: Source, name: str | None = None) -> VecaTeacher:
    """What `veca.load` finds, as a teacher."""
    found = load_with_digest(source)
    return VecaTeacher(found.model, name=name or os.fspath(source), digest=found.digest)
