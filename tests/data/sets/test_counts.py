"""A set that is not what its makers published is refused, with everything that is wrong at once."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets.miniatures import touch
from veca.data.listing import TableBuilder
from veca.data.sets.dataset import DatasetChecks, DatasetError, LabeledDataset, Split


def split(name: str, count: int) -> Split:
    builder = TableBuilder()
    for number in range(count):
        builder.add_file(f"{number}.jpg", 1)
    keys = tuple(f"{number}.jpg" for number in range(count))
    return Split(name=name, images=builder.table(), keys=keys, labels=np.zeros(count, np.int64))


def some_set(train: int = 2, test: int = 1) -> LabeledDataset:
    parts = {"train": split("train", train), "test": split("test", test)}
    return LabeledDataset(name="the set", kind="classes", classes=("a",), **parts)  # type: ignore[arg-type]


def test_a_set_without_faults_is_returned_as_it_is() -> None:
    checker = DatasetChecks("the set")
    checker.expect("classes", 3, 3)
    checker.expect_each("pictures of a class", np.array([0, 1, 1, 0]), 2, 2)
    assert checker.finish(some_set()).missing == ()


def test_all_faults_come_in_one_message() -> None:
    checker = DatasetChecks("the set")
    checker.expect("classes", 3, 1000)
    checker.expect("train pictures", 1_281_166, 1_281_167)
    checker.report("a list is damaged")
    with pytest.raises(DatasetError, match="the set") as told:
        checker.finish(some_set())
    message = str(told.value)
    assert "classes: 3 were found, 1,000 are published" in message
    assert "train pictures: 1,281,166 were found, 1,281,167 are published" in message
    assert "a list is damaged" in message
    assert "--allow-partial" in message


def test_a_partial_set_carries_its_faults() -> None:
    checker = DatasetChecks("the set", allow_partial=True)
    checker.expect("classes", 3, 10)
    checker.report("a list is damaged")
    assert checker.finish(some_set()).missing == (
        "classes: 3 were found, 10 are published",
        "a list is damaged",
    )


def test_even_a_partial_set_has_pictures_in_every_part() -> None:
    checker = DatasetChecks("the set", allow_partial=True)
    with pytest.raises(DatasetError, match="test: not one picture is there"):
        checker.finish(some_set(test=0))


def test_a_class_with_another_number_of_pictures_is_told_of() -> None:
    checker = DatasetChecks("the set", allow_partial=True)
    checker.expect_each("val pictures of a class", np.array([0, 0, 1, 2, 2]), 4, 2)
    (fault,) = checker.finish(some_set()).missing
    assert "2 are published for each class" in fault
    assert "2 of the 4 classes differ, such as number 1 with 1" in fault


def test_the_numbers_of_a_smaller_copy_can_be_given() -> None:
    checker = DatasetChecks("the set", instead={"classes": 3, "pictures of a class": 1})
    checker.expect("classes", 3, 1000)
    checker.expect_each("pictures of a class", np.arange(3), 3, 50)
    assert checker.finish(some_set()).missing == ()


def test_every_file_that_is_needed_and_missing_is_named_even_for_a_partial_set(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "there.txt")
    checker = DatasetChecks("the set", allow_partial=True)
    checker.report("something else")
    with pytest.raises(DatasetError) as told:
        checker.require(*(tmp_path / name for name in ("a.txt", "there.txt", "b.txt")))
    message = str(told.value)
    assert f"{tmp_path / 'a.txt'} is missing" in message
    assert f"{tmp_path / 'b.txt'} is missing" in message
    assert "something else" in message
    assert "there.txt" not in message


@pytest.mark.parametrize("below", ["", "archive-1.0"])
def test_a_set_is_found_in_the_folder_given_or_in_that_of_its_archive(
    tmp_path: Path, below: str
) -> None:
    touch(tmp_path / below, "images/1.jpg", "list.txt")
    checker = DatasetChecks("the set")
    found = checker.find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert found == tmp_path / below


def test_what_is_missing_is_named_in_the_folder_that_has_the_rest(tmp_path: Path) -> None:
    touch(tmp_path, "archive-1.0/images/1.jpg")
    checker = DatasetChecks("the set")
    with pytest.raises(DatasetError) as told:
        checker.find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert f"{tmp_path / 'archive-1.0' / 'list.txt'} is missing" in str(told.value)
    assert "images" not in str(told.value)


def test_a_folder_with_nothing_of_a_set_is_told_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as told:
        DatasetChecks("the set").find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert "archive-1.0" in str(told.value)
    assert f"{tmp_path / 'list.txt'} is missing" in str(told.value)
    with pytest.raises(DatasetError, match="no folder"):
        DatasetChecks("the set").find(tmp_path / "nowhere", ("images",))
