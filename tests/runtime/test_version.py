"""The version stands in two places that agree."""

import tomllib

import veca
from tests.rules import ROOT
from veca.runtime.version import VERSION


def test_the_source_and_the_package_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == VERSION == veca.__version__
