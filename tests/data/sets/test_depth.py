"""Depth datasets are read from small copies of their layouts."""

from pathlib import Path

import pytest

from tests.data.sets.layouts import complaint, read, write_depth, write_lines, write_picture
from veca.data.sets.dataset import DepthRange

NYU_LAYOUTS = [
    ("", "", "nyu_{}.txt"),
    ("sync", "official_splits/test", "nyudepthv2_{}_files_with_gt.txt"),
    ("sync", "test", "nyu_{}.txt"),
]


def write_frame(folder: Path, scene: str, number: int) -> None:
    """An image and its depth."""
    write_picture(folder / scene / f"rgb_{number:05}.jpg")
    write_depth(folder / scene / f"sync_depth_{number:05}.png", (0, 1500, 9999))


def write_nyu(folder: Path, train: str, test: str, lists: str) -> None:
    """A copy with three images; only the training list has slashes at the start."""
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
def test_nyu_is_read_by_its_lists(tmp_path: Path, train: str, test: str, lists: str) -> None:
    write_nyu(tmp_path, train, test, lists)
    found = read("nyu-v2", tmp_path)
    fitted, tested = found.splits()
    assert (found.name, found.kind, found.classes) == ("nyu-v2", "depth", ())
    assert [Path(key).parent.name for key in fitted.keys] == ["bathroom_0001", "kitchen_0028b"]
    assert tested.target(0)[0, :3].tolist() == pytest.approx([0, 1.5, 9.999], rel=1e-6)
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=10.0, crop="eigen-nyu", nyu_crop=True
    )


@pytest.mark.parametrize("given", ["official_splits", "."])
def test_the_labeled_images_of_nyu_are_a_dataset_of_their_own(tmp_path: Path, given: str) -> None:
    for part, scene, number in (
        ("train", "basement", 1),
        ("train", "cafe", 2),
        ("test", "basement", 0),
    ):
        write_frame(tmp_path / "official_splits" / part, scene, number)
    found = read("nyu-v2-labeled", tmp_path / given)
    train, test = found.splits()
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
def test_eigens_splits_leave_out_images_without_depth(
    tmp_path: Path, images: str, depth: tuple[str, str], lists: str
) -> None:
    write_kitti(tmp_path, images, depth, lists)
    found = read("kitti", tmp_path)
    train, test = found.splits()
    assert (found.name, found.kind) == ("kitti", "depth")
    assert [key.split("_drive_")[1][:4] for key in train.keys] == ["0057", "0061"]
    assert test.target(0)[0, :3].tolist() == [0, 1, 80]
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=80.0, crop="garg-kitti", kb_crop=True
    )
    assert found.facts["test_pictures_without_depth"] == 1


def test_missing_drives_are_named(tmp_path: Path) -> None:
    write_kitti(tmp_path, "input", ("gt_depth", "elsewhere"), "kitti_eigen_{}.txt")
    message = complaint("kitti", tmp_path)
    assert "gt_depth/2011_09_26_drive_0002_sync/proj_depth" in message


def test_missing_and_damaged_lists_are_named(tmp_path: Path) -> None:
    words = "none of the lists nyu_train.txt, nyudepthv2_train_files_with_gt.txt is in"
    assert words in complaint("nyu-v2", tmp_path)
    write_lines(tmp_path / "nyu_train.txt", ["x/rgb.jpg"])
    assert "has the line 'x/rgb.jpg'" in complaint("nyu-v2", tmp_path)
