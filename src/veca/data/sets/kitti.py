"""KITTI depth by Eigen's split, with the improved depth maps of the depth benchmark.

Lists `kitti_eigen_train.txt` and `kitti_eigen_test.txt`; pictures in
`input/<date>/<drive>_sync/image_02/data/`, depth in
`gt_depth/<drive>_sync/proj_depth/groundtruth/image_02/`, or both as their archives unpack. Depth is
in 1/256 metre, 0 where no laser point fell. Of the 697 test pictures 45 have no improved depth map:
652 are measured on. Numbers over all 697 with raw laser points are another convention.
"""

from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path

from veca.data.labelled import DepthFacts, LabelledSet, Split
from veca.data.sets.counts import Checker
from veca.data.sets.depth_lists import DepthList, first_place, read_depth_list
from veca.data.sets.pairs import Pair, paired_split, require_apart
from veca.data.sets.targets import read_depth

TRAIN, TEST, TEST_WITHOUT_DEPTH = 23_158, 652, 45

STEPS = partial(read_depth, per_metre=256)
"""Steps of the depth maps."""

FACTS = DepthFacts(most=80.0, crop="garg-kitti", kb_crop=True)

TRAIN_LISTS = ("kitti_eigen_train.txt", "kitti_eigen_train_files_with_gt.txt")
TEST_LISTS = ("kitti_eigen_test.txt", "kitti_eigen_test_files_with_gt.txt")
PICTURE_PLACES = ("input", "raw", "")
DEPTH_PLACES = (
    "gt_depth",
    "data_depth_annotated",
    "data_depth_annotated/train",
    "data_depth_annotated/val",
    "train",
    "val",
)
"""Folders that hold the dates and the drives; the benchmark's archive has two, and Eigen's parts
take drives from both."""


def kitti(folder: Path, checker: Checker) -> LabelledSet:
    """23,158 pictures to train on, 652 to test on; Garg's crop."""
    listed = read_depth_list(folder, TRAIN_LISTS, checker)
    train = _split("train", folder, listed, checker)
    checker.expect("train pictures", len(train), TRAIN)
    listed = read_depth_list(folder, TEST_LISTS, checker)
    test = _split("test", folder, listed, checker)
    checker.expect("test pictures with depth", len(test), TEST)
    checker.expect("test pictures without depth", listed.without_depth, TEST_WITHOUT_DEPTH)
    require_apart(train, test, checker)
    facts = {"split": "Eigen", "test_pictures_without_depth": listed.without_depth}
    return LabelledSet(name="kitti", kind="depth", train=train, test=test, depth=FACTS, facts=facts)


def _split(name: str, folder: Path, listed: DepthList, checker: Checker) -> Split:
    """A part by its list; a drive is looked for once."""

    @cache
    def place(places: Sequence[str], top: str) -> str:
        return first_place(folder, places, top)

    def way(places: Sequence[str], file: str) -> str:
        top, _, rest = file.partition("/")
        return f"{place(places, top)}/{rest}"

    pairs = [
        Pair(way(PICTURE_PLACES, picture), way(DEPTH_PLACES, depth))
        for picture, depth in listed.pairs
    ]
    return paired_split(name, folder, pairs, STEPS, checker)
