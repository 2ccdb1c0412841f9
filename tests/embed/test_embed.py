"""Embedding gives what the model gives, once per image, in order, however it was interrupted."""

import dataclasses
import errno
import hashlib
import os
import pickle
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import veca
from tests.data.pictures import encoded, small_model, write_pictures, write_shard
from tests.embed.memory import FLAGS, IMAGES, measure, summary
from tests.runtime.faults import held
from veca.data.images import DataError
from veca.data.listing import list_images
from veca.data.transforms import prepare
from veca.embed import embed as embed_module
from veca.embed.collection import Collection, CollectionError
from veca.embed.embed import (
    EmbedConfig,
    Embedder,
    EmbedSummary,
    ImageDecoder,
    PreparedImage,
    embed_images,
)
from veca.runtime.files import LockedError
from veca.weights.checkpoint import model_info

SMALL = EmbedConfig(size=32, budget=3, precision="fp32", dtype="float32")

MAX_GROWTH = 30
"""Megabytes, after the first shards."""


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty images of three shapes."""
    write_pictures(tmp_path / "photos", 20)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards even for a few images."""
    monkeypatch.setattr(embed_module, "SHARD_ROWS", 6)


def embed(
    paths: Sequence[Path | str] | Path, out: Path, config: EmbedConfig = SMALL, **options: Any
) -> EmbedSummary:
    inputs = [paths] if isinstance(paths, Path) else paths
    options = {"num_workers": 0, "batch_size": 4, "device": "cpu", **options}
    return embed_images(inputs, options.pop("model", None) or small_model(), out, config, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(collection: Collection) -> list[str]:
    return [Path(path.replace("#", "/")).name for path in collection.paths]


def features(folder: Path) -> np.ndarray:
    return Collection.open(folder).features()


@torch.inference_mode()
def alone(path: Path, config: EmbedConfig = SMALL) -> veca.Features:
    """The features of one image, as the library gives them without a collection."""
    pixels = prepare(path, config.size, config.fit).pixels
    return small_model()(pixels[None], config.budget, config.ffn)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        EmbedConfig(size=32, fit="crop", precision="fp32", dtype="float32", patches=True),
        EmbedConfig(size=64, fit="pad", ffn=0.5, precision="fp32", dtype="float32", patches=True),
    ],
)
def test_every_image_has_the_features_that_the_model_gives_it_alone(
    config: EmbedConfig, photos: Path, tmp_path: Path
) -> None:
    found = embed(photos, tmp_path / "out", config)
    assert (found.embedded, found.failed) == (20, 0)
    collection = Collection.open(tmp_path / "out")
    assert names(collection) == [f"{number:04}.png" for number in range(20)]
    config = EmbedConfig(**collection.meta.settings)
    for path, feature in zip(collection.paths, collection.features(), strict=True):
        expected = alone(Path(path), config)
        np.testing.assert_allclose(feature, expected.image[0].numpy(), rtol=1e-5, atol=1e-5)
        if config.patches:
            np.testing.assert_allclose(
                collection.patch_map(path), expected.patch_map[0].numpy(), rtol=1e-5, atol=1e-5
            )


def test_a_row_describes_the_image_and_its_file(photos: Path, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", [("a.png", encoded(2))])
    embed([photos, shard], tmp_path / "out")
    rows = list(Collection.open(tmp_path / "out").rows())
    for row, path in ((rows[2], photos / "0002.png"), (rows[20], f"{shard}#a.png")):
        assert row.path == str(path)
        assert (row.width, row.height, row.error) == (32, 64, None)
        assert row.num_bytes == len(encoded(2))
        assert row.sha256 == hashlib.sha256(encoded(2)).hexdigest()
    assert (rows[2].tar_offset, rows[20].tar_offset) == (None, 512)


def test_results_do_not_depend_on_the_number_of_workers(photos: Path, tmp_path: Path) -> None:
    (photos / "0007.png").write_bytes(b"bad")
    config = EmbedConfig(size=32, precision="fp32", patches=True)
    for workers in (0, 1, 3):
        embed(photos, tmp_path / str(workers), config, num_workers=workers)
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "3")


def test_results_do_not_depend_on_batches_and_shards(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(photos, tmp_path / "one", batch_size=1)
    for number, (batch, rows, waiting) in enumerate([(3, 7, 2**28), (16, 20, 2**28), (16, 20, 1)]):
        monkeypatch.setattr(embed_module, "SHARD_ROWS", rows)
        monkeypatch.setattr(embed_module, "MAX_WAITING_BYTES", waiting)
        embed(photos, tmp_path / str(number), batch_size=batch)
        found, expected = features(tmp_path / str(number)), features(tmp_path / "one")
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_large_patch_maps_make_smaller_shards(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    map_bytes = 2 * 2 * 2 * 32 * 4  # twice the patches of a square of 32 pixels
    monkeypatch.setattr(embed_module, "MAX_MAP_BYTES", 5 * map_bytes)
    embed(photos, tmp_path / "out", dataclasses.replace(SMALL, patches=True))
    assert [shard.images for shard in Collection.open(tmp_path / "out").shards] == [5] * 4


def test_folders_lists_patterns_and_tar_files_give_the_same_features(
    photos: Path, tmp_path: Path
) -> None:
    paths = sorted(photos.iterdir())
    shard = write_shard(tmp_path / "s.tar", [(path.name, path.read_bytes()) for path in paths])
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"photos/{path.name}\n" for path in paths))
    inputs: list[Path | str] = [photos, listed, f"{photos}/*.png", shard]
    collections = []
    for number, given in enumerate(inputs):
        embed([given], tmp_path / f"out{number}")
        collections.append(Collection.open(tmp_path / f"out{number}"))
    for collection in collections:
        assert names(collection) == names(collections[0])
        np.testing.assert_array_equal(collection.features(), collections[0].features())
    assert collections[3].paths[0] == f"{shard}#0000.png"
    sources = [collection.shards[0].source for collection in collections]
    assert sources == [str(photos), str(tmp_path), str(photos), str(tmp_path)]


def test_unreadable_images_become_rows_with_a_reason(photos: Path, tmp_path: Path) -> None:
    (photos / "0003.png").write_bytes(b"")
    (photos / "0011.png").write_bytes(encoded(11)[:-40])
    (photos / "notes.md").touch()
    found = embed(photos, tmp_path / "out")
    assert (found.embedded, found.failed, found.ignored) == (18, 2, 1)
    assert (found.images, found.unreadable) == (18, 2)
    rows = [row for row in Collection.open(tmp_path / "out").rows() if row.error is not None]
    assert [row.path for row in rows] == [str(photos / "0003.png"), str(photos / "0011.png")]
    assert [row.error for row in rows] == found.errors
    assert "0003.png cannot be read" in found.errors[0]
    assert "truncated" in found.errors[1]


def test_too_many_patches_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    Image.new("L", (1, 70_000)).save(tmp_path / "1.png")
    Image.new("L", (40, 40)).save(tmp_path / "2.png")
    inputs = list_images([tmp_path])._replace(problems={1: "the tar file is damaged"})
    decoder = ImageDecoder(inputs, SMALL, patch_size=16)
    rows = decoder[np.arange(2)]
    errors = [None if isinstance(row, PreparedImage) else row.error for row in rows]
    assert errors[0] is not None
    assert "patches, but at most 262,144 are allowed; pass a smaller size" in errors[0]
    assert errors[1] == "the tar file is damaged"


def test_deleted_and_damaged_shards_are_computed_again_and_good_ones_stay(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = dataclasses.replace(SMALL, patches=True)
    embed(photos, tmp_path / "out", config)
    whole = files(tmp_path / "out")
    good = tmp_path / "out" / "shard-00003.parquet"
    written_at = good.stat().st_mtime_ns
    (tmp_path / "out" / "shard-00000.parquet").unlink()
    (tmp_path / "out" / "shard-00001.parquet").write_bytes(whole["shard-00001.parquet"][:-9])
    (tmp_path / "out" / "_patches-00002.safetensors").write_bytes(b"")
    assert embed(photos, tmp_path / "out", config).embedded == 18
    assert files(tmp_path / "out") == whole
    assert good.stat().st_mtime_ns == written_at
    assert "shard-00001.parquet is damaged" in caplog.text
    assert "_patches-00002.safetensors is damaged" in caplog.text


def test_runs_that_are_killed_at_random_moments_end_with_the_same_bytes(
    photos: Path, tmp_path: Path
) -> None:
    (photos / "0003.png").write_bytes(b"")
    config = EmbedConfig(size=32, precision="fp32", patches=True)
    embed(photos, tmp_path / "whole", config)
    moments = random.Random(0)
    for run in range(8):
        left = moments.randrange(10 + 10 * run)
        child = os.fork()
        if not child:
            try:
                kill_after(left)
                embed(photos, tmp_path / "out", config)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
    embed(photos, tmp_path / "out", config)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def kill_after(steps: int) -> None:
    """Kill this process after some steps of writing files."""
    left = steps

    def count_down() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any) -> Any:
            count_down()
            return real(*arguments)

        return step

    for name in ("write", "fsync", "replace"):
        setattr(os, name, counted(getattr(os, name)))


def test_a_full_disk_is_an_error_and_leaves_the_earlier_shards_intact(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(photos, tmp_path / "whole")
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == "shard-00002.parquet":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(CollectionError, match=r"No space left .*12 images .* are intact"):
            embed(photos, tmp_path / "out")
    assert Collection.open(tmp_path / "out").missing == 2
    np.testing.assert_array_equal(features(tmp_path / "out"), features(tmp_path / "whole")[:12])
    embed(photos, tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_new_images_are_added_and_absent_ones_stay(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "out")
    before = features(tmp_path / "out")
    more = write_pictures(tmp_path / "more", 2)
    assert embed(more, tmp_path / "out").embedded == 2
    (photos / "0005a.png").write_bytes(encoded(100))
    assert embed(photos, tmp_path / "out").embedded == 1
    collection = Collection.open(tmp_path / "out")
    assert names(collection)[20:] == ["0000.png", "0001.png", "0005a.png"]
    assert collection.paths[20] == str(more[0])
    np.testing.assert_array_equal(collection.features()[:20], before)
    np.testing.assert_allclose(collection.features()[20], before[0], atol=1e-5)


def test_repaired_and_changed_files_are_embedded_again_in_their_place(
    photos: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(SMALL, patches=True)
    (photos / "0003.png").write_bytes(b"")
    embed(photos, tmp_path / "out", config)
    (photos / "0003.png").write_bytes(encoded(3))
    (photos / "0008.png").write_bytes(encoded(7) + b" ")
    found = embed(photos, tmp_path / "out", config)
    assert (found.embedded, found.changed, found.unreadable) == (2, 2, 0)
    collection = Collection.open(tmp_path / "out")
    assert names(collection) == [f"{number:04}.png" for number in range(20)]
    np.testing.assert_allclose(collection.features()[8], collection.features()[7], atol=1e-5)
    for path in collection.paths:
        expected = alone(Path(path)).patch_map[0].numpy()
        np.testing.assert_allclose(collection.patch_map(path), expected, rtol=1e-5, atol=1e-5)


def test_a_folder_that_another_process_writes_into_is_refused(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with held(tmp_path / "out"), pytest.raises(LockedError, match="another process is writing"):
        embed(photos, tmp_path / "out")
    assert embed(photos, tmp_path / "out").embedded == 20


def test_the_default_budget_is_that_of_a_call_without_one() -> None:
    config = EmbedConfig(size=32, precision="fp32")
    small = small_model()
    assert Embedder(small, config).config.budget == small.num_prefix_tokens == 4
    small.budget = 2
    assert Embedder(small, config).config.budget == 2
    assert Embedder(small_model(), EmbedConfig(ffn=1.0)).config.ffn is None
    sizes: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2}
    assert Embedder(veca.build("tiny", **sizes), config).config.budget == 64
    assert Embedder(veca.build("tiny", default_budget=8, **sizes), config).config.budget == 8
    full = veca.build("tiny", attention="full", **sizes)
    assert Embedder(full, config).config.budget is None
    with pytest.raises(ValueError, match="budget=3"):
        Embedder(full, EmbedConfig(size=32, budget=3))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EmbedConfig(budget=5), "budget=5 is outside 1..4"),
        (EmbedConfig(ffn=2.0), "ffn=2.0 is outside"),
        (EmbedConfig(size=0), "size=0 is invalid: it must be an integer >= 1"),
        (EmbedConfig(size=40, fit="crop"), "size=40 is not a multiple of the patch size"),
    ],
)
def test_settings_that_the_model_does_not_support_are_refused_before_anything_is_written(
    config: EmbedConfig, words: str, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        embed(photos, tmp_path / "out", config)
    assert not (tmp_path / "out").exists()


def test_invalid_settings_are_refused_with_the_valid_ones(photos: Path, tmp_path: Path) -> None:
    value: Any = "int8"
    with pytest.raises((CollectionError, TypeError), match="'float16'"):  # or by the shape hook
        EmbedConfig(dtype=value)
    with pytest.raises(CollectionError, match=r"workers=-1 is invalid; use .* 0 or more"):
        embed(photos, tmp_path / "out", num_workers=-1)


def test_models_that_cannot_embed_images_are_refused(photos: Path, tmp_path: Path) -> None:
    model = veca.build("tiny", layers=1, width=32, heads=2, in_channels=4)
    with pytest.raises(CollectionError, match="takes images of 4 channels"):
        Embedder(model)
    for scale, words in ((1e6, "too large for float16"), (float("nan"), "not finite")):
        model = small_model()
        torch.nn.init.constant_(model.final_norm.bias, scale)
        with pytest.raises(CollectionError, match=words):
            embed(
                photos, tmp_path / "out", dataclasses.replace(SMALL, dtype="float16"), model=model
            )


def test_an_embedder_that_was_pickled_gives_the_same_rows(photos: Path) -> None:
    embedder = Embedder(small_model(), SMALL, "cpu")
    decoder = ImageDecoder(list_images([photos]), embedder.config, patch_size=16)
    images = [row for row in decoder[np.array([0, 3, 6])] if isinstance(row, PreparedImage)]
    copy = pickle.loads(pickle.dumps(embedder))
    for row, other in zip(embedder(images), copy(images), strict=True):
        assert row._replace(feature=None) == other._replace(feature=None)
        np.testing.assert_array_equal(row.feature, other.feature)
    assert copy.meta == embedder.meta


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_model_is_identified_by_the_hash_of_its_file(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    veca.save(small_model(), tmp_path / "model", dtype=dtype)
    monkeypatch.chdir(tmp_path)
    meta = Embedder("model", SMALL).meta
    assert meta.model_sha256 == model_info("model").digest
    assert meta.model == str(tmp_path / "model")
    assert meta.untrained
    if dtype == torch.float32:
        model = small_model().train()
        memory = Embedder(model, SMALL)
        assert memory.meta.model_sha256 == meta.model_sha256
        assert memory.meta.model is None
        assert not model.training


def test_a_size_gives_the_same_untrained_model_every_time() -> None:
    before = torch.random.get_rng_state()
    first, second = Embedder("tiny"), Embedder("tiny")
    assert first.meta == second.meta
    assert (first.meta.model, first.meta.untrained) == ("tiny", True)
    assert torch.equal(before, torch.random.get_rng_state())
    with pytest.raises(veca.WeightsError, match="give a folder or"):
        Embedder("nothing")


class DeadlyDecoder(ImageDecoder):
    """A decoder whose process is killed."""

    def __getitem__(self, rows: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_decoding_process_is_one_sentence(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embed_module, "ImageDecoder", DeadlyDecoder)
    with pytest.raises(DataError, match=r"was killed .*with fewer workers\."):
        embed(photos, tmp_path / "out", num_workers=1)


def test_threads_and_random_numbers_are_left_alone(photos: Path, tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    embed(photos, tmp_path / "out", num_workers=1)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.random.get_rng_state(), state)


def native(monkeypatch: pytest.MonkeyPatch, bf16: bool) -> None:
    """Let this CPU compute bf16 natively, or not."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)


@pytest.mark.parametrize(("bf16", "expected"), [(True, "bf16"), (False, "fp32")])
def test_a_collection_records_the_precision_that_auto_became(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bf16: bool, expected: str
) -> None:
    native(monkeypatch, bf16)
    auto = dataclasses.replace(SMALL, precision="auto")
    embed(photos, tmp_path / "auto", auto)
    assert Collection.open(tmp_path / "auto").meta.settings["precision"] == expected
    embed(photos, tmp_path / "fp32", SMALL)
    found, exact = (features(tmp_path / name) for name in ("auto", "fp32"))
    assert np.array_equal(found, exact) == (not bf16)
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.05)


def test_auto_continues_a_collection_in_its_own_precision_and_another_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native(monkeypatch, bf16=True)
    embed([photos / "0000.png"], tmp_path / "out", SMALL)
    with pytest.raises(CollectionError, match="made with precision fp32, not with precision bf16"):
        embed(photos, tmp_path / "out", dataclasses.replace(SMALL, precision="bf16"))
    embed(photos, tmp_path / "out", dataclasses.replace(SMALL, precision="auto"))
    assert Collection.open(tmp_path / "out").meta.settings["precision"] == "fp32"
    expected = alone(photos / "0019.png").image[0].numpy()
    np.testing.assert_allclose(features(tmp_path / "out")[19], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_memory_is_bounded_over_twenty_thousand_images(tmp_path: Path) -> None:
    found = summary(measure(tmp_path, IMAGES, FLAGS), IMAGES, FLAGS)
    for name in ("main", "main_own", "workers", "workers_own"):
        assert found[name]["growth_of_largest_mb"] < MAX_GROWTH
