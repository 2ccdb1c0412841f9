"""Embedding a collection gives what the model gives, once, in order, however it was interrupted."""

import dataclasses
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import veca
from tests.data.pictures import encoded, small_model, write_pictures, write_shard
from veca.data.images import DataError
from veca.data.transforms import prepare
from veca.embed import windows
from veca.embed.collection import Collection, open_collection
from veca.embed.config import Efficiency, EmbedConfig
from veca.embed.errors import CollectionError
from veca.embed.record import RECORD_NAME
from veca.embed.run import Summary, embed_collection
from veca.embed.store import CollectionWriter
from veca.runtime.files import LockedError

HERE = Efficiency(workers=0, batch=4, device="cpu")
SMALL = EmbedConfig(size=32, budget=3, precision="fp32", dtype="float32")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twenty pictures of three shapes."""
    write_pictures(tmp_path / "photos", 20)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards even for a few pictures."""
    monkeypatch.setattr(windows, "WINDOW", 6)


def embed(
    paths: Sequence[Path | str] | Path,
    out: Path,
    config: EmbedConfig = SMALL,
    efficiency: Efficiency = HERE,
    **options: Any,
) -> Summary:
    inputs = [paths] if isinstance(paths, Path) else paths
    return embed_collection(inputs, small_model(), out, config, efficiency, **options)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def names(collection: Collection) -> list[str]:
    return [Path(path.replace("#", "/")).name for path in collection.paths]


@torch.inference_mode()
def alone(path: Path, config: EmbedConfig = SMALL) -> veca.Features:
    """The features of one picture, as the library gives them without a collection."""
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
def test_every_picture_has_the_features_that_the_model_gives_it_alone(
    config: EmbedConfig, photos: Path, tmp_path: Path
) -> None:
    summary = embed(photos, tmp_path / "out", config)
    assert (summary.embedded, summary.skipped) == (20, 0)
    collection = open_collection(tmp_path / "out")
    assert names(collection) == [f"{number:04}.png" for number in range(20)]
    for index in range(20):
        expected = alone(photos / f"{index:04}.png", collection.record.config)
        np.testing.assert_allclose(
            collection.vectors[index], expected.image[0].numpy(), rtol=1e-5, atol=1e-5
        )
        assert collection.entry(index).grid == expected.grid
        if config.patches:
            np.testing.assert_allclose(
                collection.patch_map(index), expected.patch_map[0].numpy(), rtol=1e-5, atol=1e-5
            )


def test_the_index_tells_the_original_size_of_every_picture(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "out")
    entry = open_collection(tmp_path / "out").entry(2)
    assert (entry.width, entry.height, entry.grid) == (32, 64, (4, 2))


def test_results_do_not_depend_on_the_number_of_workers(photos: Path, tmp_path: Path) -> None:
    (photos / "0007.png").write_bytes(b"bad")
    config = EmbedConfig(size=32, precision="fp32", patches=True)
    for workers in (0, 1, 3):
        efficiency = Efficiency(workers=workers, batch=4, device="cpu")
        embed(photos, tmp_path / str(workers), config, efficiency)
    assert files(tmp_path / "0") == files(tmp_path / "1") == files(tmp_path / "3")


def test_results_do_not_depend_on_the_size_of_a_batch(photos: Path, tmp_path: Path) -> None:
    found = []
    for batch in (1, 3, 16):
        out = tmp_path / str(batch)
        embed(photos, out, efficiency=Efficiency(workers=0, batch=batch, device="cpu"))
        found.append(open_collection(out).vectors[:])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[2], found[0], rtol=1e-5, atol=1e-5)


def test_half_precision_is_the_full_one_rounded(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "full")
    embed(photos, tmp_path / "half", dataclasses.replace(SMALL, dtype="float16"))
    full = open_collection(tmp_path / "full").vectors[:]
    half = open_collection(tmp_path / "half").vectors[:]
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, full.astype(np.float16))


def test_folders_lists_patterns_and_shards_give_the_same_vectors(
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
        collections.append(open_collection(tmp_path / f"out{number}"))
    for collection in collections:
        assert names(collection) == names(collections[0])
        np.testing.assert_array_equal(collection.vectors[:], collections[0].vectors[:])
    assert collections[3].paths[0] == f"{shard}#0000.png"


def test_unreadable_inputs_are_skipped_counted_and_listed(photos: Path, tmp_path: Path) -> None:
    (photos / "0003.png").write_bytes(b"")
    (photos / "0011.png").write_bytes(encoded(11)[:-40])
    (photos / "notes.md").touch()
    summary = embed(photos, tmp_path / "out")
    assert (summary.embedded, summary.skipped, summary.others) == (18, 2, 1)
    lines = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    skipped = [json.loads(line) for line in lines]
    assert [item["path"] for item in skipped] == [
        str(photos / "0003.png"), str(photos / "0011.png"),
    ]  # fmt: skip
    assert "is empty" in skipped[0]["reason"]
    assert "cut short" in skipped[1]["reason"]
    expected = [f"{number:04}.png" for number in range(20) if number not in {3, 11}]
    assert names(open_collection(tmp_path / "out")) == expected


def test_inputs_none_of_which_can_be_read_are_an_error_with_a_reason(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}.png").write_bytes(b"")
    for _ in range(2):  # the second time nothing is left to try
        with pytest.raises(CollectionError, match=r"none of the 8 inputs .*0\.png is empty"):
            embed(sorted(tmp_path.glob("*.png")), tmp_path / "out")


def test_a_second_run_does_nothing(photos: Path, tmp_path: Path) -> None:
    (photos / "0003.png").write_bytes(b"")
    embed(photos, tmp_path / "out")
    paths = [tmp_path / "out", *(tmp_path / "out").iterdir()]
    before = {path: path.stat().st_mtime_ns for path in paths}
    summary = embed(photos, tmp_path / "out")
    assert (summary.embedded, summary.skipped, summary.record.count) == (0, 0, 19)
    assert before == {path: path.stat().st_mtime_ns for path in paths}


@pytest.mark.parametrize("stopped_at", [1, 2, 3])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    stopped_at: int, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "0003.png").write_bytes(b"")
    config = EmbedConfig(size=32, precision="fp32", patches=True)
    embed(photos, tmp_path / "whole", config)
    real = CollectionWriter.commit

    def commit(writer: CollectionWriter, content: Any) -> None:
        if len(writer.record.shards) == stopped_at:
            raise KeyboardInterrupt
        real(writer, content)

    with monkeypatch.context() as patch:
        patch.setattr(CollectionWriter, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            embed(photos, tmp_path / "out", config)
    stopped = open_collection(tmp_path / "out").record
    assert (len(stopped.shards), stopped.complete) == (stopped_at, False)
    embed(photos, tmp_path / "out", config)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_full_disk_is_told_and_leaves_the_earlier_shards_whole(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(photos, tmp_path / "whole")
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        if target.name == "vectors-00002.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(CollectionError, match=r"No space left .*12 pictures .* are whole"):
            embed(photos, tmp_path / "out")
    np.testing.assert_array_equal(
        open_collection(tmp_path / "out").vectors[:],
        open_collection(tmp_path / "whole").vectors[:12],
    )
    embed(photos, tmp_path / "out")
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_new_inputs_are_added_behind_the_old_ones(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "out")
    before = open_collection(tmp_path / "out").vectors[:]
    (photos / "0005a.png").write_bytes(encoded(100))
    more = write_pictures(tmp_path / "more", 2)
    summary = embed([*more, photos], tmp_path / "out")
    assert summary.embedded == 3
    collection = open_collection(tmp_path / "out")
    assert names(collection)[20:] == ["0000.png", "0001.png", "0005a.png"]
    np.testing.assert_array_equal(collection.vectors[:20], before)
    np.testing.assert_allclose(collection.vectors[20], before[0], atol=1e-5)


def test_a_file_that_was_repaired_is_tried_again(photos: Path, tmp_path: Path) -> None:
    (photos / "0003.png").write_bytes(b"")
    embed(photos, tmp_path / "out")
    (photos / "0003.png").write_bytes(encoded(3))
    summary = embed(photos, tmp_path / "out")
    assert (summary.embedded, summary.record.skipped) == (1, 0)
    assert (tmp_path / "out" / "skipped.jsonl").read_text() == ""


def test_a_file_that_changed_after_it_was_embedded_is_told(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "out")
    (photos / "0003.png").write_bytes(encoded(4))
    summary = embed(photos, tmp_path / "out")
    assert (summary.embedded, summary.changed) == (0, 1)


def test_other_settings_in_the_same_folder_are_refused(photos: Path, tmp_path: Path) -> None:
    embed(photos, tmp_path / "out")
    with pytest.raises(CollectionError, match="made with budget 3, but asked for was budget 2"):
        embed(photos, tmp_path / "out", dataclasses.replace(SMALL, budget=2))
    with pytest.raises(CollectionError, match=r"model in memory \(SHA-256"):
        embed_collection([photos], small_model(seed=1), tmp_path / "out", SMALL, HERE)


def test_a_folder_with_other_files_is_left_alone(photos: Path) -> None:
    before = sorted(photos.iterdir())
    with pytest.raises(CollectionError, match="holds other files"):
        embed(photos, photos)
    assert sorted(photos.iterdir()) == before


def test_inputs_that_are_missing_leave_no_folder_behind(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        embed(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_that_another_process_writes_into_is_refused(photos: Path, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="Windows has no such locks")
    (tmp_path / "out").mkdir()
    ready, release = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        file = os.open(tmp_path / "out" / ".lock", os.O_RDWR | os.O_CREAT)
        fcntl.lockf(file, fcntl.LOCK_EX)
        os.write(ready[1], b"x")
        os.read(release[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    with pytest.raises(LockedError, match="another process is writing"):
        embed(photos, tmp_path / "out")
    os.write(release[1], b"x")
    os.waitpid(child, 0)
    assert embed(photos, tmp_path / "out").embedded == 20


def test_the_usual_budget_is_sixteen_or_all_cores_of_a_smaller_model(
    photos: Path, tmp_path: Path
) -> None:
    first = [photos / "0000.png"]
    config = EmbedConfig(size=32, precision="fp32")
    assert embed(first, tmp_path / "small", config).record.config.budget == 4
    sizes: dict[str, Any] = {"layers": 1, "width": 32, "heads": 2}
    larger = veca.build("tiny", **sizes)
    found = embed_collection(first, larger, tmp_path / "large", config, HERE)
    assert found.record.config.budget == 16
    full = veca.build("tiny", attention="full", **sizes)
    found = embed_collection(first, full, tmp_path / "full", config, HERE)
    assert found.record.config.budget is None
    with pytest.raises(ValueError, match="budget=3 means nothing to a full-attention model"):
        embed_collection(first, full, tmp_path / "other", EmbedConfig(size=32, budget=3), HERE)


def test_the_whole_feed_forward_part_is_the_same_as_none_left_out(
    photos: Path, tmp_path: Path
) -> None:
    found = embed([photos / "0000.png"], tmp_path / "out", EmbedConfig(size=32, ffn=1.0))
    assert found.record.config.ffn is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EmbedConfig(budget=5), "budget=5 is outside 1..4"),
        (EmbedConfig(ffn=2.0), "ffn=2.0 is outside"),
        (EmbedConfig(size=0), "size=0 is not a number of pixels"),
        (EmbedConfig(size=40, fit="crop"), "size=40 is not a multiple of the patch size"),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_anything_is_written(
    config: EmbedConfig, words: str, photos: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        embed(photos, tmp_path / "out", config)
    assert not (tmp_path / "out").exists()


def test_a_model_of_other_channels_is_refused(photos: Path, tmp_path: Path) -> None:
    model = veca.build("tiny", layers=1, width=32, heads=2, in_channels=4)
    with pytest.raises(CollectionError, match="takes images of 4 channels"):
        embed_collection([photos], model, tmp_path / "out", SMALL, HERE)


def test_threads_are_given_back(photos: Path, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    embed(photos, tmp_path / "out", efficiency=Efficiency(workers=1, device="cpu"))
    assert torch.get_num_threads() == before


def test_progress_counts_every_input(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "0003.png").write_bytes(b"")
    embed(photos, tmp_path / "out", show_progress=True)
    assert "20 of 20 images" in capsys.readouterr().err


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
    written = json.loads((tmp_path / "auto" / RECORD_NAME).read_text())
    assert written["precision"] == expected
    embed(photos, tmp_path / "fp32", SMALL)
    found, exact = (open_collection(tmp_path / name).vectors[:] for name in ("auto", "fp32"))
    assert np.array_equal(found, exact) == (not bf16)
    np.testing.assert_allclose(found, exact, rtol=0.05, atol=0.05)


def test_auto_continues_a_collection_in_its_own_precision_and_another_is_refused(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native(monkeypatch, bf16=True)
    embed([photos / "0000.png"], tmp_path / "out", SMALL)
    for precision in ("bf16", "fp32", "auto"):
        config = dataclasses.replace(SMALL, precision=precision)
        if precision == "bf16":
            with pytest.raises(CollectionError, match=r"made with precision fp32, but .* bf16;"):
                embed(photos, tmp_path / "out", config)
        else:
            embed(photos, tmp_path / "out", config)
    collection = open_collection(tmp_path / "out")
    assert collection.record.config.precision == "fp32"
    expected = alone(photos / "0019.png").image[0].numpy()
    np.testing.assert_allclose(collection.vectors[19], expected, rtol=1e-5, atol=1e-5)
