"""The door of the cache: what is kept is what the teacher would say of the views of a training."""

import dataclasses
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.distill.kept_outputs import (
    CPU,
    SMALL,
    CellTeacher,
    chunk_files,
    live_targets,
    opened,
    pictures,
    task_of,
)
from veca.data.image_index import ImageIndex, image_index
from veca.distill import cache_store
from veca.distill.cache_records import mean_cosine
from veca.distill.cache_store import CacheError
from veca.distill.config import Surroundings
from veca.distill.margin import Margin
from veca.distill.validation import StoppedError
from veca.runtime.tensors import read_tensors

ROOT = Path(__file__).parents[2]
EVERY = task_of(sorted([*range(6), *range(6)]), [0, 1] * 6)


@pytest.fixture(name="index")
def fixture_index(tmp_path: Path) -> ImageIndex:
    """Six pictures."""
    return pictures(tmp_path / "images")


@pytest.mark.parametrize("channels", [6, None])
@pytest.mark.parametrize("seed", [0, 5])
def test_half_precision_is_what_the_teacher_says_to_three_digits(
    index: ImageIndex, tmp_path: Path, channels: int | None, seed: int
) -> None:
    config = dataclasses.replace(SMALL, channels=channels, seed=seed)
    cache = opened(tmp_path / "cache", index, config=config)

    (found,) = cache.lookup(EVERY, CPU)
    wanted = live_targets(cache, EVERY, index, CellTeacher(), seed=seed)
    assert cache.crops == 2
    assert (cache.projections[0] is None) == (channels is None)
    torch.testing.assert_close(found.image, wanted.image, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("surroundings", ["reflected", "contextual"])
def test_outputs_within_a_margin_are_kept_as_the_teacher_gives_them(
    index: ImageIndex, tmp_path: Path, surroundings: Surroundings
) -> None:
    margin = Margin(patches=2, pixels=16, surroundings=surroundings)
    cache = opened(tmp_path / "cache", index, margin=margin)

    (found,) = cache.lookup(EVERY, CPU)
    wanted = live_targets(cache, EVERY, index, CellTeacher(), margin=margin)
    torch.testing.assert_close(found.image, wanted.image, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=1e-3, atol=1e-4)
    without = live_targets(cache, EVERY, index, CellTeacher())
    assert not torch.allclose(found.patches, without.patches, atol=0.05)
    opened(tmp_path / "cache", index)
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("channels", [6, None])
def test_int8_points_where_the_teacher_points_and_takes_half_the_room(
    index: ImageIndex, tmp_path: Path, channels: int | None
) -> None:
    config = dataclasses.replace(SMALL, channels=channels)
    opened(tmp_path / "half", index, config=config)
    cache = opened(tmp_path / "byte", index, config=dataclasses.replace(config, dtype="int8"))

    (found,) = cache.lookup(EVERY, CPU)
    wanted = live_targets(cache, EVERY, index, CellTeacher())
    assert mean_cosine(found.patches, wanted.patches) > 0.99
    assert mean_cosine(found.image, wanted.image) > 0.99999
    half, byte = (
        sum(path.stat().st_size for path in chunk_files(tmp_path / name))
        for name in ("half", "byte")
    )
    assert byte < 0.6 * half


def test_a_view_of_an_unreadable_image_is_that_of_its_replacement(
    index: ImageIndex, tmp_path: Path
) -> None:
    (tmp_path / "images" / "0002.png").write_bytes(b"no picture")
    index = image_index(tmp_path / "images")
    said: list[str] = []
    cache = opened(tmp_path / "cache", index, tell=said.append)

    wanted = live_targets(cache, EVERY, index, CellTeacher())
    torch.testing.assert_close(cache.lookup(EVERY, CPU)[0].image, wanted.image, rtol=1e-3, atol=0)
    assert said[-1] == "1 images could not be read; others stand in for them."


def test_another_wish_gets_outputs_of_its_own(index: ImageIndex, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    opened(folder, index)
    opened(folder, index, [CellTeacher(seed=1)])
    opened(folder, index, config=dataclasses.replace(SMALL, seed=1))
    opened(folder, index, sizes=[16])
    opened(folder, index, images=np.arange(5))
    opened(folder, pictures(tmp_path / "images", 7), images=np.arange(6))

    assert len(list(folder.iterdir())) == len(chunk_files(folder)) == 6


def test_several_sizes_share_a_projection_that_was_fitted_at_the_largest(
    index: ImageIndex, tmp_path: Path
) -> None:
    both = opened(tmp_path / "cache", index, sizes=[16, 32])
    large = opened(tmp_path / "cache", index, sizes=[32])
    small = opened(tmp_path / "cache", index, sizes=[16])

    fitted = [cache.projections[0].components for cache in (both, large, small)]  # type: ignore[union-attr]
    assert torch.equal(fitted[0], fitted[1])
    assert not torch.equal(fitted[0], fitted[2])
    assert len(list((tmp_path / "cache").iterdir())) == 2
    task = task_of([0, 4], [1, 0], 16)
    wanted = live_targets(both, task, index, CellTeacher())
    torch.testing.assert_close(
        both.lookup(task, CPU)[0].patches, wanted.patches, rtol=1e-3, atol=1e-4
    )


def test_later_runs_find_the_projection_and_steps_of_the_first(
    index: ImageIndex, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, dtype="int8")
    first = opened(tmp_path / "cache", index, config=config)
    for path in chunk_files(tmp_path):
        path.unlink()
    second = opened(tmp_path / "cache", index, config=config)

    for one, other in zip(first.lookup(EVERY, CPU)[0], second.lookup(EVERY, CPU)[0], strict=True):
        assert torch.equal(one, other)


def test_a_stop_keeps_whole_chunks_and_the_next_run_computes_the_rest(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_store, "CHUNK_IMAGES", 2)
    teacher = CellTeacher()
    with pytest.raises(StoppedError):
        # 12 views are sampled, then four of each of the three chunks are computed.
        opened(tmp_path / "cache", index, [teacher], asked_to_stop=lambda: teacher.asked >= 20)
    assert len(chunk_files(tmp_path)) == 2
    teacher = CellTeacher()
    cache = opened(tmp_path / "cache", index, [teacher])

    assert teacher.asked == 4 + 8  # one chunk, and some views to compare
    wanted = live_targets(cache, EVERY, index, CellTeacher())
    torch.testing.assert_close(
        cache.lookup(EVERY, CPU)[0].patches, wanted.patches, rtol=1e-3, atol=1e-4
    )


def test_a_stop_while_sampling_leaves_nothing_that_counts(
    index: ImageIndex, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        opened(tmp_path / "cache", index, asked_to_stop=lambda: True)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.name == "manifest.json"]


KILLED = """
from pathlib import Path
from tests.distill.kept_outputs import opened, teacher_that_dies
from veca.data.image_index import image_index
from veca.distill import cache_store
cache_store.CHUNK_IMAGES = 2
opened(Path({cache!r}), image_index({images!r}), [teacher_that_dies(22)])
"""


def test_a_killed_run_is_resumed_at_the_chunk_that_it_had_not_finished(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = KILLED.format(cache=str(tmp_path / "cache"), images=str(tmp_path / "images"))
    killed = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert killed.returncode == -9
    assert len(chunk_files(tmp_path)) == 2
    assert list(tmp_path.rglob("*.tmp"))

    monkeypatch.setattr(cache_store, "CHUNK_IMAGES", 2)
    teacher = CellTeacher()
    cache = opened(tmp_path / "cache", index, [teacher])
    assert teacher.asked == 4 + 8  # one chunk, and some views to compare
    assert not list(tmp_path.rglob("*.tmp"))
    undisturbed = opened(tmp_path / "other", index)
    for one, other in zip(
        cache.lookup(EVERY, CPU)[0], undisturbed.lookup(EVERY, CPU)[0], strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_what_has_no_room_is_refused_before_it_begins(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2000))
    said: list[str] = []
    with pytest.raises(CacheError, match=r"takes 0.0 MB, but .*cache has room for 0.0 MB; make"):
        opened(tmp_path / "cache", index, tell=said.append)
    assert said[0].startswith("Teacher outputs of 12 views are computed and kept in")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"crops": 0}, "0 views of each image"), ({"channels": 0}, "0 channels of each patch")],
)
def test_what_cannot_be_kept_is_refused(
    index: ImageIndex, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(CacheError, match=f"^{words} cannot be kept; use 1 or more"):
        opened(tmp_path / "cache", index, config=dataclasses.replace(SMALL, **changes))


@pytest.mark.workers
def test_two_processes_fill_and_read_what_one_would(index: ImageIndex, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TOGETHER.format(root=str(tmp_path)), "utf-8")
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
         "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(script)],
        cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    alone = opened(tmp_path / "alone", index).lookup(EVERY, CPU)[0]
    for rank in range(2):
        found = read_tensors(tmp_path / f"{rank}.safetensors")
        assert torch.equal(found["patches"], alone.patches)
    asked = [int(read_tensors(tmp_path / f"{rank}.safetensors")["asked"]) for rank in range(2)]
    assert asked == [12 + 8, 4]  # the first one also samples


TOGETHER = """
from pathlib import Path
import torch
from tests.distill.kept_outputs import CPU, CellTeacher, opened, task_of
from veca.data.image_index import image_index
from veca.distill import cache_store
from veca.runtime.files import write_atomic
from veca.runtime.tensors import tensor_pieces
from veca.runtime.distributed import init_distributed

root = Path({root!r})
cache_store.CHUNK_IMAGES = 2
with init_distributed("cpu") as workers:
    teacher = CellTeacher()
    cache = opened(root / "cache", image_index(root / "images"), [teacher], workers=workers)
    every = task_of(sorted([*range(6), *range(6)]), [0, 1] * 6)
    found = {{"patches": cache.lookup(every, CPU)[0].patches, "asked": torch.tensor(teacher.asked)}}
    write_atomic(root / f"{{workers.rank}}.safetensors", tensor_pieces(found))
"""
