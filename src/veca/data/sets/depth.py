"""Readers of depth datasets: NYU Depth v2 and KITTI.

Their lists have lines `image depth focal-length`; the depth is `None` if there is no map. Names may
begin with a slash that means the folder of the dataset.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from veca.data.sets.dataset import (
    DatasetChecks,
    DepthRange,
    LabeledDataset,
    files_below,
    paired_dataset,
    rows,
)
from veca.data.sets.segmentation import read_depth

NYU_RANGE = DepthRange(max_depth=10.0, crop="eigen-nyu", nyu_crop=True)

NYU_LISTS = {
    "train": ("nyu_train.txt", "nyudepthv2_train_files_with_gt.txt"),
    "test": ("nyu_test.txt", "nyudepthv2_test_files_with_gt.txt"),
}
NYU_PLACES = {"train": ("", "sync"), "test": ("", "official_splits/test", "test")}
"""Folders that the names in the lists may be relative to."""

KITTI_LISTS = {
    "train": ("kitti_eigen_train.txt", "kitti_eigen_train_files_with_gt.txt"),
    "test": ("kitti_eigen_test.txt", "kitti_eigen_test_files_with_gt.txt"),
}
KITTI_IMAGES = ("input", "raw", "")
KITTI_DEPTH = ("gt_depth", "data_depth_annotated", "data_depth_annotated/train",
               "data_depth_annotated/val", "train", "val")  # fmt: skip
"""Folders that hold dates and drives; the benchmark's archive has two, and Eigen's splits use
both."""


def nyu_v2(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """NYU Depth v2: 24,231 training images of the raw sequences, 654 labeled test images.

    By the lists `nyu_train.txt` and `nyu_test.txt`, the usual convention of depth probes. Images
    are 480 x 640 pixels with an empty frame; depth is in millimeters.
    """
    pairs: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for part, found in pairs.items():
        for image, depth in _read_list(folder, NYU_LISTS[part], checks)[0]:
            places = NYU_PLACES[part]
            found.append((_locate(folder, places, image), _locate(folder, places, depth)))
    train_list = "24,231 images of the raw sequences (nyu_train.txt)"
    return _nyu(folder, pairs, checks, 24_231, train_list)


def nyu_v2_labeled(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """NYU Depth v2 with 795 labeled training images: `{train,test}/<scene>/` as BTS writes them.

    With a thirtieth of the images, scores are not comparable to `nyu-v2`. BTS's tool
    (`extract_official_train_test_set_from_mat.py`) gives raw depth with holes and images with a
    black frame.
    """
    home = checks.find(folder, ("train", "test"), ("official_splits",))
    pairs: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for part, found in pairs.items():
        for image in files_below(home, part, ".jpg"):
            scene, _, name = image.rpartition("/")
            number = name.removeprefix("rgb_").removesuffix(".jpg")
            found.append((image, f"{scene}/sync_depth_{number}.png"))
    return _nyu(home, pairs, checks, 795, "795 labeled images (splits.mat)")


def _nyu(
    folder: Path,
    pairs: Mapping[str, list[tuple[str, str]]],
    checks: DatasetChecks,
    train: int,
    train_list: str,
) -> LabeledDataset:
    """Either version of NYU Depth v2."""
    counts, facts = {"train": train, "test": 654}, {"train_list": train_list}
    read = partial(read_depth, per_meter=1000)
    return paired_dataset(
        "depth", folder, read, pairs, checks, counts=counts, depth=NYU_RANGE, facts=facts
    )


def kitti(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """KITTI depth by Eigen's split with Garg's crop: 23,158 training, 652 test images.

    Lists `kitti_eigen_train.txt` and `kitti_eigen_test.txt`; images in
    `input/<date>/<drive>_sync/image_02/data/`, depth in
    `gt_depth/<drive>_sync/proj_depth/groundtruth/image_02/`, or both as their archives unpack.
    Depth is that of the depth benchmark in 1/256 meter, 0 where no laser point fell. Of the 697
    test images 45 have none; scores over all 697 with raw laser points are another convention.
    """

    @cache
    def locate_drive(places: Sequence[str], drive: str) -> str:
        return _locate(folder, places, drive)

    def locate(places: Sequence[str], file: str) -> str:
        drive, _, rest = file.partition("/")
        return f"{locate_drive(places, drive)}/{rest}"

    pairs, without = {}, {}
    for part, names in KITTI_LISTS.items():
        listed, without[part] = _read_list(folder, names, checks)
        pairs[part] = [
            (locate(KITTI_IMAGES, image), locate(KITTI_DEPTH, depth)) for image, depth in listed
        ]
    checks.expect("test images without depth", without["test"], 45)
    counts, read = {"train": 23_158, "test": 652}, partial(read_depth, per_meter=256)
    depth = DepthRange(max_depth=80.0, crop="garg-kitti", kb_crop=True)
    facts = {"split": "Eigen", "test_pictures_without_depth": without["test"]}
    return paired_dataset(
        "depth", folder, read, pairs, checks, counts=counts, depth=depth, facts=facts
    )


def _read_list(
    folder: Path, names: Sequence[str], checks: DatasetChecks
) -> tuple[list[tuple[str, str]], int]:
    """Images and depth maps of a list that has several names, and how many images have no map."""
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    if not path.exists():
        checks.report(f"none of the lists {', '.join(names)} is in {folder}")
    checks.require(path)
    listed = [(image, rest.split(None, 1)[0]) for image, rest in rows(path, 2)]
    pairs = [(image.lstrip("/"), depth.lstrip("/")) for image, depth in listed if depth != "None"]
    return pairs, len(listed) - len(pairs)


def _locate(folder: Path, places: Sequence[str], name: str) -> str:
    """Find a file or folder in one of several places; the first place if none has it."""
    paths = [f"{place}/{name}".lstrip("/") for place in places]
    return next((path for path in paths if (folder / path).exists()), paths[0])
