"""The files of a cache: damage is noticed, an interruption leaves no trace."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from veca.distill.cache_records import RecordLayout, Records
from veca.distill.cache_store import (
    CHUNK_BYTES,
    CHUNK_IMAGES,
    DIGEST_BYTES,
    CacheError,
    Chunks,
    Kept,
    Measured,
    ResolutionFolder,
    TeacherFolder,
    folder_name,
    remove_leftovers,
)
from veca.distill.projection import Projection
from veca.teacher.teacher import Targets

CPU = torch.device("cpu")
LAYOUT = RecordLayout(image_width=3, patches=4, channels=2, dtype="float16")
CHUNKS = Chunks(views=10, views_of_one=4, record_bytes=LAYOUT.kind.itemsize)
RECORDS = Records(layout=LAYOUT, scales=None)
PROJECTION = Projection(torch.zeros(6), torch.eye(2, 6), torch.tensor(0.5))


def kept_in(folder: Path, scales: torch.Tensor | None = None) -> Kept:
    """Outputs of ten views that a folder is to hold."""
    above = TeacherFolder(path=folder, facts={"teacher": "cells"}).write(PROJECTION)
    place = ResolutionFolder(path=folder / "32px", layout=LAYOUT, chunks=CHUNKS)
    place.write(dataclasses.replace(RECORDS, scales=scales), Measured(1.0, 0.5), above)
    kept = place.read(above)
    assert kept is not None
    return kept


def records(views: range) -> Iterator[NDArray[Any]]:
    """Outputs that tell their number, one after the other."""
    for number in views:
        whole = torch.full((1, 4, 2), float(number))
        yield RECORDS.pack(Targets(whole[:, 0, :1].expand(1, 3), whole))


def filled(folder: Path) -> Kept:
    """Outputs of ten views in a folder."""
    kept = kept_in(folder)
    for chunk in range(kept.chunks.count):
        kept.write(chunk, records(kept.chunks.numbers(chunk)))
    return kept


@given(images=st.integers(1, 5000), crops=st.integers(1, 20), patches=st.integers(1, 300_000))
def test_chunks_hold_every_view_once_and_whole_images(
    images: int, crops: int, patches: int
) -> None:
    layout = RecordLayout(image_width=8, patches=patches, channels=64, dtype="int8")
    chunks = Chunks.plan(images, crops, layout)

    views = [view for chunk in range(chunks.count) for view in chunks.numbers(chunk)]
    assert views == list(range(images * crops))
    assert chunks.views_of_one % crops == 0
    assert chunks.views_of_one <= CHUNK_IMAGES * crops
    assert chunks.num_bytes(0) <= CHUNK_BYTES or chunks.views_of_one == crops


def test_what_was_written_verifies_and_is_read_in_any_order(tmp_path: Path) -> None:
    kept = filled(tmp_path)

    assert [kept.problem(chunk) for chunk in range(3)] == [None] * 3
    found = kept.read(np.array([9, 0, 5, 4, 9]), CPU)
    assert found.image[:, 0].tolist() == [9, 0, 5, 4, 9]
    assert torch.equal(found.patches, found.image[:, :1, None].expand(5, 4, 2))


def test_a_read_of_no_views_is_empty(tmp_path: Path) -> None:
    found = filled(tmp_path).read(np.zeros(0, np.int64), CPU)
    assert found.image.shape == (0, 3)
    assert found.patches.shape == (0, 4, 2)


def test_any_flipped_byte_is_noticed(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    path, whole = kept.path(2), kept.path(2).read_bytes()

    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert kept.problem(2) == "was changed after it was written"
    path.write_bytes(whole)
    assert kept.problem(2) is None


def test_files_that_are_too_short_too_long_missing_or_closed_are_told_apart(
    tmp_path: Path,
) -> None:
    kept = filled(tmp_path)
    size = 4 * LAYOUT.kind.itemsize + DIGEST_BYTES
    kept.path(0).write_bytes(kept.path(0).read_bytes()[:-1])
    assert kept.problem(0) == f"has {size - 1} bytes instead of {size}"
    kept.path(0).write_bytes(kept.path(1).read_bytes() + b"\0")
    assert kept.problem(0) == f"has {size + 1} bytes instead of {size}"
    kept.path(0).unlink()
    assert kept.problem(0) == "is missing"
    kept.path(0).mkdir()
    assert str(kept.problem(0)).startswith("cannot be read (")


def test_a_chunk_under_another_number_or_of_another_fit_does_not_verify(tmp_path: Path) -> None:
    kept = filled(tmp_path / "one")
    other = kept_in(tmp_path / "other", scales=torch.ones(2))
    shutil.copy(kept.path(0), kept.path(1))
    shutil.copy(kept.path(0), other.path(0))

    assert kept.problem(1) == "was changed after it was written"
    assert other.problem(0) == "was changed after it was written"


def test_a_chunk_whose_making_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    kept = filled(tmp_path)

    def failing() -> Iterator[NDArray[Any]]:
        yield from records(range(2))
        raise RuntimeError("the teacher fell ill")

    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RuntimeError, match="fell ill"):
        kept.write(0, failing())
    assert kept.problem(0) is None
    assert sorted(tmp_path.rglob("*")) == before


def test_a_chunk_that_vanishes_or_shrinks_while_it_is_used_is_an_error(tmp_path: Path) -> None:
    kept = filled(tmp_path)
    kept.path(0).write_bytes(kept.path(0).read_bytes()[:50])
    with pytest.raises(CacheError, match=r"chunk-00000.bin cannot be read any more \(it was cut"):
        kept.read(np.array([3]), CPU)
    kept.path(0).unlink()
    with pytest.raises(CacheError, match=r"cannot be read any more .*start again"):
        kept.read(np.array([3]), CPU)


def test_projection_steps_and_measurements_come_back_to_the_bit(tmp_path: Path) -> None:
    scales = torch.tensor([0.1, 1 / 3])
    kept_in(tmp_path, scales)
    projection, above = TeacherFolder(path=tmp_path, facts={}).read() or (None, "")
    place = ResolutionFolder(path=tmp_path / "32px", layout=LAYOUT, chunks=CHUNKS)
    kept = place.read(above)

    assert projection is not None
    assert torch.equal(projection.components, PROJECTION.components)
    assert float(projection.explained) == 0.5
    assert kept is not None
    assert kept.records.scales is not None
    assert torch.equal(kept.records.scales, scales)
    assert kept.measured == Measured(1.0, 0.5)
    assert kept.chunks == CHUNKS


def test_a_folder_without_projection_needs_none(tmp_path: Path) -> None:
    folder = TeacherFolder(path=tmp_path, facts={})
    assert folder.read() is None
    digest = folder.write(None)
    assert folder.read() == (None, digest)


def test_what_was_fitted_below_another_manifest_does_not_count(tmp_path: Path) -> None:
    kept_in(tmp_path)
    place = ResolutionFolder(path=tmp_path / "32px", layout=LAYOUT, chunks=CHUNKS)
    assert place.read("another hash") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"7", b'{"sha256": "0"}', b"\xff", b"[" * 100_000]
)
def test_a_damaged_manifest_is_refused_with_advice(tmp_path: Path, content: bytes) -> None:
    kept_in(tmp_path)
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CacheError, match=r"manifest.json is damaged .* remove .*computed again"):
        TeacherFolder(path=tmp_path, facts={}).read()


def test_a_manifest_with_one_changed_number_is_refused(tmp_path: Path) -> None:
    kept = kept_in(tmp_path, torch.ones(2))
    path = kept.folder / "manifest.json"
    content = json.loads(path.read_bytes())
    content["scales"][1] = 2.0
    path.write_text(json.dumps(content), "utf-8")
    above = content["above"]
    with pytest.raises(CacheError, match=r"32px.manifest.json is damaged"):
        ResolutionFolder(path=kept.folder, layout=LAYOUT, chunks=CHUNKS).read(above)


def test_a_damaged_or_missing_projection_is_refused(tmp_path: Path) -> None:
    kept_in(tmp_path)
    folder, path = TeacherFolder(path=tmp_path, facts={}), tmp_path / "projection.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CacheError, match=r"projection.safetensors is damaged or missing"):
        folder.read()
    path.unlink()
    with pytest.raises(CacheError, match=r"projection.safetensors is damaged or missing"):
        folder.read()


def test_the_manifest_says_in_clear_text_what_is_kept(tmp_path: Path) -> None:
    kept_in(tmp_path)
    assert json.loads((tmp_path / "manifest.json").read_bytes())["teacher"] == "cells"
    below = json.loads((tmp_path / "32px" / "manifest.json").read_bytes())
    assert below["record"] == dataclasses.asdict(LAYOUT)


def test_leftovers_of_a_killed_process_are_removed_and_nothing_else(tmp_path: Path) -> None:
    filled(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    (tmp_path / "32px" / ".chunk-00001.bin.0a1b.tmp").write_bytes(b"half")
    remove_leftovers(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("teacher", "name"),
    [
        ("efficientnet-lite2", "efficientnet-lite2-0123456789abcdef"),
        ("facebook/dinov2-base", "facebook-dinov2-base-0123456789abcdef"),
        ("../..", "teacher-0123456789abcdef"),
        ("a" * 99, "a" * 40 + "-0123456789abcdef"),
    ],
)
def test_a_folder_is_named_so_that_people_and_file_systems_can_read_it(
    teacher: str, name: str
) -> None:
    assert folder_name(teacher, "0123456789abcdef" * 4) == name
