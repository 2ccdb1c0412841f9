"""Figures of any model and image: `veca.figures.features(model, "cat.jpg")`; needs matplotlib."""

from veca.analysis.figures import trade_off
from veca.analysis.image_figures import (
    cores,
    evolution,
    features,
    objects,
    paths,
    similarity,
)

__all__ = ["cores", "evolution", "features", "objects", "paths", "similarity", "trade_off"]
