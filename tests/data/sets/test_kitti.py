"""KITTI depth is read from small copies, as depth toolboxes and as the archives lay it out."""

from pathlib import Path

import pytest

from tests.data.sets.dense_layouts import parts, write_depth, write_lines, write_picture
from veca.data.sets.dataset import DatasetChecks, DatasetError, DepthRange
from veca.data.sets.depth import kitti

COUNTS = {
    "train pictures": 2,
    "test pictures with depth": 1,
    "test pictures without depth": 1,
}

DRIVES = {"train": ("0057", "0061"), "test": ("0002",)}

LAYOUTS = [
    ("input", ("gt_depth", "gt_depth"), "kitti_eigen_{}.txt"),
    ("raw", ("data_depth_annotated",) * 2, "kitti_eigen_{}_files_with_gt.txt"),
    ("", ("data_depth_annotated/train", "data_depth_annotated/val"), "kitti_eigen_{}.txt"),
    ("", ("train", "val"), "kitti_eigen_{}.txt"),
]


def write_kitti(folder: Path, pictures: str, depth: tuple[str, str], lists: str) -> None:
    """A copy with four pictures, one without depth; its last drive lies apart in some layouts."""
    for part, drives in DRIVES.items():
        rows = []
        for drive in drives:
            sync = f"2011_09_26_drive_{drive}_sync"
            picture = f"2011_09_26/{sync}/image_02/data/0000000069.png"
            target = f"{sync}/proj_depth/groundtruth/image_02/0000000069.png"
            write_picture(folder / pictures / picture)
            write_depth(folder / depth[part == "test"] / target, (0, 256, 20_480))
            rows.append(f"{picture} {target} 721.5377")
        if part == "test":
            rows.append("2011_09_26/2011_09_26_drive_0002_sync/image_02/data/3.png None 721.5377")
        write_lines(folder / lists.format(part), rows)


@pytest.mark.parametrize(("pictures", "depth", "lists"), LAYOUTS)
def test_eigens_parts_are_found_and_pictures_without_depth_left_out(
    tmp_path: Path, pictures: str, depth: tuple[str, str], lists: str
) -> None:
    write_kitti(tmp_path, pictures, depth, lists)
    checker = DatasetChecks("kitti", instead=COUNTS)
    found = checker.finish(kitti(tmp_path, checker))
    train, test = parts(found)
    assert (found.name, found.kind) == ("kitti", "depth")
    assert [key.split("_drive_")[1][:4] for key in train.keys] == ["0057", "0061"]
    assert test.target(0)[0, :3].tolist() == [0, 1, 80]
    assert found.depth == DepthRange(
        min_depth=1e-3, max_depth=80.0, crop="garg-kitti", kb_crop=True
    )
    assert found.facts["test_pictures_without_depth"] == 1


def test_the_published_numbers_are_asked_for(tmp_path: Path) -> None:
    write_kitti(tmp_path, *LAYOUTS[0])
    checker = DatasetChecks("kitti")
    with pytest.raises(DatasetError, match=r"(?s)23,158 are .* 652 are .* 1 were found, 45 are"):
        checker.finish(kitti(tmp_path, checker))


def test_drives_that_are_not_there_are_named(tmp_path: Path) -> None:
    write_kitti(tmp_path, "input", ("gt_depth", "elsewhere"), "kitti_eigen_{}.txt")
    checker = DatasetChecks("kitti", instead=COUNTS)
    with pytest.raises(DatasetError, match="gt_depth/2011_09_26_drive_0002_sync/proj_depth"):
        checker.finish(kitti(tmp_path, checker))
