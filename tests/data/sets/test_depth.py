"""Depth datasets are read from small copies of their layouts."""

from pathlib import Path

import pytest

from tests.data.sets.layouts import parts, write_depth, write_lines, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError, DepthRange
from veca.data.sets.depth import first_place, kitti, nyu_v2, nyu_v2_labeled, read_depth_list
from veca.data.sets.registry import read_set

NYU_LAYOUTS = [
    ("", "", "nyu_{}.txt"),
    ("sync", "official_splits/test", "nyudepthv2_{}_files_with_gt.txt"),
    ("sync", "test", "nyu_{}.txt"),
]


def write_frame(folder: Path, scene: str, number: int) -> None:
    """A image and its depth."""
    write_picture(folder / scene / f"rgb_{number:05}.jpg")
    write_depth(folder / scene / f"sync_depth_{number:05}.png", (0, 1500, 9999))


def write_nyu(folder: Path, train: str, test: str, lists: str) -> None:
    """A copy with three images; the lists of the parts differ in the slash at the start."""
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


@pytest.mark.parametrize(("train", "test", "lists"), NYU_LAYOUTS)
def test_pairs_are_found_by_the_lists(tmp_path: Path, train: str, test: str, lists: str) -> None:
    write_nyu(tmp_path, train, test, lists)
    checks = DatasetChecks("nyu-v2", allow_partial=True)
    found = checks.finish(nyu_v2(tmp_path, checks))
    fitted, tested = parts(found)
    assert (found.name, found.kind, found.classes) == ("nyu-v2", "depth", ())
    assert [Path(key).parent.name for key in fitted.keys] == ["bathroom_0001", "kitchen_0028b"]
    assert tested.target(0)[0, :3].tolist() == pytest.approx([0, 1.5, 9.999], rel=1e-6)
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=10.0, crop="eigen-nyu", nyu_crop=True
    )


def test_a_test_picture_in_the_train_list_is_refused(tmp_path: Path) -> None:
    write_nyu(tmp_path, *NYU_LAYOUTS[0])
    content = (tmp_path / "nyu_train.txt").read_text() + (tmp_path / "nyu_test.txt").read_text()
    (tmp_path / "nyu_train.txt").write_text(content)
    with pytest.raises(DatasetError, match="are in 'train' and in 'test' too"):
        read_set(f"nyu-v2={tmp_path}", allow_partial=True)


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
    checks = DatasetChecks("nyu-v2-labeled", allow_partial=True)
    found = checks.finish(nyu_v2_labeled(tmp_path / given, checks))
    train, test = parts(found)
    assert (found.name, len(test)) == ("nyu-v2-labeled", 1)
    assert train.keys == ("train/basement/rgb_00001.jpg", "train/cafe/rgb_00002.jpg")
    assert train.target(1)[0, 1] == 1.5


DRIVES = {"train": ("0057", "0061"), "test": ("0002",)}

KITTI_LAYOUTS = [
    ("input", ("gt_depth", "gt_depth"), "kitti_eigen_{}.txt"),
    ("raw", ("data_depth_annotated",) * 2, "kitti_eigen_{}_files_with_gt.txt"),
    ("", ("data_depth_annotated/train", "data_depth_annotated/val"), "kitti_eigen_{}.txt"),
    ("", ("train", "val"), "kitti_eigen_{}.txt"),
]


def write_kitti(folder: Path, images: str, depth: tuple[str, str], lists: str) -> None:
    """A copy with four images, one without depth; its last drive lies apart in some layouts."""
    for part, drives in DRIVES.items():
        rows = []
        for drive in drives:
            sync = f"2011_09_26_drive_{drive}_sync"
            image = f"2011_09_26/{sync}/image_02/data/0000000069.png"
            target = f"{sync}/proj_depth/groundtruth/image_02/0000000069.png"
            write_picture(folder / images / image)
            write_depth(folder / depth[part == "test"] / target, (0, 256, 20_480))
            rows.append(f"{image} {target} 721.5377")
        if part == "test":
            rows.append("2011_09_26/2011_09_26_drive_0002_sync/image_02/data/3.png None 721.5377")
        write_lines(folder / lists.format(part), rows)


@pytest.mark.parametrize(("images", "depth", "lists"), KITTI_LAYOUTS)
def test_eigens_parts_are_found_and_pictures_without_depth_left_out(
    tmp_path: Path, images: str, depth: tuple[str, str], lists: str
) -> None:
    write_kitti(tmp_path, images, depth, lists)
    checks = DatasetChecks("kitti", allow_partial=True)
    found = checks.finish(kitti(tmp_path, checks))
    train, test = parts(found)
    assert (found.name, found.kind) == ("kitti", "depth")
    assert [key.split("_drive_")[1][:4] for key in train.keys] == ["0057", "0061"]
    assert test.target(0)[0, :3].tolist() == [0, 1, 80]
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=80.0, crop="garg-kitti", kb_crop=True
    )
    assert found.facts["test_pictures_without_depth"] == 1


def test_drives_that_are_not_there_are_named(tmp_path: Path) -> None:
    write_kitti(tmp_path, "input", ("gt_depth", "elsewhere"), "kitti_eigen_{}.txt")
    checks = DatasetChecks("kitti")
    with pytest.raises(DatasetError, match="gt_depth/2011_09_26_drive_0002_sync/proj_depth"):
        checks.finish(kitti(tmp_path, checks))


def test_lines_give_pictures_and_depth_and_count_those_without(tmp_path: Path) -> None:
    write_lines(
        tmp_path / "b.txt",
        ["/x/rgb.jpg /x/depth.png 518.8579", "", "y/1.png None 721.5377", "z/2.png z/d.png 721.5"],
    )
    found = read_depth_list(tmp_path, ("a.txt", "b.txt"), DatasetChecks("some"))
    assert found.name == "b.txt"
    assert found.pairs == [("x/rgb.jpg", "x/depth.png"), ("z/2.png", "z/d.png")]
    assert found.without_depth == 1


def test_a_list_that_is_not_there_is_named_in_all_ways(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"none of the lists a\.txt, b\.txt is in"):
        read_depth_list(tmp_path, ("a.txt", "b.txt"), DatasetChecks("some"))


def test_a_line_of_one_column_is_an_error(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.txt", ["x/rgb.jpg"])
    with pytest.raises(DatasetError, match=r"x/rgb\.jpg"):
        read_depth_list(tmp_path, ("a.txt",), DatasetChecks("some"))


def test_a_name_is_found_in_the_first_place_that_has_it(tmp_path: Path) -> None:
    write_picture(tmp_path / "two/x.png")
    write_picture(tmp_path / "three/x.png")
    assert first_place(tmp_path, ("", "two", "three"), "x.png") == "two/x.png"
    assert first_place(tmp_path, ("", "two"), "y.png") == "y.png"
