"""Elastic, linear-time vision backbones."""

from veca.backbone.config import SIZES as SIZES
from veca.backbone.config import BackboneConfig as BackboneConfig
from veca.backbone.features import Features as Features
from veca.backbone.model import VECA as VECA
from veca.backbone.model import build as build
from veca.data.images import ImageError as ImageError
from veca.data.transforms import prepare as prepare
from veca.data.transforms import preprocess as preprocess
from veca.runtime.version import VERSION
from veca.weights.card import Provenance as Provenance
from veca.weights.checkpoint import load as load
from veca.weights.checkpoint import save as save
from veca.weights.format import WeightsError as WeightsError
from veca.weights.official import load_official as load_official

__version__ = VERSION
