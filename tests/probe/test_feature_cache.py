"""The feature cache: keys that never mix models or images, resume after a kill, several ranks.

How chunks are written, verified and locked is proved in `tests/runtime/test_shards.py`.
"""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.pictures import encoded, write_shard
from tests.probe.fixtures import (
    CENTER,
    SETTINGS,
    VARIANTS,
    WHOLE_IMAGES,
    CellModel,
    context_in,
    dense_split,
    files_in,
    image_split,
    read_array,
)
from veca.data.images import DataError
from veca.data.listing import RAW_SUFFIX, TableBuilder
from veca.data.sets.dataset import Split
from veca.probe import features
from veca.probe.feature_cache import (
    SAMPLED_FILES,
    FeatureCache,
    Group,
    cache_key,
    fill_cache,
    item_name,
)
from veca.probe.features import extract_image_features, extract_patch_features
from veca.probe.models import ProbeError
from veca.runtime.distributed import VARIABLES

ROOT = Path(__file__).parents[2]
COUNT, CHUNK = 11, 4


class Squares:
    """Computes the square of each item, times 10 for the second cache."""

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def __call__(self, groups: Sequence[Group]) -> Generator[list[dict[str, Tensor]], None, None]:
        self.groups = list(groups)
        for items, caches in groups:
            rows = torch.tensor([[float(item**2)] for item in items])
            maps = {item_name(item, "map"): torch.ones(item, 2) for item in items}
            yield [{"square": rows * 10**number, **maps} for number in caches]


def caches_in(folder: Path, *names: str) -> list[FeatureCache]:
    return [FeatureCache(folder, {"name": n}, count=COUNT, chunk_size=CHUNK) for n in names]


def test_caches_are_filled_in_one_pass_and_groups_do_not_depend_on_what_is_there(
    tmp_path: Path,
) -> None:
    first, later = Squares(), Squares()
    fill_cache(caches_in(tmp_path, "one"), 3, first, context_in(tmp_path))
    assert [group.items for group in first.groups] == [
        range(3), range(3, 4), range(4, 7), range(7, 8), range(8, 11),
    ]  # fmt: skip
    one, two = caches_in(tmp_path, "one", "two")
    two_files = [two.path(chunk) for chunk in range(3)]
    fill_cache([one, two], 3, later, context_in(tmp_path))
    assert {group.caches for group in later.groups} == {(1,)}
    assert one.stack("square").flatten().tolist() == [item**2 for item in range(COUNT)]
    assert two.stack("square").flatten().tolist() == [10 * item**2 for item in range(COUNT)]
    assert two.item(5, ["map"])[0].shape == (5, 2)
    assert two.rows("square", np.array([9, 0, 9])).flatten().tolist() == [810, 0, 810]
    assert two.nbytes() == sum(path.stat().st_size for path in two_files)


def test_a_damaged_chunk_is_computed_again_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache,) = caches_in(tmp_path, "one")
    fill_cache([cache], 2, Squares(), context_in(tmp_path))
    before = files_in(tmp_path)
    content = bytearray(cache.path(1).read_bytes())
    content[-1] ^= 4
    cache.path(1).write_bytes(content)
    squares = Squares()
    fill_cache(caches_in(tmp_path, "one"), 2, squares, context_in(tmp_path))
    assert [group.items for group in squares.groups] == [range(4, 6), range(6, 8)]
    assert "chunk-00001.safetensors is computed again" in caplog.text
    assert files_in(tmp_path) == before


def moved(split: Split, old: Path, new: Path) -> Split:
    """The same split with its images in another folder."""
    table = TableBuilder()
    for key, size in zip(split.keys, split.images.sizes.tolist(), strict=True):
        table.add_file(str(new / key), size)
    shutil.copytree(old, new)
    return dataclasses.replace(split, images=table.table())


def test_a_key_depends_on_the_weights_and_not_on_the_name_of_a_model(tmp_path: Path) -> None:
    split, one, other, half = image_split(tmp_path), CellModel(), CellModel(), CellModel()
    other.name, half.precision = "another path to the same", "bf16"
    key = cache_key("x", split, one, setting=[2, None])
    assert cache_key("x", split, other, setting=[2, None]) == key
    different = [
        cache_key("y", split, one, setting=[2, None]),
        cache_key("x", split, one, setting=[4, None]),
        cache_key("x", split, half, setting=[2, None]),
        cache_key("x", split, CellModel(digest="others"), setting=[2, None]),
    ]
    assert key not in different
    with pytest.raises(ProbeError, match="features of cells cannot be cached, since it has no dig"):
        cache_key("x", split, CellModel(digest=None))


def test_a_key_depends_on_the_images_and_not_on_their_folder(tmp_path: Path) -> None:
    model, split = CellModel(), image_split(tmp_path / "here", SAMPLED_FILES)
    key = cache_key("x", split, model)
    other = moved(split, tmp_path / "here", tmp_path / "there")
    assert cache_key("x", other, model) == key
    assert cache_key("x", image_split(tmp_path / "few", 3), model) != key
    turned = dataclasses.replace(split, keys=tuple(reversed(split.keys)))
    assert cache_key("x", turned, model) != key
    for name in other.keys:  # equal names and sizes, other content
        path = tmp_path / "there" / name
        path.write_bytes(path.read_bytes()[::-1])
    assert other.fingerprint() == split.fingerprint()
    assert cache_key("x", other, model) != key


def test_a_key_without_a_model_depends_on_the_targets(tmp_path: Path) -> None:
    split = dense_split(tmp_path / "one", "train", "masks", range(4))
    copy = dense_split(tmp_path / "two", "train", "masks", range(4))
    key = cache_key("targets", split, None)
    assert cache_key("targets", copy, None) == key
    remapped = dataclasses.replace(split, read_target=_remapped)
    assert cache_key("targets", remapped, None) != key
    assert cache_key("maps", remapped, CellModel()) == cache_key("maps", split, CellModel())


def _remapped(path: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    """The same files read as other classes."""
    found = read_array(path)
    return np.where(found == 1, 2, found).astype(np.uint8)


def test_images_in_a_shard_are_sampled_as_well(tmp_path: Path) -> None:
    def split(number: int) -> Split:
        shard = write_shard(tmp_path / "s.tar", [("a.png", encoded(number, (32, 32)))])
        table = TableBuilder()
        table.add_member(str(shard), "a.png", 500, 512)
        return Split(name="test", images=table.table(), keys=("a.png",))

    keys = [cache_key("x", split(number), None) for number in (0, 0, 1)]
    assert keys[0] == keys[1] != keys[2]


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    split = image_split(tmp_path, 3)
    Path(split.image(2).name).unlink()
    with pytest.raises(DataError, match=r"0002.png cannot be read .*No such file.*restore the im"):
        cache_key("x", split, None)
    table, path = TableBuilder(), tmp_path / "batch.bin"
    path.write_bytes(bytes(3072))
    table.add_member(str(path), f"0{RAW_SUFFIX}", 3072, 1)
    with pytest.raises(DataError, match=r"batch.bin#0.* cannot be read .*truncated"):
        cache_key("x", Split(name="test", images=table.table(), keys=("0",)), None)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"num_workers": -1}])
def test_a_context_needs_a_batch(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProbeError, match="batch must be >= 1, num_workers >= 0"):
        context_in(tmp_path, **wrong)


FILL = """
import sys
from pathlib import Path
from tests.probe.fixtures import *
from veca.probe.features import extract_image_features, extract_patch_features
from veca.runtime.distributed import init_distributed

use_small_chunks()
folder, die_at = Path(sys.argv[1]), int(sys.argv[2])
with init_distributed("cpu") as ranks:
    split, model = image_split(folder / "pictures", 16), CellModel(die_at=die_at)
    ranks.barrier()
    ctx = context_in(folder / "cache", ranks, num_workers=1)
    found = extract_image_features(model, SETTINGS, split, CENTER, ctx)
    extract_patch_features(model, VARIANTS, split, WHOLE_IMAGES, ctx)
    total = sum(found[setting].sum().item() for setting in SETTINGS)
    line = f"rank {ranks.rank} views {sum(model.asked.values())} sum {total}\\n"
    print(line, end="", flush=True)  # in one piece: two write
"""


def run(folder: Path, *start: str, die_at: int = 0) -> "subprocess.CompletedProcess[str]":
    """Fill the caches of a folder in other processes."""
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


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IMAGE_CHUNK", 4)
    monkeypatch.setattr(features, "MAP_CHUNK", 4)


def undisturbed(folder: Path) -> tuple[dict[str, bytes], float]:
    """The caches as one process fills them, and the sum of their vectors."""
    split, model, ctx = (
        image_split(folder / "pictures", 16),
        CellModel(),
        context_in(folder / "cache"),
    )
    found = extract_image_features(model, SETTINGS, split, CENTER, ctx)
    extract_patch_features(model, VARIANTS, split, WHOLE_IMAGES, ctx)
    return files_in(folder / "cache"), sum(found[key].sum().item() for key in SETTINGS)


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_run_continues_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    wanted, _ = undisturbed(tmp_path / "undisturbed")
    killed = run(tmp_path / "killed", die_at=8)
    assert killed.returncode == -9, killed.stderr
    left = [name for name in files_in(tmp_path / "killed" / "cache") if "chunk" in name]
    assert len(left) == 2 * len(SETTINGS)  # the third chunk of each was under way

    split, model = image_split(tmp_path / "killed" / "pictures", 16), CellModel()
    ctx = context_in(tmp_path / "killed" / "cache")
    extract_image_features(model, SETTINGS, split, CENTER, ctx)
    assert model.asked == dict.fromkeys(SETTINGS, 8)
    extract_patch_features(model, VARIANTS, split, WHOLE_IMAGES, ctx)
    assert files_in(tmp_path / "killed" / "cache") == wanted


@pytest.mark.workers
@pytest.mark.usefixtures("small_chunks")
def test_two_ranks_see_each_image_once_and_write_what_one_does(tmp_path: Path) -> None:
    wanted, total = undisturbed(tmp_path / "one")
    options = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = run(tmp_path / "two", *options)
    assert done.returncode == 0, done.stderr
    views = 16 * (len(SETTINGS) + 1) // 2
    lines = sorted(done.stdout.splitlines())
    assert lines == [f"rank {rank} views {views} sum {total}" for rank in range(2)]
    assert files_in(tmp_path / "two" / "cache") == wanted
