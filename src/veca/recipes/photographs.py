"""Photographs that installed packages ship: found without importing the package or a download."""

import importlib.util
from pathlib import Path
from typing import NamedTuple


class Photograph(NamedTuple):
    """A file in a package."""

    package: str
    path: str
    """Below the folder of the package."""

    held_out: bool = False
    """Kept from training, so that there are photographs to validate on that were never seen."""


PHOTOGRAPHS = (
    Photograph("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
    Photograph("skimage", "data/astronaut.png"),
    Photograph("skimage", "data/brick.png"),
    Photograph("skimage", "data/camera.png", held_out=True),
    Photograph("skimage", "data/chelsea.png"),
    Photograph("skimage", "data/coffee.png"),
    Photograph("skimage", "data/coins.png", held_out=True),
    Photograph("skimage", "data/grass.png"),
    Photograph("skimage", "data/gravel.png"),
    Photograph("skimage", "data/hubble_deep_field.jpg"),
    Photograph("skimage", "data/ihc.png"),
    Photograph("skimage", "data/moon.png"),
    Photograph("skimage", "data/motorcycle_left.png"),
    Photograph("skimage", "data/page.png"),
    Photograph("skimage", "data/retina.jpg"),
    Photograph("skimage", "data/rocket.jpg", held_out=True),
    Photograph("skimage", "data/text.png"),
    Photograph("sklearn", "datasets/images/china.jpg"),
    Photograph("sklearn", "datasets/images/flower.jpg", held_out=True),
)
"""Photographs and photographed textures, in color or gray; drawings, charts and second views of
one scene are left out."""


def shipped_photographs(*, held_out: bool) -> list[Path]:
    """Those of the table that are on this machine; packages that are absent are passed over."""
    paths = [
        folder / photograph.path
        for photograph in PHOTOGRAPHS
        if photograph.held_out == held_out
        for folder in _folders(photograph.package)
    ]
    return [path for path in paths if path.is_file()]


def _folders(package: str) -> list[Path]:
    """Where a package lies; none if it is not installed."""
    found = importlib.util.find_spec(package)
    return [Path(folder) for folder in (found and found.submodule_search_locations) or ()]
