"""NYU Depth v2, by the two conventions that go by that name.

`nyu-v2`: 24,231 pictures from the raw sequences and the 654 labelled test pictures, by the lists
`nyu_train.txt` and `nyu_test.txt`; what depth probes are nearly always measured with.
`nyu-v2-labelled`: the 795 labelled training pictures instead, a thirtieth of the pictures, so that
numbers are not comparable. Both are 480 x 640 pixels with a frame that shows nothing; depth is in
millimetres.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from veca.data.labelled import DepthFacts, LabelledSet, Split
from veca.data.sets.counts import Checker
from veca.data.sets.depth_lists import first_place, read_depth_list
from veca.data.sets.pairs import Pair, files_below, paired_split, require_apart
from veca.data.sets.targets import read_depth

TRAIN, TEST, LABELLED_TRAIN = 24_231, 654, 795

MILLIMETRES = partial(read_depth, per_metre=1000)
"""Steps of the depth maps."""

FACTS = DepthFacts(most=10.0, crop="eigen-nyu", nyu_crop=True)

TRAIN_LISTS = ("nyu_train.txt", "nyudepthv2_train_files_with_gt.txt")
TEST_LISTS = ("nyu_test.txt", "nyudepthv2_test_files_with_gt.txt")
TRAIN_PLACES = ("", "sync")
TEST_PLACES = ("", "official_splits/test", "test")
"""Folders that the names in the lists may be relative to; scenes of both parts may share one."""

PICTURE, DEPTH = "rgb_", "sync_depth_"
"""How the names of the files of a scene begin."""


def nyu_v2(folder: Path, checker: Checker) -> LabelledSet:
    """24,231 pictures to train on, 654 to test on."""
    train = _listed("train", folder, TRAIN_LISTS, TRAIN_PLACES, checker)
    test = _listed("test", folder, TEST_LISTS, TEST_PLACES, checker)
    checker.expect("train pictures", len(train), TRAIN)
    checker.expect("test pictures", len(test), TEST)
    require_apart(train, test, checker)
    facts = {"train_list": "24,231 pictures of the raw sequences (nyu_train.txt)"}
    return LabelledSet(
        name="nyu-v2", kind="depth", train=train, test=test, depth=FACTS, facts=facts
    )


def nyu_v2_labelled(folder: Path, checker: Checker) -> LabelledSet:
    """795 pictures to train on, 654 to test on: `{train,test}/<scene>/` as BTS's tool writes them.

    The tool is `extract_official_train_test_set_from_mat.py`; its depth is the raw one, with holes,
    and its pictures have a black frame.
    """
    home = checker.find(folder, ("train", "test"), ("official_splits",))
    train, test = (
        paired_split(part, home, _scene_pairs(home, part), MILLIMETRES, checker)
        for part in ("train", "test")
    )
    checker.expect("train pictures", len(train), LABELLED_TRAIN)
    checker.expect("test pictures", len(test), TEST)
    facts = {"train_list": "795 labelled pictures (splits.mat)"}
    return LabelledSet(
        name="nyu-v2-labelled", kind="depth", train=train, test=test, depth=FACTS, facts=facts
    )


def _listed(
    name: str, folder: Path, lists: Sequence[str], places: Sequence[str], checker: Checker
) -> Split:
    """A part by its list."""
    found = read_depth_list(folder, lists, checker)
    pairs = [Pair(*(first_place(folder, places, file) for file in files)) for files in found.pairs]
    return paired_split(name, folder, pairs, MILLIMETRES, checker)


def _scene_pairs(home: Path, part: str) -> list[Pair]:
    """Pictures and depth maps of one scene and number."""
    pairs = []
    for picture in files_below(home, part, ".jpg"):
        scene, _, file = picture.rpartition("/")
        number = file.removeprefix(PICTURE).removesuffix(".jpg")
        pairs.append(Pair(picture, f"{scene}/{DEPTH}{number}.png"))
    return pairs
