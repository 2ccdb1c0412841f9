"""`import veca.transformers` lets the Auto classes of transformers open VECA models."""

from veca.export.transformers import (
    VecaBackbone,
    VecaConfig,
    VecaForImageClassification,
    VecaImageProcessor,
    VecaModel,
    register,
)

__all__ = [
    "VecaBackbone",
    "VecaConfig",
    "VecaForImageClassification",
    "VecaImageProcessor",
    "VecaModel",
]

register()
