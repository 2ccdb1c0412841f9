"""Segmentation datasets are read from small copies of their layouts; label maps are exact."""

import pickle
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from tests.data.sets.layouts import (
    HEIGHT,
    WIDTH,
    parts,
    write_depth,
    write_lines,
    write_mask,
    write_picture,
    write_sbd,
)
from veca.data.images import DataError, ImageError
from veca.data.sets.dataset import DatasetChecks, DatasetError, LabeledDataset
from veca.data.sets.registry import read_set
from veca.data.sets.segmentation import (
    ADE20K,
    ADE20K_CLASSES,
    CITYSCAPES,
    CITYSCAPES_CLASSES,
    CLASSES,
    COCO_OBJECT,
    COCO_STUFF,
    CONTEXT_59,
    CONTEXT_60,
    CONTEXT_CLASSES,
    STUFF,
    THINGS,
    UNKNOWN,
    VOC,
    ade20k,
    apply_label_map,
    cityscapes,
    coco_object,
    coco_stuff,
    context_59,
    context_60,
    plain_label_map,
    read_depth,
    read_mask,
    voc2012,
    voc2012_aug,
)

OWN, VAL = ("2007_01", "2007_02"), ("2007_03", "2008_04")
SBD_TRAIN, SBD_VAL = ("2007_01", "2008_04", "2008_05"), ("2007_03", "2008_06", "2008_07")
"""SBD's parts hold images of VOC's train and val parts, in another way."""


def make_voc(tmp_path: Path) -> Path:
    """A copy of VOC 2012 with seven images."""
    voc_home = tmp_path / "VOCdevkit" / "VOC2012"
    for name in {*OWN, *VAL, *SBD_TRAIN, *SBD_VAL}:
        write_picture(voc_home / "JPEGImages" / f"{name}.jpg")
    for name in OWN + VAL:
        write_mask(voc_home / "SegmentationClass" / f"{name}.png", (0, 20, 255), palette=True)
    write_lines(voc_home / "ImageSets/Segmentation/train.txt", OWN)
    write_lines(voc_home / "ImageSets/Segmentation/val.txt", VAL)
    return voc_home


@pytest.fixture
def voc_home(tmp_path: Path) -> Path:
    return make_voc(tmp_path)


def add_sbd(dataset: Path) -> None:
    """SBD as published."""
    for name in SBD_TRAIN + SBD_VAL:
        write_sbd(dataset / "cls" / f"{name}.mat", (0, 7))
    write_lines(dataset / "train.txt", SBD_TRAIN)
    write_lines(dataset / "val.txt", SBD_VAL)


def with_sbd(folder: Path, *, allow_partial: bool = True) -> LabeledDataset:
    checks = DatasetChecks("voc2012-aug", allow_partial=allow_partial)
    return checks.finish(voc2012_aug(folder, checks))


@pytest.mark.parametrize("given", [".", "..", "../.."])
def test_voc_2012_has_its_own_train_and_val_parts(voc_home: Path, given: str) -> None:
    checks = DatasetChecks("voc2012", allow_partial=True)
    found = checks.finish(voc2012((voc_home / given).resolve(), checks))
    train, val = parts(found)
    assert (found.name, found.kind) == ("voc2012", "masks")
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in OWN)
    assert val.keys == tuple(f"JPEGImages/{name}.jpg" for name in VAL)
    assert np.unique(val.target(0)).tolist() == [0, 20, 255]
    assert found.classes == CLASSES
    assert (len(CLASSES), CLASSES[0], CLASSES[15], CLASSES[20]) == (
        21, "background", "person", "tvmonitor",
    )  # fmt: skip


@pytest.mark.parametrize(
    "place",
    [
        "VOC2012/benchmark_RELEASE/dataset",
        "VOCaug/dataset",
        "benchmark_RELEASE/dataset",
        "../benchmark_RELEASE/dataset",
    ],
)
def test_the_pictures_of_sbd_are_added_without_those_of_val(voc_home: Path, place: str) -> None:
    add_sbd((voc_home.parent / place).resolve())
    found = with_sbd(voc_home)
    train, val = parts(found)
    names = ("2007_01", "2007_02", "2008_05", "2008_06", "2008_07")
    assert (found.name, train.name) == ("voc2012-aug", "trainaug")
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in names)
    assert not set(train.keys) & set(val.keys)
    assert found.facts["extra_masks"] == "SBD, .mat files as published"


def test_pictures_of_voc_keep_their_own_masks_and_others_have_those_of_sbd(voc_home: Path) -> None:
    add_sbd(voc_home.parent / "VOCaug/dataset")
    train, val = parts(with_sbd(voc_home))
    seen = [np.unique(train.target(index)).tolist() for index in range(5)]
    assert seen == [[0, 20, 255], [0, 20, 255], [0, 7], [0, 7], [0, 7]]
    assert np.unique(val.target(1)).tolist() == [0, 20, 255]


def test_masks_of_sbd_that_others_have_converted_will_do(voc_home: Path) -> None:
    for name in (*SBD_TRAIN, *SBD_VAL, "2007_02"):
        write_mask(voc_home / "SegmentationClassAug" / f"{name}.png", (0, 3))
    found = with_sbd(voc_home)
    train, _ = parts(found)
    assert len(train) == 5
    assert np.unique(train.target(0)).tolist() == [0, 20, 255]
    assert np.unique(train.target(4)).tolist() == [0, 3]
    assert "converted" in found.facts["extra_masks"]


def test_without_sbd_the_error_names_where_it_was_looked_for(voc_home: Path) -> None:
    with pytest.raises(
        DatasetError, match=r"SBD is missing: neither benchmark_RELEASE/dataset nor"
    ):
        with_sbd(voc_home, allow_partial=False)
    assert len(parts(with_sbd(voc_home))[0]) == 2


def test_a_picture_of_val_in_the_train_list_is_refused(voc_home: Path) -> None:
    write_lines(voc_home / "ImageSets/Segmentation/train.txt", (*OWN, VAL[0]))
    with pytest.raises(DatasetError, match="such as JPEGImages/2007_03"):
        read_set(f"voc2012={voc_home}", allow_partial=True)


def test_what_is_missing_is_named(voc_home: Path, tmp_path: Path) -> None:
    (voc_home / "ImageSets/Segmentation/val.txt").unlink()
    with pytest.raises(DatasetError, match=r"ImageSets/Segmentation/val\.txt is missing"):
        voc2012(voc_home, DatasetChecks("voc2012"))
    with pytest.raises(DatasetError, match="not a folder"):
        voc2012(tmp_path / "nowhere", DatasetChecks("voc2012"))


RAW_IDS = (
    0, 2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113,
    115, 144, 158, 159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326,
    347, 349, 354, 355, 360, 366, 368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458,
)  # fmt: skip
"""Of 459 ids those that are kept; the class is the place among them."""


def make_context(tmp_path: Path) -> Path:
    """A copy with three images."""
    context_home = tmp_path / "VOCdevkit" / "VOC2010"
    for part, names in {"train": ("2008_1", "2008_3"), "val": ("2008_2",)}.items():
        write_lines(context_home / f"ImageSets/SegmentationContext/{part}.txt", names)
        for name in names:
            write_picture(context_home / "JPEGImages" / f"{name}.jpg")
            write_mask(context_home / "SegmentationClassContext" / f"{name}.png", range(60))
    return context_home


@pytest.fixture
def context_home(tmp_path: Path) -> Path:
    return make_context(tmp_path)


def test_sixty_classes_count_the_background(context_home: Path) -> None:
    checks = DatasetChecks("pascal-context-60", allow_partial=True)
    found = checks.finish(context_60(context_home.parent, checks))
    train, val = parts(found)
    assert (found.name, len(found.classes), found.classes[0]) == (
        "pascal-context-60", 60, "background",
    )  # fmt: skip
    assert train.keys == ("JPEGImages/2008_1.jpg", "JPEGImages/2008_3.jpg")
    assert np.unique(val.target(0)).tolist() == list(range(60))


def test_fifty_nine_classes_ignore_it(context_home: Path) -> None:
    checks = DatasetChecks("pascal-context-59", allow_partial=True)
    found = checks.finish(context_59(context_home, checks))
    _, val = parts(found)
    assert (found.name, len(found.classes), found.classes[0]) == (
        "pascal-context-59", 59, "aeroplane",
    )  # fmt: skip
    assert np.unique(val.target(0)).tolist() == [*range(59), 255]


def test_names_follow_the_alphabet_as_the_raw_ids_do() -> None:
    assert list(CONTEXT_CLASSES[1:]) == sorted(CONTEXT_CLASSES[1:])
    assert len(RAW_IDS) == len(CONTEXT_CLASSES) == 60
    known = {2: "aeroplane", 23: "bicycle", 284: "person", 427: "tvmonitor", 458: "wood"}
    assert {raw: CONTEXT_CLASSES[RAW_IDS.index(raw)] for raw in known} == known
    assert set(CLASSES) - set(CONTEXT_CLASSES) == {"diningtable"}


def test_a_number_beyond_the_classes_is_an_error(context_home: Path) -> None:
    write_mask(context_home / "SegmentationClassContext/2008_2.png", (0, 255))
    found = context_60(context_home, DatasetChecks("pascal-context-60"))
    with pytest.raises(ValueError, match="numbers 255"):
        found.test.target(0)


def make_ade20k(tmp_path: Path) -> Path:
    """A copy with three images."""
    ade20k_home = tmp_path / "ADEChallengeData2016"
    for part, name in (
        ("training", "ADE_train_00000002"),
        ("training", "ADE_train_00000001"),
        ("validation", "ADE_val_00000001"),
    ):
        write_picture(ade20k_home / f"images/{part}/{name}.jpg")
        write_mask(ade20k_home / f"annotations/{part}/{name}.png", range(151))
    return ade20k_home


@pytest.fixture
def ade20k_home(tmp_path: Path) -> Path:
    return make_ade20k(tmp_path)


@pytest.mark.parametrize("given", [".", ".."])
def test_150_classes_start_after_what_is_ignored(ade20k_home: Path, given: str) -> None:
    checks = DatasetChecks("ade20k", allow_partial=True)
    found = checks.finish(ade20k((ade20k_home / given).resolve(), checks))
    train, val = parts(found)
    assert (found.name, found.kind) == ("ade20k", "masks")
    assert (train.name, val.name) == ("training", "validation")
    assert train.keys == tuple(f"images/training/ADE_train_0000000{n}.jpg" for n in (1, 2))
    assert val.target(0).ravel()[:3].tolist() == [255, 0, 1]
    assert np.unique(val.target(0)).tolist() == [*range(150), 255]
    assert len(set(ADE20K_CLASSES)) == 150
    assert (ADE20K_CLASSES[0], ADE20K_CLASSES[12], ADE20K_CLASSES[149]) == (
        "wall",
        "person",
        "flag",
    )


def test_a_picture_without_a_mask_is_told_of(ade20k_home: Path) -> None:
    (ade20k_home / "annotations/training/ADE_train_00000001.png").unlink()
    checks = DatasetChecks("ade20k")
    with pytest.raises(DatasetError, match=r"1 of 2 images .*ADE_train_00000001\.png"):
        checks.finish(ade20k(ade20k_home, checks))


def test_a_part_that_is_missing_is_named(ade20k_home: Path) -> None:
    (ade20k_home / "annotations/validation/ADE_val_00000001.png").unlink()
    (ade20k_home / "annotations/validation").rmdir()
    with pytest.raises(DatasetError, match="annotations/validation is missing"):
        ade20k(ade20k_home, DatasetChecks("ade20k"))


LAYOUTS = [
    ("images", "annotations"),
    ("images", "stuffthingmaps"),
    (".", "stuffthingmaps"),
    (".", "stuffthingmaps_trainval2017"),
]


def write_coco(folder: Path, images: str, masks: str) -> None:
    """A copy with three images."""
    for part, name in (
        ("train2017", "000000000009"),
        ("train2017", "000000000025"),
        ("val2017", "000000000139"),
    ):
        write_picture(folder / images / part / f"{name}.jpg")
        write_mask(folder / masks / part / f"{name}.png", (0, 12, 89, 91, 181, 255))


@pytest.mark.parametrize(("images", "masks"), LAYOUTS)
def test_coco_stuff_has_171_classes(tmp_path: Path, images: str, masks: str) -> None:
    write_coco(tmp_path, images, masks)
    checks = DatasetChecks("coco-stuff", allow_partial=True)
    found = checks.finish(coco_stuff(tmp_path, checks))
    train, val = parts(found)
    assert (found.name, len(found.classes)) == ("coco-stuff", 171)
    assert [Path(key).name for key in train.keys] == ["000000000009.jpg", "000000000025.jpg"]
    assert val.target(0)[0, :6].tolist() == [0, 11, 79, 80, 170, 255]
    names = [found.classes[class_] for class_ in (0, 11, 79, 80, 170)]
    assert names == ["person", "stop sign", "toothbrush", "banner", "wood"]


@pytest.mark.parametrize(("images", "masks"), LAYOUTS)
def test_coco_object_has_80_things_and_all_else(tmp_path: Path, images: str, masks: str) -> None:
    write_coco(tmp_path, images, masks)
    checks = DatasetChecks("coco-object", allow_partial=True)
    found = checks.finish(coco_object(tmp_path, checks))
    assert (found.name, len(found.classes), found.classes[0]) == ("coco-object", 81, "background")
    assert found.test.target(0)[0, :6].tolist() == [1, 12, 80, 0, 0, 0]


def test_names_are_as_many_as_the_makers_say_and_stuff_follows_the_alphabet() -> None:
    assert (len(set(THINGS)), len(set(STUFF))) == (80, 91)
    assert list(STUFF) == sorted(STUFF)


def test_files_that_others_have_converted_are_passed_by(tmp_path: Path) -> None:
    write_coco(tmp_path, "images", "annotations")
    for ending in ("_labelTrainIds", "_instanceTrainIds"):
        write_mask(tmp_path / f"annotations/val2017/000000000139{ending}.png", [3])
    checks = DatasetChecks("coco-stuff", allow_partial=True)
    found = checks.finish(coco_stuff(tmp_path, checks))
    assert np.unique(found.test.target(0)).tolist() == [0, 11, 79, 80, 170, 255]


def test_masks_that_are_not_there_are_asked_for_by_the_names_of_their_folders(
    tmp_path: Path,
) -> None:
    write_coco(tmp_path, "images", "elsewhere")
    with pytest.raises(DatasetError, match="none of the folders annotations, stuffthingmaps, "):
        coco_stuff(tmp_path, DatasetChecks("coco-stuff"))


FRAMES = (
    ("train", "zurich", "zurich_000000_000019"),
    ("train", "aachen", "aachen_000000_000019"),
    ("val", "munster", "munster_000000_000019"),
)


def make_cityscapes(tmp_path: Path) -> Path:
    """A copy with three images, a test part, and the other files of its archives."""
    for part, city, name in FRAMES:
        write_picture(tmp_path / f"leftImg8bit/{part}/{city}/{name}_leftImg8bit.png")
        masks = tmp_path / f"gtFine/{part}/{city}"
        write_mask(masks / f"{name}_gtFine_labelIds.png", range(34))
        write_mask(masks / f"{name}_gtFine_labelTrainIds.png", (0, 255))
        write_mask(masks / f"{name}_gtFine_instanceIds.png", (0,))
    write_picture(tmp_path / "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png")
    return tmp_path


@pytest.fixture
def cityscapes_home(tmp_path: Path) -> Path:
    return make_cityscapes(tmp_path)


def test_19_classes_are_read_from_the_published_ids(cityscapes_home: Path) -> None:
    checks = DatasetChecks("cityscapes", allow_partial=True)
    found = checks.finish(cityscapes(cityscapes_home, checks))
    train, val = parts(found)
    assert (found.name, len(found.classes)) == ("cityscapes", 19)
    assert train.keys == tuple(
        f"leftImg8bit/train/{city}/{city}_000000_000019_leftImg8bit.png"
        for city in ("aachen", "zurich")
    )
    mask = val.target(0).ravel()
    assert mask[[0, 7, 8, 11, 24, 33]].tolist() == [255, 0, 1, 2, 11, 18]
    assert np.unique(mask).tolist() == [*range(19), 255]
    assert (CITYSCAPES_CLASSES[0], CITYSCAPES_CLASSES[11], CITYSCAPES_CLASSES[18]) == (
        "road",
        "person",
        "bicycle",
    )


def test_a_city_without_masks_is_told_of(cityscapes_home: Path) -> None:
    (cityscapes_home / "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png").unlink()
    checks = DatasetChecks("cityscapes", allow_partial=True)
    found = checks.finish(cityscapes(cityscapes_home, checks))
    assert len(parts(found)[0]) == 1
    assert "aachen_000000_000019_gtFine_labelIds.png" in found.missing[0]


Oracle = Callable[[int], int | None]

ABSENT_IN_COCO = {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}

CITYSCAPES_NAMES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole",
    19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky",
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle",
    33: "bicycle",
}  # fmt: skip


def expected_ade20k(number: int) -> int | None:
    """As mmsegmentation does it in eight bits: 0 to 255 first, less one, then 254 to 255."""
    if number > 150:
        return None
    less_one = (255 if number == 0 else number) - 1
    return 255 if less_one == 254 else less_one


def expected_context_60(number: int) -> int | None:
    return number if number < 60 else None


def expected_context_59(number: int) -> int | None:
    if number == 0:
        return 255
    return number - 1 if number < 60 else None


def expected_coco_stuff(number: int) -> int | None:
    if number == 255:
        return 255
    if number > 181 or number in ABSENT_IN_COCO:
        return None
    return sum(other not in ABSENT_IN_COCO for other in range(number))


def expected_coco_object(number: int) -> int | None:
    class_ = expected_coco_stuff(number)
    if class_ is None:
        return None
    return 0 if number > 90 else class_ + 1


def expected_cityscapes(number: int) -> int | None:
    if number > 33:
        return None
    return list(CITYSCAPES_NAMES).index(number) if number in CITYSCAPES_NAMES else 255


def voc(number: int) -> int | None:
    return number if number <= 20 or number == 255 else None


ORACLES = [
    pytest.param(ADE20K, expected_ade20k, 150, id="ade20k"),
    pytest.param(CONTEXT_60, expected_context_60, 60, id="context-60"),
    pytest.param(CONTEXT_59, expected_context_59, 59, id="context-59"),
    pytest.param(COCO_STUFF, expected_coco_stuff, 171, id="coco-stuff"),
    pytest.param(COCO_OBJECT, expected_coco_object, 81, id="coco-object"),
    pytest.param(CITYSCAPES, expected_cityscapes, 19, id="cityscapes"),
    pytest.param(VOC, voc, 21, id="voc"),
]

CHANGING = [case for case in ORACLES if case.id not in {"context-60", "voc"}]


@pytest.mark.parametrize(("table", "oracle", "num_classes"), ORACLES)
def test_each_of_256_numbers_becomes_its_class_or_an_error(
    table: NDArray[np.uint8], oracle: Oracle, num_classes: int
) -> None:
    for number in range(256):
        pixel = np.full((1, 1), number, np.uint8)
        expected = oracle(number)
        if expected is None:
            with pytest.raises(DataError, match=rf"holds the numbers {number},"):
                apply_label_map(pixel, table)
        else:
            assert apply_label_map(pixel, table).tolist() == [[expected]]
    classes = {int(class_) for class_ in table if class_ not in {UNKNOWN, 255}}
    assert classes == set(range(num_classes))


def test_numbers_of_coco_that_papers_state() -> None:
    assert COCO_STUFF[[0, 10, 12, 89, 91, 181, 255]].tolist() == [0, 10, 11, 79, 80, 170, 255]
    assert COCO_OBJECT[[0, 10, 12, 89, 91, 181, 255]].tolist() == [1, 11, 12, 80, 0, 0, 0]


def test_files_of_train_ids_are_not_taken_for_ids_of_cityscapes() -> None:
    with pytest.raises(DataError, match="not converted ones"):
        apply_label_map(np.array([[0, 18, 255]], np.uint8), CITYSCAPES)


@pytest.mark.parametrize(("table", "oracle", "num_classes"), CHANGING)
def test_a_second_time_fails_where_all_numbers_occur(
    table: NDArray[np.uint8], oracle: Oracle, num_classes: int
) -> None:
    numbers = np.array([[number for number in range(256) if oracle(number) is not None]], np.uint8)
    once = apply_label_map(numbers, table)
    assert len(np.unique(once)) >= num_classes
    with pytest.raises(DataError):
        apply_label_map(once, table)


def test_a_second_time_is_wrong_without_an_error_in_a_mask_of_some_classes() -> None:
    once = apply_label_map(np.array([[2, 3]], np.uint8), ADE20K)
    assert once.tolist() == [[1, 2]]
    assert apply_label_map(once, ADE20K).tolist() == [[0, 1]]


def test_remapping_leaves_the_numbers_and_the_table_alone() -> None:
    numbers = np.array([[0, 1], [2, 150]], np.uint8)
    apply_label_map(numbers, ADE20K)[:] = 7
    assert numbers.tolist() == [[0, 1], [2, 150]]
    with pytest.raises(ValueError, match="read-only"):
        ADE20K[0] = 0


def test_many_unknown_numbers_are_named_by_the_first_few() -> None:
    numbers = np.arange(256, dtype=np.uint8)[None]
    with pytest.raises(
        DataError, match=r"60, 61, 62, 63, 64, 65, 66, 67, \.\.\., which are not among the 60"
    ):
        apply_label_map(numbers, CONTEXT_60)


@pytest.mark.parametrize("num_classes", [1, 2, 254])
def test_a_plain_table_keeps_classes_and_what_is_ignored(num_classes: int) -> None:
    table = plain_label_map(num_classes)
    assert table[:num_classes].tolist() == list(range(num_classes))
    assert table[255] == 255
    assert (table[num_classes:255] == UNKNOWN).all()


@pytest.mark.parametrize("num_classes", [0, 255])
def test_classes_that_eight_bits_cannot_hold_are_refused(num_classes: int) -> None:
    with pytest.raises(DataError, match="use 1 to 254"):
        plain_label_map(num_classes)


SOME = (0, 20, 255, 7)


@pytest.mark.parametrize("palette", [False, True])
def test_a_mask_is_the_indices_of_its_file_whatever_their_colors(
    tmp_path: Path, palette: bool
) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, SOME, palette=palette)
    with Image.open(path) as image:
        assert image.mode == ("P" if palette else "L")
    found = read_mask(str(path), VOC)
    assert found.dtype == np.uint8
    assert np.array_equal(found, mask)


def test_a_palette_of_a_few_colors_packs_pixels_and_they_come_out_whole(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 1, 2, 3))
    image = Image.frombytes("P", (WIDTH, HEIGHT), mask.tobytes())
    image.putpalette([9, 9, 9, 0, 0, 0, 9, 9, 9, 200, 0, 0])
    image.save(path, bits=2)
    assert path.read_bytes()[24] == 2  # the depth that the header states
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_file_of_one_bit_holds_0_and_255(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 255, 255))
    Image.fromarray(mask).convert("1", dither=Image.Dither.NONE).save(path)
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_table_is_applied_once_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, range(151))
    content = path.read_bytes()
    expected = [255 if number == 0 else number - 1 for number in mask.ravel().tolist()]
    for _ in range(2):
        assert read_mask(str(path), ADE20K).ravel().tolist() == expected
    assert path.read_bytes() == content


def test_an_unknown_number_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    write_mask(path, (0, 21))
    with pytest.raises(ImageError, match=r"mask\.png: a mask holds the numbers 21,"):
        read_mask(str(path), VOC)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "I;16"])
def test_a_mask_with_more_than_one_byte_a_pixel_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mask.png"
    Image.new(mode, (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match=rf"has the mode {mode}, but a mask needs"):
        read_mask(str(path), VOC)


def test_a_mask_that_jpeg_has_blurred_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.new("L", (WIDTH, HEIGHT)).save(path, "JPEG")
    with pytest.raises(ImageError, match="is a JPEG file"):
        read_mask(str(path), VOC)


def test_a_mask_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    write_mask(path, range(21))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ImageError):
        read_mask(str(path), VOC)


@pytest.mark.parametrize(("per_metre", "meters"), [(1000, 65.535), (256, 255.99609375)])
def test_depth_is_in_meters_and_unknown_stays_zero(
    tmp_path: Path, per_metre: int, meters: float
) -> None:
    path = tmp_path / "depth.png"
    steps = write_depth(path, (0, per_metre, 1, 65_535))
    found = read_depth(str(path), per_metre)
    assert found.dtype == np.float32
    assert found[0, :2].tolist() == [0.0, 1.0]
    assert found[0, 3] == np.float32(meters)
    assert np.allclose(found, steps.astype(np.float64) / per_metre, rtol=1e-7, atol=0)


def test_a_depth_map_of_eight_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "depth.png"
    Image.new("L", (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match="depth needs one channel of 16 bits"):
        read_depth(str(path), 1000)


def test_the_masks_of_sbd_are_read_from_their_matlab_files(tmp_path: Path) -> None:
    path = tmp_path / "2008_000002.mat"
    mask = write_sbd(path, range(21))
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_matlab_file_without_a_mask_is_refused(tmp_path: Path) -> None:
    from scipy.io import savemat  # noqa: PLC0415 - an extra

    other, damaged = tmp_path / "other.mat", tmp_path / "damaged.mat"
    savemat(other, {"GTcls": {"Boundaries": np.zeros((3, 3))}})
    with pytest.raises(ImageError, match=r"has no mask GTcls\.Segmentation"):
        read_mask(str(other), VOC)
    write_lines(damaged, ["no MATLAB file at all, but long enough to be asked for its version" * 4])
    with pytest.raises(DataError, match="GTcls"):
        read_mask(str(damaged), VOC)


def test_without_scipy_a_matlab_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "2008_000002.mat"
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"pip install veca\[probe\]"):
        read_mask(str(path), VOC)


def test_readers_travel_to_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 1, 255))
    read = pickle.loads(pickle.dumps(partial(read_mask, label_map=plain_label_map(2))))
    assert np.array_equal(read(str(path)), mask)
