"""The feature cache: keys that never mix models or images, resume after a kill, several ranks.

How chunks are written, verified and locked is proved in `tests/runtime/test_shards.py`.
"""

import dataclasses
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.data.pictures import encoded, small_model, write_shard
from tests.probe.fixtures import (
    CPU,
    SETTINGS,
    SIDE,
    VARIANTS,
    WHOLE_IMAGES,
    CellModel,
    context_in,
    dense_split,
    files_in,
    image_split,
    read_array,
)
from tests.runtime.ranks import run_ranks
from veca.data.images import DataError
from veca.data.listing import RAW_SUFFIX, ImageEntry, TableBuilder
from veca.data.sets.dataset import Split
from veca.probe import feature_cache as module
from veca.probe import features
from veca.probe.feature_cache import (
    SAMPLED_FILES,
    Variant,
    cache_key,
    fill_cache,
    map_settings,
    read_in_workers,
)
from veca.probe.features import extract_image_features, extract_patch_features
from veca.probe.models import VecaModel
from veca.probe.rows import ProbeError, Setting
from veca.runtime.distributed import Ranks
from veca.runtime.shards import ShardStore


def fill_squares(folder: Path, *names: str) -> tuple[list[ShardStore], list[range]]:
    """Caches of the squares of 11 items, times 10 for the second one, and what was computed."""
    caches = [ShardStore(folder, {"name": n}, count=11, chunk_size=4) for n in names]
    variants = [Variant(setting) for setting in SETTINGS]
    computed: list[range] = []

    def forward(items: range, squares: list[int], variant: Variant) -> dict[str, Tensor]:
        computed.append(items)
        scale = 10 ** variants.index(variant)
        maps = {f"{item}/map": torch.ones(item, 2) for item in items}
        return {"square": scale * torch.tensor(squares)[:, None], **maps}

    fill_cache(
        CellModel(),
        dict(zip(variants, caches, strict=False)),
        3,
        lambda items: [item**2 for item in items],
        forward,
        context_in(folder),
    )
    return caches, computed


def test_caches_are_filled_in_one_pass_and_groups_do_not_depend_on_what_is_there(
    tmp_path: Path,
) -> None:
    groups = [range(3), range(3, 4), range(4, 7), range(7, 8), range(8, 11)]
    assert fill_squares(tmp_path, "one")[1] == groups
    (one, two), computed = fill_squares(tmp_path, "one", "two")
    assert computed == groups
    assert one.rows("square", np.arange(11)).flatten().tolist() == [item**2 for item in range(11)]
    assert two.rows("square", np.array([9, 0, 9])).flatten().tolist() == [810, 0, 810]
    with two.open(1) as file:
        assert file.read("5/map").shape == (5, 2)


def moved(split: Split, old: Path, new: Path) -> Split:
    """The same split with its images in another folder."""
    table = TableBuilder()
    for key, size in zip(split.keys, split.images.sizes.tolist(), strict=True):
        table.add(ImageEntry(str(new / key), size))
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
    reordered = dataclasses.replace(split, keys=tuple(reversed(split.keys)))
    assert cache_key("x", reordered, model) != key
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
        table.add(ImageEntry(f"{shard}#a.png", 500, str(shard), 512))
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
    table.add(ImageEntry(f"{path}#0{RAW_SUFFIX}", 3072, str(path), 1))
    with pytest.raises(DataError, match=r"batch.bin#0.* cannot be read .*truncated"):
        cache_key("x", Split(name="test", images=table.table(), keys=("0",)), None)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"num_workers": -1}])
def test_a_context_needs_a_batch(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(ProbeError, match="batch must be >= 1, num_workers >= 0"):
        context_in(tmp_path, **wrong)


def tripled(number: int) -> int:
    if number == 7:
        raise ValueError("seven cannot be tripled")
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)
    return 3 * number


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_come_in_order_and_errors_in_their_own_words(num_workers: int) -> None:
    assert list(read_in_workers(tripled, [1, 2, 3, 4], num_workers)) == [3, 6, 9, 12]
    with pytest.raises(DataError, match=r"^seven cannot be tripled$"):
        list(read_in_workers(tripled, [1, 7], num_workers))
    if num_workers:
        with pytest.raises(DataError, match=r"was killed .*run the same command again with fewer"):
            list(read_in_workers(tripled, [1, 9], num_workers))


@pytest.fixture
def two_processors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "usable_processors", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_processors")
def test_results_come_in_order_and_the_slowest_setting_starts_first() -> None:
    started: list[Setting] = []

    def work(variant: Variant) -> str:
        started.append(variant.setting)
        return variant.setting.label

    model = CellModel()
    model.kind = "teacher"  # one after the other
    with map_settings(model, 4, 0) as run:
        variants = [Variant(setting) for setting in (*SETTINGS, Setting())]
        assert run(work, variants) == ["c2", "c4-f0.5", "c8", "whole"]
    assert started == [SETTINGS[2], SETTINGS[1], SETTINGS[0], Setting()]


@pytest.mark.usefixtures("two_processors")
def test_settings_of_our_models_run_in_parallel_and_share_the_threads() -> None:
    both = threading.Barrier(2, timeout=20)

    def work(_: object) -> int:
        both.wait()  # one alone would wait forever
        return torch.get_num_threads()

    with map_settings(CellModel(), 2, 0) as run:
        assert run(work, [Variant(setting) for setting in SETTINGS[:2]]) == [1, 1]
    assert torch.get_num_threads() == 2
    with map_settings(CellModel(), 2, 0) as run, pytest.raises(ZeroDivisionError):
        run(lambda _: 1 // 0, [Variant(setting) for setting in SETTINGS[:2]])


@pytest.mark.usefixtures("two_processors")
def test_a_model_gives_the_same_bits_alone_and_in_parallel() -> None:
    model = VecaModel(small_model(), CPU, name="small", digest=None)
    images, settings = torch.randint(0, 256, (4, 3, 32, 32)).byte(), model.settings(None, None)
    torch.set_num_threads(1)
    wanted = [model.extract(images, setting) for setting in settings]
    torch.set_num_threads(2)
    variants = [Variant(setting) for setting in settings]
    with map_settings(model, 2, 0) as run:
        for _ in range(10):
            found = run(lambda variant: model.extract(images, variant.setting), variants)
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one.patches, other.patches)
                assert torch.equal(one.image, other.image)


def fill(folder: Path, split: Split, ranks: Ranks, die_at: int = 0) -> tuple[int, float]:
    """Fill the caches of a folder; return the views that were computed and the sum of vectors."""
    model, ctx = CellModel(die_at=die_at), context_in(folder, ranks, num_workers=1)
    found = extract_image_features(model, SETTINGS, split, ctx, resolution=SIDE)
    extract_patch_features(model, VARIANTS, split, WHOLE_IMAGES, ctx)
    return sum(model.asked.values()), sum(found[setting].sum().item() for setting in SETTINGS)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "IMAGE_CHUNK", 4)
    monkeypatch.setattr(features, "MAP_CHUNK", 4)


@pytest.mark.usefixtures("small_chunks")
def test_a_killed_run_continues_and_ends_with_the_same_bytes(tmp_path: Path) -> None:
    alone, folder, split = Ranks(device=CPU), tmp_path / "killed", image_split(tmp_path / "in", 16)
    assert fill(tmp_path / "undisturbed", split, alone)[0] == 16 * (len(SETTINGS) + 1)
    fork = multiprocessing.get_context("fork")
    killed = fork.Process(target=fill, args=(folder, split, alone, 8))
    killed.start()
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    left = [name for name in files_in(folder) if "chunk" in name]
    assert len(left) == 2 * len(SETTINGS)  # the third chunk of each was under way
    assert fill(folder, split, alone)[0] == 8 * len(SETTINGS) + 16
    assert files_in(folder) == files_in(tmp_path / "undisturbed")


@pytest.mark.workers
@pytest.mark.usefixtures("small_chunks")
def test_two_ranks_see_each_image_once_and_write_what_one_does(tmp_path: Path) -> None:
    split = image_split(tmp_path / "in", 16)
    views, total = fill(tmp_path / "one", split, Ranks(device=CPU))

    def work(ranks: Ranks) -> None:
        assert fill(tmp_path / "two", split, ranks) == (views // 2, total)

    run_ranks(work, tmp_path)
    assert files_in(tmp_path / "two") == files_in(tmp_path / "one")
