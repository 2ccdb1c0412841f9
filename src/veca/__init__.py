"""Elastic, linear-time vision backbones."""

from veca.backbone.build import build as build
from veca.backbone.config import BackboneConfig as BackboneConfig
from veca.backbone.features import Features as Features
from veca.backbone.model import VECA as VECA
from veca.backbone.sizes import SIZES as SIZES
from veca.data.errors import PictureError as PictureError
from veca.data.prepare import prepare as prepare
from veca.data.prepare import preprocess as preprocess
from veca.runtime.version import VERSION
from veca.weights.checkpoint import load as load
from veca.weights.checkpoint import save as save
from veca.weights.errors import WeightsError as WeightsError
from veca.weights.official import load_official as load_official
from veca.weights.provenance import Provenance as Provenance

__version__ = VERSION
