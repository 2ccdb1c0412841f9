"""Colours for classes and for depths, made here from a space in which steps look even (OKLab)."""

import functools

import numpy as np
from jaxtyping import Float64, UInt8
from numpy import ndarray

LIGHTNESSES = np.linspace(0.45, 0.87, 8)
HUES = np.deg2rad(np.arange(25, 385, 10))
CHROMAS = (0.09, 0.13, 0.17, 0.21)
"""The colours that classes may have: neither black, white nor grey, which pictures are full of."""

# Lightness and the two colour axes of OKLab, from near to far: even steps in lightness, so that the
# order can be seen without the scale, and hues that go from yellow through red to dark blue.
_SCALE = np.array(
    [
        (0.95, -0.02, 0.12),
        (0.80, 0.05, 0.14),
        (0.64, 0.15, 0.08),
        (0.48, 0.15, -0.04),
        (0.32, 0.05, -0.12),
        (0.17, 0.00, -0.07),
    ]
)

_TO_CONES = np.array(
    [
        (1.0, 0.3963377774, 0.2158037573),
        (1.0, -0.1055613458, -0.0638541728),
        (1.0, -0.0894841775, -1.2914855480),
    ]
)
_TO_LINEAR_RGB = np.array(
    [
        (4.0767416621, -3.3077115913, 0.2309699292),
        (-1.2684380046, 2.6097574011, -0.3413193965),
        (-0.0041960863, -0.7034186147, 1.7076147010),
    ]
)


def class_colours(count: int) -> UInt8[ndarray, "{count} 3"]:
    """A colour for each of at most 256 classes; it does not depend on how many there are."""
    return _spread_colours()[:count].copy()


@functools.cache
def _spread_colours() -> UInt8[ndarray, "256 3"]:
    """Colours of which each is as far as can be from all before it."""
    lightness, hues, chromas = np.meshgrid(LIGHTNESSES, HUES, CHROMAS, indexing="ij")
    lab = np.stack((lightness, chromas * np.cos(hues), chromas * np.sin(hues)), axis=-1)
    linear = _linear_rgb(lab.reshape(-1, 3))
    lab = lab.reshape(-1, 3)[((linear >= 0) & (linear <= 1)).all(axis=1)]  # what a screen can show
    chosen = [int(np.argmax(np.linalg.norm(lab[:, 1:], axis=1)))]
    distances = np.full(len(lab), np.inf)
    while len(chosen) < 256:
        distances = np.minimum(distances, np.linalg.norm(lab - lab[chosen[-1]], axis=1))
        chosen.append(int(distances.argmax()))
    return _rgb(lab[chosen])


def depth_colours(shares: Float64[ndarray, "*any"]) -> UInt8[ndarray, "*any 3"]:
    """Colours from near (0, light) to far (1, dark); beyond the ends, those of the ends."""
    places = np.clip(shares, 0.0, 1.0) * (len(_SCALE) - 1)
    steps = np.arange(len(_SCALE))
    lab = np.stack([np.interp(places, steps, axis) for axis in _SCALE.T], axis=-1)
    return _rgb(lab)


def _rgb(lab: Float64[ndarray, "*any 3"]) -> UInt8[ndarray, "*any 3"]:
    """OKLab to sRGB; what a screen cannot show becomes the nearest value of each channel."""
    linear = np.clip(_linear_rgb(lab), 0.0, 1.0)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * curved).astype(np.uint8)


def _linear_rgb(lab: Float64[ndarray, "*any 3"]) -> Float64[ndarray, "*any 3"]:
    """OKLab to amounts of light; outside 0 to 1 where a screen cannot show it."""
    return (lab @ _TO_CONES.T) ** 3 @ _TO_LINEAR_RGB.T
