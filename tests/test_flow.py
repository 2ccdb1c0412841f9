"""How much of the package a command runs through, so that it cannot creep up unnoticed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data.pictures import saved_model, write_pictures
from tests.distill.runs import FLAGS
from tests.flow import Flow, flow_of
from tests.probe.fixtures import write_dense, write_model

# As measured. Issue 18 ("One house") lowers them to at most 60, 55 and 40 modules and 45, 45 and 25
# files. Lower them whenever a command gets shorter; raise them only with a reason in the commit.
MOST_MODULES = {"probe": 60, "distill": 55, "embed": 40}
MOST_FILES = {"probe": 45, "distill": 43, "embed": 25}

# Loaded when the numbers are on the disk, to draw them. They are few, and no run goes through them.
DRAWING = ("figures", "page", "probe_page")
AFTERWARDS = {*(f"veca.analysis.{name}" for name in DRAWING)}
AFTERWARDS |= {f"analysis/{name}.py" for name in DRAWING}

ON_CPU = ["--workers", "1", "--device", "cpu"]

SHORT_PROTOCOL = """
from dataclasses import replace
from veca.probe.protocols import SEGMENTATION
SEGMENTATION["dinov3-small"] = replace(SEGMENTATION["dinov3-small"], steps=20, warmup=2)
"""


def probe(folder: Path) -> Flow:
    """`veca probe segmentation` of a model on a folder of one's own."""
    write_dense(folder / "farm", "masks")
    write_model(folder / "model")
    words = ["probe", "segmentation", str(folder / "farm"), "--model", str(folder / "model"),
             "--out", str(folder / "out"), "--budgets", "2,6", "--resolution", "32"]  # fmt: skip
    return flow_of([*words, *ON_CPU], folder / "flow.json", SHORT_PROTOCOL)


def distill(folder: Path) -> Flow:
    """`veca distill` from pictures and a small teacher."""
    write_pictures(folder / "images", 12)
    words = ["distill", "tiny", "--images", str(folder / "images"), "--out", str(folder / "out"),
             "--steps", "2", "--workers", "1"]  # fmt: skip
    return flow_of([*words, *FLAGS], folder / "flow.json")


def embed(folder: Path) -> Flow:
    """`veca embed` of a folder."""
    write_pictures(folder / "photos", 6)
    saved_model(folder / "model")
    words = ["embed", str(folder / "photos"), "--model", str(folder / "model"),
             "--out", str(folder / "out"), "--size", "32", "--budget", "3"]  # fmt: skip
    return flow_of([*words, *ON_CPU], folder / "flow.json")


@pytest.mark.parametrize("command", [probe, distill, embed], ids=lambda command: command.__name__)
def test_a_command_runs_through_no_more_of_the_package_than_it_did(
    command: Callable[[Path], Flow], tmp_path: Path
) -> None:
    flow = command(tmp_path)
    name = command.__name__
    assert f"veca.cli.{name}" in flow.modules
    assert f"cli/{name}.py" in flow.files
    modules, files = {*flow.modules} - AFTERWARDS, {*flow.files} - AFTERWARDS
    assert len(modules) <= MOST_MODULES[name], sorted(modules)
    assert len(files) <= MOST_FILES[name], sorted(files)
