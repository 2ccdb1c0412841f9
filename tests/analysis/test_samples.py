"""Sample photographs."""

import importlib.util
from importlib.machinery import ModuleSpec

import pytest
from PIL import Image

from veca.analysis.demo import SAMPLES, sample_photos


def test_every_sample_is_a_color_photograph_that_opens() -> None:
    photos = sample_photos()
    assert [photo.name for photo in photos] == list(SAMPLES)
    for photo in photos:
        with Image.open(photo) as picture:
            assert picture.mode == "RGB"
            assert min(picture.size) >= 256


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    with pytest.raises(ValueError, match=r"install veca\[samples\], or name pictures"):
        sample_photos()
