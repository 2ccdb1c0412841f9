"""Vision transformers of the library `transformers` as teachers."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from veca.data.normalisation import Normalisation
from veca.teacher.families import FAMILIES
from veca.teacher.pixels import for_imagenet
from veca.teacher.strided import StridedTeacher, TeacherFacts
from veca.teacher.teacher import Targets, TeacherError

SETTINGS = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps", "rope_theta")
"""Fields of a configuration that decide the outputs and cannot be told by the weights."""


class VisionTransformerTeacher(StridedTeacher):
    """A model of one of the `FAMILIES`; its stride is its patch size."""

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        licence: str | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        """Freeze a model; without `normalisation` that of its family is used."""
        config: Any = model.config
        family = FAMILIES[config.model_type]
        width, side, colours = config.hidden_size, config.patch_size, config.num_channels
        if not isinstance(side, int) or colours != 3:
            raise TeacherError(
                f"{name} has patches of {side} pixels and {colours} colours; a teacher needs "
                "square patches, their side as one number, and three colours."
            )
        facts = TeacherFacts(
            name=name,
            licence=licence,
            image_width=width * len(getattr(config, "summary_idxs", None) or [0]),
            patch_width=width,
            stride=side,
            normalisation=_taken_out(model) or normalisation or family.normalisation,
        )
        super().__init__(facts, model)
        self.family = family

    def observe(self, pixels: Float[Tensor, "B 3 height width"], grid: tuple[int, int]) -> Targets:
        """What the model says, its class tokens and registers apart from its patches."""
        return self.family.observe(self.network, pixels, grid)

    def patch_embedding(
        self, patch_size: int
    ) -> tuple[Float[Tensor, "D 3 P P"], Float[Tensor, " D"]] | None:
        """The model's own, for pixels in ImageNet's normalisation."""
        if patch_size != self.stride:
            return None
        weight, bias = self.family.embedding(self.network)
        if bias is None:
            bias = weight.new_zeros(len(weight))
        return for_imagenet(weight, bias, self.normalisation)

    def identity(self) -> dict[str, Any]:
        """What decides the outputs besides the weights, as plain values."""
        settings = {name: getattr(self.network.config, name, None) for name in SETTINGS}
        return super().identity() | settings


def _taken_out(model: Any) -> Normalisation | None:  # noqa: ANN401 - the library is not typed
    """The normalisation that a model (RADIO) does itself, which is then left to us; else None."""
    if not hasattr(model, "make_preprocessor_external"):
        return None
    conditioner = model.make_preprocessor_external()
    red, green, blue = conditioner.norm_mean.flatten().tolist()
    mean = (red, green, blue)
    red, green, blue = conditioner.norm_std.flatten().tolist()
    return Normalisation(mean, (red, green, blue))
