"""Photographs of packages are found without importing them."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from veca.data.images import decode
from veca.recipes.photographs import PHOTOGRAPHS, shipped_photographs


def test_every_photograph_that_is_there_has_eight_bits_and_is_large_enough_for_crops() -> None:
    found = shipped_photographs(held_out=False) + shipped_photographs(held_out=True)
    if not found:
        pytest.skip("no package that ships photographs is installed")
    for path in found:
        picture = decode(path)
        assert [band.mode for band in picture.bands] == ["RGB"], path
        assert min(picture.sides) >= 160, path


def test_every_photograph_of_an_installed_package_is_found() -> None:
    found = {*shipped_photographs(held_out=False), *shipped_photographs(held_out=True)}
    for package in ("skimage", "matplotlib"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        wanted = {Path(each.path).name for each in PHOTOGRAPHS if each.package == package}
        assert wanted <= {path.name for path in found}


def test_nothing_is_both_trained_on_and_held_out() -> None:
    trained, kept = shipped_photographs(held_out=False), shipped_photographs(held_out=True)
    assert not {*trained} & {*kept}
    assert len({each.path for each in PHOTOGRAPHS}) == len(PHOTOGRAPHS)
    assert {each.held_out for each in PHOTOGRAPHS} == {True, False}


def test_a_package_that_breaks_when_imported_still_gives_its_photographs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "sklearn" / "datasets" / "images"
    images.mkdir(parents=True)
    (tmp_path / "sklearn" / "__init__.py").write_text("raise RuntimeError\n", "utf-8")
    (images / "china.jpg").write_bytes(b"a picture")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "sklearn", raising=False)
    importlib.invalidate_caches()
    found = [path for path in shipped_photographs(held_out=False) if "sklearn" in path.parts]
    assert found == [images / "china.jpg"]
    assert "sklearn" not in sys.modules


def test_without_packages_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> ModuleSpec | None:
        return None

    monkeypatch.setattr(importlib.util, "find_spec", nothing)
    assert shipped_photographs(held_out=False) == []
