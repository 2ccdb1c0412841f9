"""Readers of depth datasets: NYU Depth v2 and KITTI.

Their lists have lines `image depth focal-length`; the depth is `None` if there is no map. Names may
begin with a slash that means the folder of the dataset.
"""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from veca.data.sets.dataset import (
    DatasetChecks,
    DepthRange,
    LabeledDataset,
    Pair,
    Split,
    files_below,
    paired_split,
    rows,
)
from veca.data.sets.segmentation import read_depth

NO_DEPTH = "None"


class DepthList(NamedTuple):
    """The content of a list."""

    name: str
    """File name."""

    pairs: list[tuple[str, str]]
    """Images and depth maps, as they are written, without a slash before them."""

    without_depth: int
    """Images that have no depth map and are left out."""


def read_depth_list(folder: Path, names: Sequence[str], checks: DatasetChecks) -> DepthList:
    """Read a list that exists under several names."""
    path = next((folder / name for name in names if (folder / name).exists()), folder / names[0])
    if not path.exists():
        checks.report(f"none of the lists {', '.join(names)} is in {folder}")
    checks.require(path)
    pairs, without = [], 0
    for image, rest in rows(path, 2):
        depth = rest.split(None, 1)[0]
        if depth == NO_DEPTH:
            without += 1
        else:
            pairs.append((image.lstrip("/"), depth.lstrip("/")))
    return DepthList(path.name, pairs, without)


def first_place(folder: Path, places: Sequence[str], name: str) -> str:
    """Find a file or folder in one of several places; the first place if none has it."""
    ways = [f"{place}/{name}".lstrip("/") for place in places]
    return next((way for way in ways if (folder / way).exists()), ways[0])


TRAIN, TEST, LABELED_TRAIN = 24_231, 654, 795

MILLIMETERS = partial(read_depth, per_metre=1000)
"""Reads depth in fixed steps."""

FACTS = DepthRange(max_depth=10.0, crop="eigen-nyu", nyu_crop=True)

TRAIN_LISTS = ("nyu_train.txt", "nyudepthv2_train_files_with_gt.txt")
TEST_LISTS = ("nyu_test.txt", "nyudepthv2_test_files_with_gt.txt")
TRAIN_PLACES = ("", "sync")
TEST_PLACES = ("", "official_splits/test", "test")
"""Folders that the names in the lists may be relative to."""

PICTURE, DEPTH = "rgb_", "sync_depth_"
"""Prefixes of the file names of a scene."""


def nyu_v2(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """NYU Depth v2: 24,231 training images of the raw sequences, 654 labeled test images.

    By the lists `nyu_train.txt` and `nyu_test.txt`, the usual convention of depth probes. Images
    are 480 x 640 pixels with an empty frame; depth is in millimeters.
    """
    train = _listed("train", folder, TRAIN_LISTS, TRAIN_PLACES, checks)
    test = _listed("test", folder, TEST_LISTS, TEST_PLACES, checks)
    checks.expect("train images", len(train), TRAIN)
    checks.expect("test images", len(test), TEST)
    facts = {"train_list": "24,231 images of the raw sequences (nyu_train.txt)"}
    return LabeledDataset(
        name="nyu-v2", kind="depth", train=train, test=test, depth=FACTS, facts=facts
    )


def nyu_v2_labeled(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """NYU Depth v2 with 795 labeled training images: `{train,test}/<scene>/` as BTS writes them.

    With a thirtieth of the images, scores are not comparable to `nyu-v2`. BTS's tool
    (`extract_official_train_test_set_from_mat.py`) gives raw depth with holes and images with a
    black frame.
    """
    home = checks.find(folder, ("train", "test"), ("official_splits",))
    train, test = (
        paired_split(part, home, _scene_pairs(home, part), MILLIMETERS, checks)
        for part in ("train", "test")
    )
    checks.expect("train images", len(train), LABELED_TRAIN)
    checks.expect("test images", len(test), TEST)
    facts = {"train_list": "795 labeled images (splits.mat)"}
    return LabeledDataset(
        name="nyu-v2-labeled", kind="depth", train=train, test=test, depth=FACTS, facts=facts
    )


def _listed(
    name: str, folder: Path, lists: Sequence[str], places: Sequence[str], checks: DatasetChecks
) -> Split:
    """A split by its list."""
    found = read_depth_list(folder, lists, checks)
    pairs = [Pair(*(first_place(folder, places, file) for file in files)) for files in found.pairs]
    return paired_split(name, folder, pairs, MILLIMETERS, checks)


def _scene_pairs(home: Path, part: str) -> list[Pair]:
    """Images and depth maps of one scene and number."""
    pairs = []
    for image in files_below(home, part, ".jpg"):
        scene, _, file = image.rpartition("/")
        number = file.removeprefix(PICTURE).removesuffix(".jpg")
        pairs.append(Pair(image, f"{scene}/{DEPTH}{number}.png"))
    return pairs


KITTI_TRAIN, KITTI_TEST, TEST_WITHOUT_DEPTH = 23_158, 652, 45

STEPS = partial(read_depth, per_metre=256)
"""Reads depth in fixed steps."""

KITTI_FACTS = DepthRange(max_depth=80.0, crop="garg-kitti", kb_crop=True)

KITTI_TRAIN_LISTS = ("kitti_eigen_train.txt", "kitti_eigen_train_files_with_gt.txt")
KITTI_TEST_LISTS = ("kitti_eigen_test.txt", "kitti_eigen_test_files_with_gt.txt")
PICTURE_PLACES = ("input", "raw", "")
DEPTH_PLACES = (
    "gt_depth",
    "data_depth_annotated",
    "data_depth_annotated/train",
    "data_depth_annotated/val",
    "train",
    "val",
)
"""Folders that hold dates and drives; the benchmark's archive has two, and Eigen's splits use
both."""


def kitti(folder: Path, checks: DatasetChecks) -> LabeledDataset:
    """KITTI depth by Eigen's split with Garg's crop: 23,158 training, 652 test images.

    Lists `kitti_eigen_train.txt` and `kitti_eigen_test.txt`; images in
    `input/<date>/<drive>_sync/image_02/data/`, depth in
    `gt_depth/<drive>_sync/proj_depth/groundtruth/image_02/`, or both as their archives unpack.
    Depth is that of the depth benchmark in 1/256 meter, 0 where no laser point fell. Of the 697
    test images 45 have none; scores over all 697 with raw laser points are another convention.
    """
    listed = read_depth_list(folder, KITTI_TRAIN_LISTS, checks)
    train = _split("train", folder, listed, checks)
    checks.expect("train images", len(train), KITTI_TRAIN)
    listed = read_depth_list(folder, KITTI_TEST_LISTS, checks)
    test = _split("test", folder, listed, checks)
    checks.expect("test images with depth", len(test), KITTI_TEST)
    checks.expect("test images without depth", listed.without_depth, TEST_WITHOUT_DEPTH)
    facts = {"split": "Eigen", "test_pictures_without_depth": listed.without_depth}
    return LabeledDataset(
        name="kitti", kind="depth", train=train, test=test, depth=KITTI_FACTS, facts=facts
    )


def _split(name: str, folder: Path, listed: DepthList, checks: DatasetChecks) -> Split:
    """A split by its list; each drive is searched once."""

    @cache
    def place(places: Sequence[str], top: str) -> str:
        return first_place(folder, places, top)

    def way(places: Sequence[str], file: str) -> str:
        top, _, rest = file.partition("/")
        return f"{place(places, top)}/{rest}"

    pairs = [
        Pair(way(PICTURE_PLACES, image), way(DEPTH_PLACES, depth)) for image, depth in listed.pairs
    ]
    return paired_split(name, folder, pairs, STEPS, checks)
