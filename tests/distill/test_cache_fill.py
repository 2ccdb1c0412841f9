"""Computing outputs: every view once, whoever computes it and however it is stopped."""

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.distill.kept_outputs import CPU, PATCH_SIZE, SIZE, CellTeacher, live_outputs, pictures
from veca.data.image_index import ImageIndex
from veca.distill import cache_fill
from veca.distill.cache_fill import LiveOutputs, Sample, as_kept, draw_sample, fill, fit_records
from veca.distill.cache_records import RecordLayout, Records
from veca.distill.cache_store import CacheError, Chunks, Kept, Measured
from veca.distill.config import CacheConfig
from veca.distill.margin import Margin
from veca.distill.projection import Projection
from veca.distill.validation import StoppedError
from veca.runtime.distributed import Ranks
from veca.teacher.teacher import Targets

LAYOUT = RecordLayout(image_width=5, patches=16, channels=16, dtype="float16")


@pytest.fixture(scope="module", name="index")
def fixture_index(tmp_path_factory: pytest.TempPathFactory) -> ImageIndex:
    """Six pictures."""
    return pictures(tmp_path_factory.mktemp("images"))


def empty(folder: Path, live: LiveOutputs) -> Kept:
    """A place for outputs, two images to a chunk."""
    folder.mkdir()
    chunks = Chunks(views=live.count, views_of_one=4, record_bytes=LAYOUT.kind.itemsize)
    return Kept(
        folder=folder,
        records=Records(layout=LAYOUT, scales=None),
        chunks=chunks,
        measured=Measured(1.0, 1.0),
        digest="0",
    )


def filled(kept: Kept, live: LiveOutputs, missing: Iterable[int], workers: Ranks) -> None:
    """Fill chunks without a projection."""
    fill(kept, list(missing), live, resolution=SIZE, projection=None, workers=workers)


def lives(live: LiveOutputs, views: Iterable[int]) -> Targets:
    """Outputs of views, each computed alone."""
    found = [
        targets
        for view in views
        for targets in live.targets([np.array([view])], SIZE)
    ]  # fmt: skip
    return Targets(
        torch.cat([targets.image for targets in found]),
        torch.cat([targets.patches for targets in found]),
    )


def test_every_chunk_holds_the_outputs_of_its_views(index: ImageIndex, tmp_path: Path) -> None:
    live = live_outputs(index)
    kept = empty(tmp_path / "kept", live)
    filled(kept, live, range(3), Ranks(device=CPU))

    assert live.teacher.asked == live.count == 12
    assert [kept.problem(chunk) for chunk in range(3)] == [None] * 3
    found, wanted = kept.read(np.arange(12), CPU), lives(live, range(12))
    torch.testing.assert_close(found.image, wanted.image, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.patches, wanted.patches, rtol=1e-3, atol=1e-4)


def test_lots_are_smaller_where_the_teacher_sees_a_margin(index: ImageIndex) -> None:
    plain = live_outputs(index, teacher_batch=8)
    wide = live_outputs(index, teacher_batch=8, margin=Margin(patches=16, pixels=128))
    assert [len(lot) for lot in plain.lots(range(12), 256)] == [8, 4]
    assert [len(lot) for lot in wide.lots(range(12), 256)] == [2] * 6


def test_processes_share_the_chunks_and_write_what_one_would(
    index: ImageIndex, tmp_path: Path
) -> None:
    live = live_outputs(index)
    alone, together = (empty(tmp_path / name, live) for name in ("alone", "together"))
    filled(alone, live, range(3), Ranks(device=CPU))
    asked = []
    for rank in range(2):
        live = live_outputs(index, teacher=CellTeacher())
        filled(together, live, range(3), Ranks(rank=rank, world_size=2, device=CPU))
        asked.append(live.teacher.asked)

    assert asked == [8, 4]
    for chunk in range(3):
        assert together.path(chunk).read_bytes() == alone.path(chunk).read_bytes()


def test_only_what_is_missing_is_computed(index: ImageIndex, tmp_path: Path) -> None:
    live = live_outputs(index)
    kept = empty(tmp_path / "kept", live)
    filled(kept, live, [1], Ranks(device=CPU))
    assert live.teacher.asked == 4
    assert [kept.problem(chunk) is None for chunk in range(3)] == [False, True, False]


def test_a_stop_loses_the_chunk_that_is_being_made_and_no_other(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = CellTeacher()
    live = live_outputs(index, teacher=teacher, asked_to_stop=lambda: teacher.asked >= 6)
    kept = empty(tmp_path / "kept", live)
    monkeypatch.setitem(cache_fill.LARGEST_LOT, "cpu", 2)
    with pytest.raises(StoppedError):
        filled(kept, live, range(3), Ranks(device=CPU))

    assert teacher.asked == 6
    assert [path.name for path in kept.folder.iterdir()] == ["chunk-00000.bin"]
    assert kept.problem(0) is None


def test_a_full_disk_is_told_and_leaves_whole_chunks(
    index: ImageIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = live_outputs(index)
    kept = empty(tmp_path / "kept", live)
    write, written = os.write, 0

    def full(descriptor: int, data: bytes) -> int:
        nonlocal written
        written += len(data)
        if written > 5 * LAYOUT.kind.itemsize:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(CacheError, match=r"chunk-00001.bin cannot be written \(No space left"):
        filled(kept, live, range(3), Ranks(device=CPU))
    assert [path.name for path in kept.folder.iterdir()] == ["chunk-00000.bin"]


def test_a_teacher_that_gives_no_numbers_is_refused_with_the_image(
    index: ImageIndex, tmp_path: Path
) -> None:
    teacher = CellTeacher()
    teacher.get_buffer("weight").fill_(torch.inf)
    live = live_outputs(index, teacher=teacher)
    with pytest.raises(CacheError, match=r"the teacher cells gives numbers .*0000.png; remove"):
        filled(empty(tmp_path / "kept", live), live, range(3), Ranks(device=CPU))


def test_higher_resolutions_go_through_the_teacher_in_smaller_lots(index: ImageIndex) -> None:
    live = live_outputs(index, teacher_batch=2)
    numbers = np.arange(300)
    assert {len(lot) for lot in live.lots(numbers, 256)} == {2}
    assert {len(lot) for lot in live.lots(numbers, 1024)} == {1}
    assert {len(lot) for lot in live.lots(numbers[:160], 16)} == {16}
    elsewhere = live_outputs(index, device=torch.device("cuda"))
    assert [len(lot) for lot in elsewhere.lots(numbers, 16)] == [128, 128, 44]
    np.testing.assert_array_equal(np.concatenate(live.lots(numbers, 256)), numbers)


def test_a_sample_is_spread_over_all_views_with_some_patches_of_each(
    index: ImageIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_fill, "SAMPLE_VIEWS", 4)
    monkeypatch.setattr(cache_fill, "SAMPLE_PATCHES", 3)
    live = live_outputs(index)
    sample, again = draw_sample(live, SIZE), draw_sample(live, SIZE)

    assert sample.patches.shape == (4, 3, 16)
    assert torch.equal(sample.patches, again.patches)
    torch.testing.assert_close(sample.image, lives(live, (0, 3, 6, 9)).image)


def test_a_small_training_is_sampled_whole(index: ImageIndex) -> None:
    live = live_outputs(index)
    assert draw_sample(live, SIZE).patches.shape == (12, (SIZE // PATCH_SIZE) ** 2, 16)


@pytest.mark.parametrize(("dtype", "least"), [("float16", 0.99999), ("int8", 0.999)])
def test_what_is_measured_is_the_cosine_of_kept_and_live_components(
    index: ImageIndex, dtype: str, least: float
) -> None:
    sample = draw_sample(live_outputs(index, config=CacheConfig(crops=4)), SIZE)
    projection = Projection.fit([sample.patches], 6)
    layout = RecordLayout(image_width=5, patches=16, channels=6, dtype=dtype)  # type: ignore[arg-type]
    records, measured = fit_records(sample, projection, layout)

    live = as_kept(Targets(*sample), projection)
    kept = records.unpack(records.pack(live), CPU)
    cosines = torch.nn.functional.cosine_similarity(kept.patches, live.patches, dim=-1)
    assert measured.patches == pytest.approx(float(cosines.mean()))
    assert least < measured.patches <= 1
    assert measured.image > 0.99999


def test_fitting_looks_at_fewer_patches_than_a_record_holds() -> None:
    sample = Sample(torch.randn(3, 5), torch.randn(3, 2, 16))
    records, _ = fit_records(sample, None, LAYOUT)
    assert records == Records(layout=LAYOUT, scales=None)
