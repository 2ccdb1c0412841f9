"""NYU Depth v2 is read from small copies, by the lists and by the labeled pictures."""

from pathlib import Path

import pytest

from tests.data.sets.dense_layouts import parts, write_depth, write_lines, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError, DepthRange
from veca.data.sets.depth import nyu_v2, nyu_v2_labeled

COUNTS = {"train pictures": 2, "test pictures": 1}

LAYOUTS = [
    ("", "", "nyu_{}.txt"),
    ("sync", "official_splits/test", "nyudepthv2_{}_files_with_gt.txt"),
    ("sync", "test", "nyu_{}.txt"),
]


def write_frame(folder: Path, scene: str, number: int) -> None:
    """A picture and its depth."""
    write_picture(folder / scene / f"rgb_{number:05}.jpg")
    write_depth(folder / scene / f"sync_depth_{number:05}.png", (0, 1500, 9999))


def write_nyu(folder: Path, train: str, test: str, lists: str) -> None:
    """A copy with three pictures; the lists of the parts differ in the slash at the start."""
    write_frame(folder / train, "kitchen_0028b", 45)
    write_frame(folder / train, "bathroom_0001", 2)
    write_frame(folder / test, "bathroom", 45)
    names = [("kitchen_0028b", 45), ("bathroom_0001", 2)]
    write_lines(
        folder / lists.format("train"),
        [f"/{scene}/rgb_{n:05}.jpg /{scene}/sync_depth_{n:05}.png 518.8579" for scene, n in names],
    )
    write_lines(
        folder / lists.format("test"),
        ["bathroom/rgb_00045.jpg bathroom/sync_depth_00045.png 518.8579"],
    )


@pytest.mark.parametrize(("train", "test", "lists"), LAYOUTS)
def test_pairs_are_found_by_the_lists(tmp_path: Path, train: str, test: str, lists: str) -> None:
    write_nyu(tmp_path, train, test, lists)
    checker = DatasetChecks("nyu-v2", instead=COUNTS)
    found = checker.finish(nyu_v2(tmp_path, checker))
    fitted, tested = parts(found)
    assert (found.name, found.kind, found.classes) == ("nyu-v2", "depth", ())
    assert [Path(key).parent.name for key in fitted.keys] == ["bathroom_0001", "kitchen_0028b"]
    assert tested.target(0)[0, :3].tolist() == pytest.approx([0, 1.5, 9.999], rel=1e-6)
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=10.0, crop="eigen-nyu", nyu_crop=True
    )


def test_the_published_numbers_are_asked_for(tmp_path: Path) -> None:
    write_nyu(tmp_path, *LAYOUTS[0])
    checker = DatasetChecks("nyu-v2")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 24,231 .* 1 were found, 654"):
        checker.finish(nyu_v2(tmp_path, checker))


def test_a_test_picture_in_the_train_list_is_refused(tmp_path: Path) -> None:
    write_nyu(tmp_path, *LAYOUTS[0])
    content = (tmp_path / "nyu_train.txt").read_text() + (tmp_path / "nyu_test.txt").read_text()
    (tmp_path / "nyu_train.txt").write_text(content)
    with pytest.raises(DatasetError, match="are in 'train' and in 'test' too"):
        nyu_v2(tmp_path, DatasetChecks("nyu-v2", allow_partial=True))


@pytest.mark.parametrize("given", ["official_splits", "."])
def test_the_labeled_convention_has_a_name_and_numbers_of_its_own(
    tmp_path: Path, given: str
) -> None:
    for part, scene, number in (
        ("train", "basement", 1),
        ("train", "cafe", 2),
        ("test", "basement", 0),
    ):
        write_frame(tmp_path / "official_splits" / part, scene, number)
    checker = DatasetChecks("nyu-v2-labeled", instead=COUNTS)
    found = checker.finish(nyu_v2_labeled(tmp_path / given, checker))
    train, test = parts(found)
    assert (found.name, len(test)) == ("nyu-v2-labeled", 1)
    assert train.keys == ("train/basement/rgb_00001.jpg", "train/cafe/rgb_00002.jpg")
    assert train.target(1)[0, 1] == 1.5
    checker = DatasetChecks("nyu-v2-labeled")
    with pytest.raises(DatasetError, match=r"(?s)2 were found, 795 .* 1 were found, 654"):
        checker.finish(nyu_v2_labeled(tmp_path / given, checker))
