"""`import veca.timm` lets `timm.create_model("veca_tiny")` build VECA models."""

from veca.export.timm import TimmVECA

__all__ = ["TimmVECA"]
