"""Features are the same after a kill, and by two processes, to the last byte."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.probe.small_features import (
    CENTER,
    KINDS,
    SETTINGS,
    WHOLE,
    CellModel,
    blocks_in,
    place_in,
    split_of,
)
from veca.probe import features, shown_features
from veca.probe.features import image_features
from veca.probe.shown_features import ShownFeatures
from veca.runtime.distributed import VARIABLES

ROOT = Path(__file__).parents[2]

FILL = """
import sys
from pathlib import Path
from tests.probe.small_features import *
from veca.probe.features import image_features
from veca.probe.shown_features import ShownFeatures
from veca.runtime.distributed import init_distributed

use_small_blocks()
folder, die_at = Path(sys.argv[1]), int(sys.argv[2])
with init_distributed("cpu") as workers:
    split, model = split_of(folder / "pictures", 16), CellModel(die_at=die_at)
    workers.barrier()
    place = place_in(folder / "kept", workers=workers, loaders=1)
    found = image_features(model, SETTINGS, split, CENTER, place)
    ShownFeatures(model, KINDS, split, WHOLE, place)
    views = sum(found[setting].image.sum().item() for setting in SETTINGS)
    told = f"rank {workers.rank} views {sum(model.asked.values())} sum {views}\\n"
    print(told, end="", flush=True)  # in one piece: two write
"""


def run(folder: Path, *start: str, die_at: int = 0) -> "subprocess.CompletedProcess[str]":
    """Fill the stores of a folder in other processes."""
    script = folder / "fill.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(FILL, "utf-8")
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    return subprocess.run(
        [sys.executable, *start, str(script), str(folder), str(die_at)],
        env=clean | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IMAGE_BLOCK", 4)
    monkeypatch.setattr(shown_features, "PATCH_BLOCK", 4)


def straight(folder: Path) -> tuple[dict[str, bytes], float]:
    """The stores as one process fills them that is not disturbed, and the sum of their vectors."""
    split, model, place = split_of(folder / "pictures", 16), CellModel(), place_in(folder / "kept")
    found = image_features(model, SETTINGS, split, CENTER, place)
    ShownFeatures(model, KINDS, split, WHOLE, place)
    return blocks_in(folder / "kept"), sum(found[key].image.sum().item() for key in SETTINGS)


def test_a_killed_run_is_resumed_where_it_was_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    wanted, _ = straight(tmp_path / "straight")
    killed = run(tmp_path / "killed", die_at=8)
    assert killed.returncode == -9, killed.stderr
    left = {name for name in blocks_in(tmp_path / "killed" / "kept") if "block" in name}
    assert len(left) == 2 * len(SETTINGS)  # the third block of each was under way

    split, model = split_of(tmp_path / "killed" / "pictures", 16), CellModel()
    place = place_in(tmp_path / "killed" / "kept")
    image_features(model, SETTINGS, split, CENTER, place)
    assert model.asked == dict.fromkeys(SETTINGS, 8)
    ShownFeatures(model, KINDS, split, WHOLE, place)
    assert blocks_in(tmp_path / "killed" / "kept") == wanted


@pytest.mark.workers
def test_two_processes_see_each_picture_once_and_keep_what_one_does(tmp_path: Path) -> None:
    wanted, total = straight(tmp_path / "one")
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(tmp_path / "two", *options)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    views = 16 * (len(SETTINGS) + 1) // 2
    assert lines == [f"rank {rank} views {views} sum {total}" for rank in range(2)]
    assert blocks_in(tmp_path / "two" / "kept") == wanted
