"""One teacher's outputs: verified, resumed, and not trusted blindly."""

from pathlib import Path
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from tests.distill.kept_outputs import (
    CPU,
    SIZE,
    CellTeacher,
    chunk_files,
    live_outputs,
    opened,
    pictures,
    task_of,
)
from veca.data.image_index import ImageIndex
from veca.distill import cache_outputs, cache_store
from veca.distill.cache_company import Company
from veca.distill.cache_outputs import TeacherOutputs, spread_views
from veca.distill.cache_store import CacheError
from veca.distill.validation import StoppedError
from veca.runtime.distributed import Ranks


@pytest.fixture(name="index")
def fixture_index(tmp_path: Path) -> ImageIndex:
    """Six pictures."""
    return pictures(tmp_path / "images")


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two images to a chunk."""
    monkeypatch.setattr(cache_store, "CHUNK_IMAGES", 2)


def outputs(
    folder: Path, index: ImageIndex, said: list[str], rank: int = 0, count: int = 1
) -> TeacherOutputs:
    """What one process wants of the small teacher."""
    workers = Ranks(rank=rank, world_size=count, device=CPU)
    company = Company(workers=workers, tell=said.append)
    return TeacherOutputs.of(folder, live_outputs(index), [SIZE], company)


def test_what_is_complete_is_verified_and_compared_but_not_computed(
    index: ImageIndex, tmp_path: Path
) -> None:
    opened(tmp_path / "cache", index)
    before = {path: path.stat().st_mtime_ns for path in chunk_files(tmp_path)}
    teacher = CellTeacher()
    opened(tmp_path / "cache", index, [teacher])

    assert len(before) == 3
    assert teacher.asked <= cache_outputs.COMPARED_VIEWS
    assert {path: path.stat().st_mtime_ns for path in chunk_files(tmp_path)} == before


def test_a_flipped_byte_is_named_and_its_chunk_alone_computed_again(
    index: ImageIndex, tmp_path: Path
) -> None:
    cache = opened(tmp_path / "cache", index)
    task = task_of([2, 3], [0, 1])
    (wanted,) = cache.lookup(task, CPU)
    victim = chunk_files(tmp_path)[1]
    content = bytearray(victim.read_bytes())
    whole = bytes(content)
    content[7] ^= 16
    victim.write_bytes(content)
    said: list[str] = []
    teacher = CellTeacher()
    cache = opened(tmp_path / "cache", index, [teacher], tell=said.append)

    assert f"{victim} was changed after it was written; it is computed again." in said
    assert victim.read_bytes() == whole
    assert teacher.asked <= 4 + cache_outputs.COMPARED_VIEWS
    assert torch.equal(cache.lookup(task, CPU)[0].patches, wanted.patches)


def test_what_another_process_verifies_is_known_to_all(index: ImageIndex, tmp_path: Path) -> None:
    opened(tmp_path / "cache", index)
    chunk_files(tmp_path)[1].unlink()
    said: list[str] = []
    first, second = (outputs(tmp_path / "cache", index, said, rank, 2) for rank in range(2))
    first.survey()
    second.survey()

    assert first.missing == {SIZE: []}  # each looks at its own share; a sum over both joins them
    assert second.missing == {SIZE: [1]}


def test_a_change_behind_the_name_of_a_teacher_is_refused(
    index: ImageIndex, tmp_path: Path
) -> None:
    opened(tmp_path / "cache", index)

    class Moody(CellTeacher):
        """Has the same weights and says something else."""

        def forward(self, images: torch.Tensor, grid: tuple[int, int]) -> object:  # type: ignore[override]
            """Everything upside down."""
            found = super().forward(images.flip(2), grid)
            return found._replace(image=-found.image)

    Moody.__qualname__, Moody.__module__ = CellTeacher.__qualname__, CellTeacher.__module__
    with pytest.raises(CacheError, match=r"is not what the teacher cells gives .* remove"):
        opened(tmp_path / "cache", index, [Moody()])


def test_a_change_behind_the_name_of_an_image_is_refused(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(tmp_path / "cache", index)
    monkeypatch.setattr(cache_outputs, "COMPARED_VIEWS", 100)
    picture, other = (tmp_path / "images" / f"000{number}.png" for number in (0, 3))
    picture.write_bytes(other.read_bytes())
    with pytest.raises(CacheError, match="is not what the teacher cells gives for these images"):
        opened(tmp_path / "cache", index)


def test_verifying_stops_when_asked(index: ImageIndex, tmp_path: Path) -> None:
    opened(tmp_path / "cache", index)
    with pytest.raises(StoppedError):
        opened(tmp_path / "cache", index, asked_to_stop=lambda: True)


def test_what_another_run_finished_meanwhile_is_not_computed_again(
    index: ImageIndex, tmp_path: Path
) -> None:
    slow = outputs(tmp_path / "cache", index, [])
    slow.survey()
    assert slow.missing == {SIZE: [0, 1, 2]}
    opened(tmp_path / "cache", index)
    slow.complete()

    assert slow.missing == {SIZE: []}
    assert slow.live.teacher.asked <= cache_outputs.COMPARED_VIEWS  # type: ignore[operator]


def test_a_summary_tells_what_is_kept_and_how_good_it_is(index: ImageIndex, tmp_path: Path) -> None:
    said: list[str] = []
    opened(tmp_path / "cache", index, tell=said.append)
    assert said == [ANY, ANY]
    assert said[1].startswith("Kept outputs of cells at 32 px: 12 views as float16, mean cosine")
    assert " (patches); 6 of 16 channels hold " in said[1]


def test_views_are_compared_from_all_over_what_is_there(index: ImageIndex, tmp_path: Path) -> None:
    found = outputs(tmp_path / "cache", index, [])
    opened(tmp_path / "cache", index)
    found.survey()
    kept = found.kept[SIZE]

    np.testing.assert_array_equal(spread_views(kept, []), [0, 1, 3, 4, 6, 7, 9, 10])
    np.testing.assert_array_equal(spread_views(kept, [0, 2]), [4, 5, 6, 7])
    assert not len(spread_views(kept, [0, 1, 2]))
