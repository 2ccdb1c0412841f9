"""Each table is right for all of its 256 numbers, and what it does not know is an error."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from veca.data.images import DataError
from veca.data.sets.segmentation import (
    ADE20K,
    CITYSCAPES,
    COCO_OBJECT,
    COCO_STUFF,
    CONTEXT_59,
    CONTEXT_60,
    UNKNOWN,
    VOC,
    plain_table,
    remap,
)

Oracle = Callable[[int], int | None]

ABSENT_IN_COCO = {11, 25, 28, 29, 44, 65, 67, 68, 70, 82, 90}

CITYSCAPES_NAMES = {
    7: "road", 8: "sidewalk", 11: "building", 12: "wall", 13: "fence", 17: "pole",
    19: "traffic light", 20: "traffic sign", 21: "vegetation", 22: "terrain", 23: "sky",
    24: "person", 25: "rider", 26: "car", 27: "truck", 28: "bus", 31: "train", 32: "motorcycle",
    33: "bicycle",
}  # fmt: skip


def ade20k(number: int) -> int | None:
    """As mmsegmentation does it in eight bits: 0 to 255 first, less one, then 254 to 255."""
    if number > 150:
        return None
    less_one = (255 if number == 0 else number) - 1
    return 255 if less_one == 254 else less_one


def context_60(number: int) -> int | None:
    return number if number < 60 else None


def context_59(number: int) -> int | None:
    if number == 0:
        return 255
    return number - 1 if number < 60 else None


def coco_stuff(number: int) -> int | None:
    if number == 255:
        return 255
    if number > 181 or number in ABSENT_IN_COCO:
        return None
    return sum(other not in ABSENT_IN_COCO for other in range(number))


def coco_object(number: int) -> int | None:
    class_ = coco_stuff(number)
    if class_ is None:
        return None
    return 0 if number > 90 else class_ + 1


def cityscapes(number: int) -> int | None:
    if number > 33:
        return None
    return list(CITYSCAPES_NAMES).index(number) if number in CITYSCAPES_NAMES else 255


def voc(number: int) -> int | None:
    return number if number <= 20 or number == 255 else None


ORACLES = [
    pytest.param(ADE20K, ade20k, 150, id="ade20k"),
    pytest.param(CONTEXT_60, context_60, 60, id="context-60"),
    pytest.param(CONTEXT_59, context_59, 59, id="context-59"),
    pytest.param(COCO_STUFF, coco_stuff, 171, id="coco-stuff"),
    pytest.param(COCO_OBJECT, coco_object, 81, id="coco-object"),
    pytest.param(CITYSCAPES, cityscapes, 19, id="cityscapes"),
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
                remap(pixel, table)
        else:
            assert remap(pixel, table).tolist() == [[expected]]
    classes = {int(class_) for class_ in table if class_ not in {UNKNOWN, 255}}
    assert classes == set(range(num_classes))


def test_numbers_of_coco_that_papers_state() -> None:
    assert COCO_STUFF[[0, 10, 12, 89, 91, 181, 255]].tolist() == [0, 10, 11, 79, 80, 170, 255]
    assert COCO_OBJECT[[0, 10, 12, 89, 91, 181, 255]].tolist() == [1, 11, 12, 80, 0, 0, 0]


def test_files_of_train_ids_are_not_taken_for_ids_of_cityscapes() -> None:
    with pytest.raises(DataError, match="not converted ones"):
        remap(np.array([[0, 18, 255]], np.uint8), CITYSCAPES)


@pytest.mark.parametrize(("table", "oracle", "num_classes"), CHANGING)
def test_a_second_time_fails_where_all_numbers_occur(
    table: NDArray[np.uint8], oracle: Oracle, num_classes: int
) -> None:
    numbers = np.array([[number for number in range(256) if oracle(number) is not None]], np.uint8)
    once = remap(numbers, table)
    assert len(np.unique(once)) >= num_classes
    with pytest.raises(DataError):
        remap(once, table)


def test_a_second_time_is_wrong_without_an_error_in_a_mask_of_some_classes() -> None:
    once = remap(np.array([[2, 3]], np.uint8), ADE20K)
    assert once.tolist() == [[1, 2]]
    assert remap(once, ADE20K).tolist() == [[0, 1]]


def test_remapping_leaves_the_numbers_and_the_table_alone() -> None:
    numbers = np.array([[0, 1], [2, 150]], np.uint8)
    remap(numbers, ADE20K)[:] = 7
    assert numbers.tolist() == [[0, 1], [2, 150]]
    with pytest.raises(ValueError, match="read-only"):
        ADE20K[0] = 0


def test_many_unknown_numbers_are_named_by_the_first_few() -> None:
    numbers = np.arange(256, dtype=np.uint8)[None]
    with pytest.raises(DataError, match=r"60, 61, 62, 63, 64, 65, 66, 67, \.\.\., but the 60"):
        remap(numbers, CONTEXT_60)


@pytest.mark.parametrize("num_classes", [1, 2, 254])
def test_a_plain_table_keeps_classes_and_what_is_ignored(num_classes: int) -> None:
    table = plain_table(num_classes)
    assert table[:num_classes].tolist() == list(range(num_classes))
    assert table[255] == 255
    assert (table[num_classes:255] == UNKNOWN).all()


@pytest.mark.parametrize("num_classes", [0, 255])
def test_classes_that_eight_bits_cannot_hold_are_refused(num_classes: int) -> None:
    with pytest.raises(DataError, match="use 1 to 254"):
        plain_table(num_classes)
