"""Photographs to try things on, from a package that ships them: nothing is downloaded."""

import importlib.util
from pathlib import Path

SAMPLES = ("chelsea.png", "astronaut.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")
"""Photographs in scikit-image: a cat, a person, a still life, an object, a scene."""


def sample_photos() -> list[Path]:
    """Paths of the sample photographs."""
    found = importlib.util.find_spec("skimage")
    if found is None or found.origin is None:
        raise ValueError(
            "the sample photos come with scikit-image, which is not installed; install "
            "veca[samples], or name pictures of your own."
        )
    folder = Path(found.origin).parent / "data"
    return [folder / name for name in SAMPLES if (folder / name).is_file()]
