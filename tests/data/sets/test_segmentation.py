"""Datasets of masks and depth are read from small copies of their layouts; label maps are exact."""

import pickle
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
    complaint,
    read,
    write_depth,
    write_lines,
    write_mask,
    write_picture,
    write_sbd,
)
from veca.data.images import DataError, ImageError
from veca.data.sets.dataset import DepthRange, class_names
from veca.data.sets.segmentation import (
    ADE20K,
    CITYSCAPES,
    COCO_OBJECT,
    COCO_STUFF,
    CONTEXT_59,
    CONTEXT_60,
    UNKNOWN,
    VOC,
    apply_label_map,
    plain_label_map,
    read_depth,
    read_mask,
)

CLASSES, CONTEXT_CLASSES = class_names("voc"), class_names("pascal-context")
ADE20K_CLASSES = class_names("ade20k")
THINGS, STUFF = class_names("coco-things"), class_names("coco-stuff")

OWN, VAL = ("2007_01", "2007_02"), ("2007_03", "2008_04")
SBD_TRAIN, SBD_VAL = ("2007_01", "2008_04", "2008_05"), ("2007_03", "2008_06", "2008_07")
"""SBD's splits divide the images of VOC's in another way."""


def make_voc(tmp_path: Path) -> Path:
    """A copy of VOC 2012 with seven images."""
    home = tmp_path / "VOCdevkit" / "VOC2012"
    for name in {*OWN, *VAL, *SBD_TRAIN, *SBD_VAL}:
        write_picture(home / "JPEGImages" / f"{name}.jpg")
    for name in OWN + VAL:
        write_mask(home / "SegmentationClass" / f"{name}.png", (0, 20, 255), palette=True)
    write_lines(home / "ImageSets/Segmentation/train.txt", OWN)
    write_lines(home / "ImageSets/Segmentation/val.txt", VAL)
    return home


def add_sbd(dataset: Path) -> None:
    """SBD as published."""
    for name in SBD_TRAIN + SBD_VAL:
        write_sbd(dataset / "cls" / f"{name}.mat", (0, 7))
    write_lines(dataset / "train.txt", SBD_TRAIN)
    write_lines(dataset / "val.txt", SBD_VAL)


@pytest.mark.parametrize("given", [".", "..", "../.."])
def test_voc_2012_has_its_own_train_and_val_splits(tmp_path: Path, given: str) -> None:
    found = read("voc2012", make_voc(tmp_path) / given)
    train, val = found.splits()
    assert (found.name, found.kind) == ("voc2012", "masks")
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in OWN)
    assert val.keys == tuple(f"JPEGImages/{name}.jpg" for name in VAL)
    assert np.unique(val.target(0)).tolist() == [0, 20, 255]
    assert found.classes == CLASSES
    assert (len(CLASSES), CLASSES[0], CLASSES[15]) == (21, "background", "person")


@pytest.mark.parametrize(
    "place",
    [
        "VOC2012/benchmark_RELEASE/dataset",
        "VOCaug/dataset",
        "benchmark_RELEASE/dataset",
        "../benchmark_RELEASE/dataset",
    ],
)
def test_sbd_adds_images_that_are_not_in_val(tmp_path: Path, place: str) -> None:
    home = make_voc(tmp_path)
    add_sbd((home.parent / place).resolve())
    found = read("voc2012-aug", home)
    train, val = found.splits()
    names = ("2007_01", "2007_02", "2008_05", "2008_06", "2008_07")
    assert train.name == "trainaug"
    assert train.keys == tuple(f"JPEGImages/{name}.jpg" for name in names)
    seen = [np.unique(train.target(index)).tolist() for index in range(5)]
    assert seen == [[0, 20, 255], [0, 20, 255], [0, 7], [0, 7], [0, 7]]  # VOC's masks where it can
    assert np.unique(val.target(1)).tolist() == [0, 20, 255]
    assert found.facts["extra_masks"] == "SBD, .mat files as published"


def test_converted_masks_of_sbd_are_read(tmp_path: Path) -> None:
    home = make_voc(tmp_path)
    for name in (*SBD_TRAIN, *SBD_VAL, "2007_02"):
        write_mask(home / "SegmentationClassAug" / f"{name}.png", (0, 3))
    found = read("voc2012-aug", home)
    train, _ = found.splits()
    assert len(train) == 5
    assert np.unique(train.target(0)).tolist() == [0, 20, 255]
    assert np.unique(train.target(4)).tolist() == [0, 3]
    assert "converted" in found.facts["extra_masks"]


def test_missing_masks_of_sbd_are_reported(tmp_path: Path) -> None:
    home = make_voc(tmp_path)
    words = "SBD is missing: neither benchmark_RELEASE/dataset nor"
    assert words in complaint("voc2012-aug", home)
    assert len(read("voc2012-aug", home).splits()[0]) == 2


def test_wrong_and_missing_lists_of_voc_are_named(tmp_path: Path) -> None:
    home = make_voc(tmp_path)
    write_lines(home / "ImageSets/Segmentation/train.txt", (*OWN, VAL[0]))
    assert "1,464 are published" in complaint("voc2012", home)
    (home / "ImageSets/Segmentation/val.txt").unlink()
    assert "ImageSets/Segmentation/val.txt is missing" in complaint("voc2012", home)
    assert "not a folder" in complaint("voc2012", tmp_path / "nowhere")


RAW_IDS = (
    0, 2, 9, 18, 19, 22, 23, 25, 31, 33, 34, 44, 45, 46, 59, 65, 68, 72, 80, 85, 98, 104, 105, 113,
    115, 144, 158, 159, 162, 187, 189, 207, 220, 232, 258, 259, 260, 284, 295, 296, 308, 324, 326,
    347, 349, 354, 355, 360, 366, 368, 397, 415, 416, 420, 424, 427, 440, 445, 454, 458,
)  # fmt: skip
"""The ids, of 459, that are kept; a class is a position among them."""


def make_context(tmp_path: Path) -> Path:
    """A copy with three images."""
    home = tmp_path / "VOCdevkit" / "VOC2010"
    for part, names in {"train": ("2008_1", "2008_3"), "val": ("2008_2",)}.items():
        write_lines(home / f"ImageSets/SegmentationContext/{part}.txt", names)
        for name in names:
            write_picture(home / "JPEGImages" / f"{name}.jpg")
            write_mask(home / "SegmentationClassContext" / f"{name}.png", range(60))
    return home


def test_pascal_context_has_60_classes_or_59_without_the_background(tmp_path: Path) -> None:
    home = make_context(tmp_path)
    with_background = read("pascal-context-60", home.parent)
    train, val = with_background.splits()
    assert (len(with_background.classes), with_background.classes[0]) == (60, "background")
    assert train.keys == ("JPEGImages/2008_1.jpg", "JPEGImages/2008_3.jpg")
    assert np.unique(val.target(0)).tolist() == list(range(60))
    without = read("pascal-context-59", home)
    assert (len(without.classes), without.classes[0]) == (59, "aeroplane")
    assert np.unique(without.test.target(0)).tolist() == [*range(59), 255]
    write_mask(home / "SegmentationClassContext/2008_2.png", (0, 255))
    with pytest.raises(ValueError, match="numbers 255"):
        with_background.test.target(0)


def test_classes_of_context_are_in_alphabetical_order_as_the_raw_ids_are() -> None:
    assert list(CONTEXT_CLASSES[1:]) == sorted(CONTEXT_CLASSES[1:])
    assert len(RAW_IDS) == len(CONTEXT_CLASSES) == 60
    known = {2: "aeroplane", 23: "bicycle", 284: "person", 427: "tvmonitor", 458: "wood"}
    assert {raw: CONTEXT_CLASSES[RAW_IDS.index(raw)] for raw in known} == known
    assert set(CLASSES) - set(CONTEXT_CLASSES) == {"diningtable"}


def make_ade20k(tmp_path: Path) -> Path:
    """A copy with three images."""
    home = tmp_path / "ADEChallengeData2016"
    for part, name in (
        ("training", "ADE_train_00000002"),
        ("training", "ADE_train_00000001"),
        ("validation", "ADE_val_00000001"),
    ):
        write_picture(home / f"images/{part}/{name}.jpg")
        write_mask(home / f"annotations/{part}/{name}.png", range(151))
    return home


@pytest.mark.parametrize("given", [".", ".."])
def test_ade20k_has_150_classes_after_the_ignored_one(tmp_path: Path, given: str) -> None:
    train, val = read("ade20k", make_ade20k(tmp_path) / given).splits()
    assert (train.name, val.name) == ("training", "validation")
    assert train.keys == tuple(f"images/training/ADE_train_0000000{n}.jpg" for n in (1, 2))
    assert val.target(0).ravel()[:3].tolist() == [255, 0, 1]
    assert np.unique(val.target(0)).tolist() == [*range(150), 255]
    assert len(set(ADE20K_CLASSES)) == 150
    ends = (ADE20K_CLASSES[0], ADE20K_CLASSES[12], ADE20K_CLASSES[149])
    assert ends == ("wall", "person", "flag")


def test_missing_masks_of_ade20k_are_named(tmp_path: Path) -> None:
    home = make_ade20k(tmp_path)
    (home / "annotations/training/ADE_train_00000001.png").unlink()
    message = complaint("ade20k", home)
    assert "1 of 2 images" in message
    assert "ADE_train_00000001.png" in message
    (home / "annotations/validation/ADE_val_00000001.png").unlink()
    (home / "annotations/validation").rmdir()
    assert "annotations/validation is missing" in complaint("ade20k", home)


LAYOUTS = [
    ("images", "annotations"),
    ("images", "stuffthingmaps"),
    (".", "stuffthingmaps"),
    (".", "stuffthingmaps_trainval2017"),
]


def write_coco(folder: Path, images: str, masks: str) -> None:
    """A copy with three images, and converted masks, which must be ignored."""
    for part, name in (
        ("train2017", "000000000009"),
        ("train2017", "000000000025"),
        ("val2017", "000000000139"),
    ):
        write_picture(folder / images / part / f"{name}.jpg")
        write_mask(folder / masks / part / f"{name}.png", (0, 12, 89, 91, 181, 255))
        for ending in ("_labelTrainIds", "_instanceTrainIds"):
            write_mask(folder / masks / part / f"{name}{ending}.png", [3])


@pytest.mark.parametrize(("images", "masks"), LAYOUTS)
def test_coco_has_171_classes_or_80_things(tmp_path: Path, images: str, masks: str) -> None:
    write_coco(tmp_path, images, masks)
    stuff, things = read("coco-stuff", tmp_path), read("coco-object", tmp_path)
    names = [Path(key).name for key in stuff.splits()[0].keys]
    assert names == ["000000000009.jpg", "000000000025.jpg"]
    assert stuff.test.target(0)[0, :6].tolist() == [0, 11, 79, 80, 170, 255]
    assert things.test.target(0)[0, :6].tolist() == [1, 12, 80, 0, 0, 0]
    assert (len(stuff.classes), len(things.classes), things.classes[0]) == (171, 81, "background")
    names = [stuff.classes[class_] for class_ in (0, 11, 79, 80, 170)]
    assert names == ["person", "stop sign", "toothbrush", "banner", "wood"]


def test_coco_has_80_things_and_91_kinds_of_stuff_in_alphabetical_order() -> None:
    assert (len(set(THINGS)), len(set(STUFF))) == (80, 91)
    assert list(STUFF) == sorted(STUFF)


def test_missing_masks_of_coco_are_reported_with_the_folders_that_were_searched(
    tmp_path: Path,
) -> None:
    write_coco(tmp_path, "images", "elsewhere")
    words = "none of the folders annotations, stuffthingmaps, "
    assert words in complaint("coco-stuff", tmp_path)


FRAMES = (
    ("train", "zurich", "zurich_000000_000019"),
    ("train", "aachen", "aachen_000000_000019"),
    ("val", "munster", "munster_000000_000019"),
)


def make_cityscapes(tmp_path: Path) -> Path:
    """A copy with three images, a test split, and the other files of its archives."""
    for part, city, name in FRAMES:
        write_picture(tmp_path / f"leftImg8bit/{part}/{city}/{name}_leftImg8bit.png")
        masks = tmp_path / f"gtFine/{part}/{city}"
        write_mask(masks / f"{name}_gtFine_labelIds.png", range(34))
        write_mask(masks / f"{name}_gtFine_labelTrainIds.png", (0, 255))
        write_mask(masks / f"{name}_gtFine_instanceIds.png", (0,))
    write_picture(tmp_path / "leftImg8bit/test/berlin/berlin_000000_000019_leftImg8bit.png")
    return tmp_path


def test_cityscapes_has_19_classes_of_the_published_ids(tmp_path: Path) -> None:
    found = read("cityscapes", make_cityscapes(tmp_path))
    train, val = found.splits()
    assert train.keys == tuple(
        f"leftImg8bit/train/{city}/{city}_000000_000019_leftImg8bit.png"
        for city in ("aachen", "zurich")
    )
    mask = val.target(0).ravel()
    assert mask[[0, 7, 8, 11, 24, 33]].tolist() == [255, 0, 1, 2, 11, 18]
    assert np.unique(mask).tolist() == [*range(19), 255]
    assert found.classes == class_names("cityscapes") == tuple(CITYSCAPES_NAMES.values())
    missing = "gtFine/train/aachen/aachen_000000_000019_gtFine_labelIds.png"
    (tmp_path / missing).unlink()
    assert missing in read("cityscapes", tmp_path).missing[0]


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


def expected_voc(number: int) -> int | None:
    return number if number <= 20 or number == 255 else None


ORACLES = [
    pytest.param(ADE20K, expected_ade20k, 150, id="ade20k"),
    pytest.param(CONTEXT_60, expected_context_60, 60, id="context-60"),
    pytest.param(CONTEXT_59, expected_context_59, 59, id="context-59"),
    pytest.param(COCO_STUFF, expected_coco_stuff, 171, id="coco-stuff"),
    pytest.param(COCO_OBJECT, expected_coco_object, 81, id="coco-object"),
    pytest.param(CITYSCAPES, expected_cityscapes, 19, id="cityscapes"),
    pytest.param(VOC, expected_voc, 21, id="voc"),
]

CHANGING = [case for case in ORACLES if case.id not in {"context-60", "voc"}]


@pytest.mark.parametrize(("table", "oracle", "num_classes"), ORACLES)
def test_every_number_is_mapped_to_its_class_or_refused(
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


@pytest.mark.parametrize(("table", "oracle", "num_classes"), CHANGING)
def test_applying_a_label_map_twice_fails_where_all_numbers_occur(
    table: NDArray[np.uint8], oracle: Oracle, num_classes: int
) -> None:
    numbers = np.array([[number for number in range(256) if oracle(number) is not None]], np.uint8)
    once = apply_label_map(numbers, table)
    assert len(np.unique(once)) >= num_classes
    with pytest.raises(DataError):
        apply_label_map(once, table)


def test_applying_a_label_map_twice_is_wrong_without_an_error_where_few_numbers_occur() -> None:
    once = apply_label_map(np.array([[2, 3]], np.uint8), ADE20K)
    assert once.tolist() == [[1, 2]]
    assert apply_label_map(once, ADE20K).tolist() == [[0, 1]]


def test_applying_a_label_map_changes_neither_the_mask_nor_the_map() -> None:
    numbers = np.array([[0, 1], [2, 150]], np.uint8)
    apply_label_map(numbers, ADE20K)[:] = 7
    assert numbers.tolist() == [[0, 1], [2, 150]]
    with pytest.raises(ValueError, match="read-only"):
        ADE20K[0] = 0


def test_an_error_lists_the_first_few_unknown_numbers() -> None:
    numbers = np.arange(256, dtype=np.uint8)[None]
    with pytest.raises(
        DataError, match=r"60, 61, 62, 63, 64, 65, 66, 67, \.\.\., which are not among the 60"
    ):
        apply_label_map(numbers, CONTEXT_60)


@pytest.mark.parametrize("num_classes", [1, 2, 254])
def test_a_plain_label_map_keeps_classes_and_ignored_pixels(num_classes: int) -> None:
    table = plain_label_map(num_classes)
    assert table[:num_classes].tolist() == list(range(num_classes))
    assert table[255] == 255
    assert (table[num_classes:255] == UNKNOWN).all()


@pytest.mark.parametrize("num_classes", [0, 255])
def test_more_classes_than_8_bits_can_hold_are_refused(num_classes: int) -> None:
    with pytest.raises(DataError, match="use 1 to 254"):
        plain_label_map(num_classes)


@pytest.mark.parametrize("palette", [False, True])
def test_a_mask_holds_the_indices_of_its_file_not_their_colors(
    tmp_path: Path, palette: bool
) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 20, 255, 7), palette=palette)
    content = path.read_bytes()
    with Image.open(path) as image:
        assert image.mode == ("P" if palette else "L")
    read = pickle.loads(pickle.dumps(partial(read_mask, label_map=VOC)))  # as workers do
    for _ in range(2):
        found = read(str(path))
        assert found.dtype == np.uint8
        assert np.array_equal(found, mask)
    assert path.read_bytes() == content


def test_packed_pixels_are_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 1, 2, 3))
    image = Image.frombytes("P", (WIDTH, HEIGHT), mask.tobytes())
    image.putpalette([9, 9, 9, 0, 0, 0, 9, 9, 9, 200, 0, 0])
    image.save(path, bits=2)
    assert path.read_bytes()[24] == 2  # the depth in the header
    assert np.array_equal(read_mask(str(path), VOC), mask)
    mask = write_mask(path, (0, 255, 255))
    Image.fromarray(mask).convert("1", dither=Image.Dither.NONE).save(path)
    assert np.array_equal(read_mask(str(path), VOC), mask)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "I;16"])
def test_a_mask_of_another_mode_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mask.png"
    Image.new(mode, (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match=rf"has the mode {mode}, but a mask needs"):
        read_mask(str(path), VOC)


def test_masks_that_are_lossy_truncated_or_hold_other_numbers_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.new("L", (WIDTH, HEIGHT)).save(path, "JPEG")
    with pytest.raises(ImageError, match="is a JPEG file"):
        read_mask(str(path), VOC)
    write_mask(path, (0, 21))
    with pytest.raises(ImageError, match=r"mask\.png: a mask holds the numbers 21,"):
        read_mask(str(path), VOC)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ImageError, match=r"mask\.png"):
        read_mask(str(path), VOC)


@pytest.mark.parametrize(("per_meter", "meters"), [(1000, 65.535), (256, 255.99609375)])
def test_depth_is_in_meters_and_0_where_it_is_unknown(
    tmp_path: Path, per_meter: int, meters: float
) -> None:
    path = tmp_path / "depth.png"
    steps = write_depth(path, (0, per_meter, 1, 65_535))
    found = read_depth(str(path), per_meter)
    assert found.dtype == np.float32
    assert found[0, :2].tolist() == [0.0, 1.0]
    assert found[0, 3] == np.float32(meters)
    assert np.allclose(found, steps.astype(np.float64) / per_meter, rtol=1e-7, atol=0)
    Image.new("L", (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match="depth needs one channel of 16 bits"):
        read_depth(str(path), per_meter)


def test_masks_of_sbd_are_read_from_matlab_files(tmp_path: Path) -> None:
    from scipy.io import savemat  # noqa: PLC0415 - an extra

    path = tmp_path / "2008_000002.mat"
    mask = write_sbd(path, range(21))
    assert np.array_equal(read_mask(str(path), VOC), mask)
    savemat(path, {"GTcls": {"Boundaries": np.zeros((3, 3))}})
    with pytest.raises(ImageError, match=r"has no mask GTcls\.Segmentation"):
        read_mask(str(path), VOC)


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
