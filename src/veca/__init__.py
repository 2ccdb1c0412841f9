"""Elastic, linear-time vision backbones.

The public names below are imported when they are first used: `import veca` itself loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from veca.runtime import VERSION

if TYPE_CHECKING:
    from veca import figures as figures
    from veca.backbone.config import SIZES as SIZES
    from veca.backbone.config import BackboneConfig as BackboneConfig
    from veca.backbone.model import VECA as VECA
    from veca.backbone.model import Features as Features
    from veca.backbone.model import build as build
    from veca.data.images import ImageError as ImageError
    from veca.data.transforms import prepare as prepare
    from veca.data.transforms import preprocess as preprocess
    from veca.embed.encode import encode as encode
    from veca.embed.feature_extractor import FeatureExtractor as FeatureExtractor
    from veca.export.session import session as session
    from veca.weights.card import Provenance as Provenance
    from veca.weights.checkpoint import load as load
    from veca.weights.checkpoint import save as save
    from veca.weights.format import WeightsError as WeightsError
    from veca.weights.official import load_official as load_official

__version__ = VERSION

_HOMES = {
    "SIZES": "veca.backbone.config",
    "VECA": "veca.backbone.model",
    "BackboneConfig": "veca.backbone.config",
    "FeatureExtractor": "veca.embed.feature_extractor",
    "Features": "veca.backbone.model",
    "ImageError": "veca.data.images",
    "Provenance": "veca.weights.card",
    "WeightsError": "veca.weights.format",
    "build": "veca.backbone.model",
    "encode": "veca.embed.encode",
    "session": "veca.export.session",
    "load": "veca.weights.checkpoint",
    "load_official": "veca.weights.official",
    "prepare": "veca.data.transforms",
    "preprocess": "veca.data.transforms",
    "save": "veca.weights.checkpoint",
}

_MODULES = ("figures",)
"""Modules that need an extra, as `veca.figures.features(...)`."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name in _MODULES:
        return import_module(f"veca.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Public names, imported or not."""
    return sorted({*globals(), *_HOMES, *_MODULES})
