"""Vision transformers of the library `transformers` as teachers.

Features are taken after the last norm. The image feature is the class token, or what the model was
trained to summarize an image with where that is something else. The library is an extra, imported
when it is needed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from veca.data.transforms import IMAGENET, Normalization
from veca.teacher.teacher import Pixels, StridedTeacher, Targets, TeacherError


def transformers_class(name: str) -> Any:  # noqa: ANN401 - the library is not typed for us
    """A class of `transformers`, which takes seconds to import, by its name."""
    try:
        import transformers  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise TeacherError(
            "vision transformers as teachers need the library transformers, which is not "
            "installed; `pip install 'veca[teachers]'` brings it."
        ) from error
    found = getattr(transformers, name, None)
    if found is None:
        raise TeacherError(
            f"the installed transformers {transformers.__version__} has no {name}; update it "
            "with `pip install --upgrade transformers`."
        )
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and messages of `transformers`."""
    from transformers.utils import logging  # noqa: PLC0415 - an extra

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


OPENAI = Normalization((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
"""Of the images that CLIP was trained on."""

HALVES = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
"""To -1..1."""


@dataclass(frozen=True)
class Family:
    """One class of `transformers`."""

    model: str
    """Name of the class."""

    forward_features: Callable[[Any, Tensor], Targets]
    """Maps model and normalized pixels to features."""

    embedding: str
    """Path of the patch embedding."""

    normalization: Normalization = IMAGENET
    """Default; that of RADIO is part of the model."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the class besides its configuration."""


def _dino(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """DINOv2 and DINOv3: class token, registers, patches; positions fit any grid."""
    tokens = model(pixel_values=pixels).last_hidden_state
    registers = getattr(model.config, "num_register_tokens", 0)
    return Targets(tokens[:, 0], tokens[:, 1 + registers :])


def _vit(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """Plain ViT: class token, patches."""
    tokens = model(pixel_values=pixels, interpolate_pos_encoding=True).last_hidden_state
    return Targets(tokens[:, 0], tokens[:, 1:])


def _clip(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """CLIP: as ViT, but the model normalizes only the class token, so patches are done here."""
    output = model(pixel_values=pixels, interpolate_pos_encoding=True)
    patches = output.last_hidden_state[:, 1:]
    return Targets(output.pooler_output, model.post_layernorm(patches))


def _siglip(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """SigLIP, and SigLIP 2 of a fixed size: patches only, pooled by a head."""
    return _with_head(model(pixel_values=pixels, interpolate_pos_encoding=True))


def _siglip2(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """SigLIP 2 for any size, which takes the pixels of each patch in a row: y, x, color."""
    side = model.config.patch_size
    squares = pixels.unfold(2, side, side).unfold(3, side, side)  # (B, 3, rows, columns, P, P)
    grid = squares.shape[2:4]
    rows = squares.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    shapes = torch.tensor([grid], device=pixels.device).expand(len(pixels), -1)
    return _with_head(model(pixel_values=rows, pixel_attention_mask=None, spatial_shapes=shapes))


def _with_head(output: Any) -> Targets:  # noqa: ANN401
    """Patches and their pooled feature; the mean if the model has no head."""
    patches, head = output.last_hidden_state, output.pooler_output
    return Targets(patches.mean(dim=1) if head is None else head, patches)


def _radio(model: Any, pixels: Tensor) -> Targets:  # noqa: ANN401
    """RADIO: several class tokens side by side, and no last norm."""
    output = model(pixel_values=pixels)
    return Targets(output.summary, output.features)


PATCHES = "embeddings.patch_embedding"
PROJECTION = "embeddings.patch_embeddings.projection"

CLIP = Family("CLIPVisionModel", _clip, PATCHES, OPENAI)
SIGLIP = Family("SiglipVisionModel", _siglip, PATCHES, HALVES)
SIGLIP2 = Family("Siglip2VisionModel", _siglip2, PATCHES, HALVES)

FAMILIES: Mapping[str, Family] = {
    "clip": CLIP,
    "clip_vision_model": CLIP,
    "dinov2": Family("Dinov2Model", _dino, PROJECTION),
    "dinov2_with_registers": Family("Dinov2WithRegistersModel", _dino, PROJECTION),
    "dinov3_vit": Family("DINOv3ViTModel", _dino, "embeddings.patch_embeddings"),
    "radio": Family("RadioModel", _radio, "embeddings.patch_projection", OPENAI),
    "siglip": SIGLIP,
    "siglip_vision_model": SIGLIP,
    "siglip2": SIGLIP2,
    "siglip2_vision_model": SIGLIP2,
    "vit": Family("ViTModel", _vit, PROJECTION, HALVES, {"add_pooling_layer": False}),
}
"""By the `model_type` of config.json; CLIP and SigLIP with or without their text halves."""


SETTINGS = ("model_type", "num_attention_heads", "hidden_act", "layer_norm_eps", "rope_theta")
"""Fields of a configuration that determine the outputs and are not visible in the weights."""


class ViTTeacher(StridedTeacher):
    """A model of one of the `FAMILIES`; its stride is its patch size."""

    def __init__(
        self,
        model: nn.Module,
        *,
        name: str,
        licence: str | None = None,
        normalization: Normalization | None = None,
    ) -> None:
        """Freeze a model; `normalization` defaults to that of its family."""
        config: Any = model.config
        family = FAMILIES[config.model_type]
        width, side, colors = config.hidden_size, config.patch_size, config.num_channels
        if not isinstance(side, int) or colors != 3:
            raise TeacherError(
                f"{name} has patches of {side} pixels and {colors} colors; a teacher needs "
                "square patches, their side as one number, and three colors."
            )
        super().__init__(
            model,
            name=name,
            licence=licence,
            image_width=width * len(getattr(config, "summary_idxs", None) or [0]),
            patch_width=width,
            stride=side,
            normalization=_take_normalization(model) or normalization or family.normalization,
        )
        self.family = family

    def forward_features(self, pixels: Pixels) -> Targets:
        """Features of the model without its class tokens and registers among the patches."""
        return self.family.forward_features(self.network, pixels)

    def embedding_weights(self) -> tuple[Tensor, Tensor | None]:
        """The model's own; RADIO and SigLIP 2 have a linear layer over the pixels of a patch."""
        layer, side = self.network.get_submodule(self.family.embedding), self.stride
        weight = layer.weight
        if weight.ndim == 2 and self.family is SIGLIP2:
            weight = weight.unflatten(1, (side, side, 3)).permute(0, 3, 1, 2)
        elif weight.ndim == 2:
            weight = weight.unflatten(1, (3, side, side))
        return weight, layer.bias

    def identity(self) -> dict[str, Any]:
        """Settings that determine the outputs besides the weights, as JSON."""
        settings = {name: getattr(self.network.config, name, None) for name in SETTINGS}
        return super().identity() | settings


def _take_normalization(model: Any) -> Normalization | None:  # noqa: ANN401 - the library is not typed
    """Move the normalization out of a model that does it itself (RADIO); None for others."""
    if not hasattr(model, "make_preprocessor_external"):
        return None
    conditioner = model.make_preprocessor_external()
    (red, green, blue), std = (
        part.flatten().tolist() for part in (conditioner.norm_mean, conditioner.norm_std)
    )
    return Normalization((red, green, blue), (std[0], std[1], std[2]))
