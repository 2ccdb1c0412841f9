"""Splits, checks of published counts, copies, and lists."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encoded, write_pictures, write_shard
from tests.data.sets.layouts import touch, write, write_mask, write_picture
from veca.data.listing import ImageEntry, TableBuilder, list_images
from veca.data.sets import dataset as copies
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    Pair,
    Split,
    SplitBuilder,
    Target,
    files_below,
    lines,
    paired_split,
    read_json,
    require_disjoint,
    require_no_copies,
    rows,
    whole,
)
from veca.data.sets.folders import class_folders
from veca.data.sets.segmentation import VOC, read_mask


def doubled(path: str) -> Target:
    """A target that tells which file it was read from."""
    return np.full((2, 3), len(Path(path).name), np.uint8)


def folder_split(folder: Path, *, targets: bool = False) -> Split:
    """Three images with classes, or with masks."""
    table = list_images([folder]).table
    return Split(
        name="train",
        images=table,
        keys=tuple(Path(table[row].name).name for row in range(len(table))),
        labels=None if targets else np.array([0, 1, 1]),
        targets=("a", "bb", "ccc") if targets else (),
        read_target=doubled if targets else None,
    )


def test_a_part_knows_its_pictures_by_number(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path, 3)
    part = folder_split(tmp_path)
    assert len(part) == 3
    assert [part.image(number).name for number in range(3)] == [str(path) for path in paths]


def test_targets_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    part = folder_split(tmp_path, targets=True)
    assert [int(part.target(number)[0, 0]) for number in range(3)] == [1, 2, 3]
    with pytest.raises(ValueError, match="have labels, not masks or depth"):
        folder_split(tmp_path).target(0)


def test_a_part_is_known_again_wherever_it_lies_and_not_after_a_change(tmp_path: Path) -> None:
    for name in ("here", "there"):
        write_pictures(tmp_path / name, 3)
    known = folder_split(tmp_path / "here").fingerprint()
    assert folder_split(tmp_path / "there").fingerprint() == known
    (tmp_path / "there" / "0001.png").write_bytes((tmp_path / "here" / "0002.png").read_bytes())
    assert folder_split(tmp_path / "there").fingerprint() != known


def test_a_whole_set_lacks_nothing(tmp_path: Path) -> None:
    write_pictures(tmp_path, 3)
    part = folder_split(tmp_path)
    data = LabeledDataset(name="some", kind="classes", classes=("a", "b"), train=part, test=part)
    assert data.missing == ()
    assert data.facts == {}


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
    checks = DatasetChecks("the set")
    checks.expect("classes", 3, 3)
    checks.expect_each("pictures of a class", np.array([0, 1, 1, 0]), 2, 2)
    assert checks.finish(some_set()).missing == ()


def test_all_faults_come_in_one_message() -> None:
    checks = DatasetChecks("the set")
    checks.expect("classes", 3, 1000)
    checks.expect("train images", 1_281_166, 1_281_167)
    checks.report("a list is damaged")
    with pytest.raises(DatasetError, match="the set") as told:
        checks.finish(some_set())
    message = str(told.value)
    assert "classes: 3 were found, 1,000 are published" in message
    assert "train images: 1,281,166 were found, 1,281,167 are published" in message
    assert "a list is damaged" in message
    assert "--allow-partial" in message


def test_a_partial_set_carries_its_faults() -> None:
    checks = DatasetChecks("the set", allow_partial=True)
    checks.expect("classes", 3, 10)
    checks.report("a list is damaged")
    assert checks.finish(some_set()).missing == (
        "classes: 3 were found, 10 are published",
        "a list is damaged",
    )


def test_even_a_partial_set_has_pictures_in_every_part() -> None:
    checks = DatasetChecks("the set", allow_partial=True)
    with pytest.raises(DatasetError, match="test: there are no images"):
        checks.finish(some_set(test=0))


def test_a_class_with_another_number_of_pictures_is_told_of() -> None:
    checks = DatasetChecks("the set", allow_partial=True)
    checks.expect_each("val images of a class", np.array([0, 0, 1, 2, 2]), 4, 2)
    (fault,) = checks.finish(some_set()).missing
    assert "2 are published for each class" in fault
    assert "2 of the 4 classes differ, such as number 1 with 1" in fault


def test_every_file_that_is_needed_and_missing_is_named_even_for_a_partial_set(
    tmp_path: Path,
) -> None:
    touch(tmp_path, "there.txt")
    checks = DatasetChecks("the set", allow_partial=True)
    checks.report("something else")
    with pytest.raises(DatasetError) as told:
        checks.require(*(tmp_path / name for name in ("a.txt", "there.txt", "b.txt")))
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
    checks = DatasetChecks("the set")
    found = checks.find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert found == tmp_path / below


def test_what_is_missing_is_named_in_the_folder_that_has_the_rest(tmp_path: Path) -> None:
    touch(tmp_path, "archive-1.0/images/1.jpg")
    checks = DatasetChecks("the set")
    with pytest.raises(DatasetError) as told:
        checks.find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert f"{tmp_path / 'archive-1.0' / 'list.txt'} is missing" in str(told.value)
    assert "images" not in str(told.value)


def test_a_folder_with_nothing_of_a_set_is_told_where_was_looked(tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as told:
        DatasetChecks("the set").find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert "archive-1.0" in str(told.value)
    assert f"{tmp_path / 'list.txt'} is missing" in str(told.value)
    with pytest.raises(DatasetError, match="not a folder"):
        DatasetChecks("the set").find(tmp_path / "nowhere", ("images",))


def built(folder: Path) -> Split:
    touch(folder, "b/1.jpg", "a/2.jpg")
    builder = SplitBuilder("train", folder)
    builder.add("b/1.jpg", 1)
    builder.add("a/2.jpg", 0)
    return builder.split(2, DatasetChecks("the set"))


def test_pictures_keep_their_order_sizes_and_labels(tmp_path: Path) -> None:
    found = built(tmp_path)
    assert found.name == "train"
    assert found.keys == ("b/1.jpg", "a/2.jpg")
    assert found.image(0) == ImageEntry(str(tmp_path / "b/1.jpg"), 1, None, -1)
    assert found.image(1).num_bytes == 2
    assert np.asarray(found.labels).tolist() == [1, 0]


def test_a_part_has_the_same_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    here, there = built(tmp_path / "here"), built(tmp_path / "there")
    assert here.fingerprint() == there.fingerprint()


def test_pictures_that_are_not_there_are_counted_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg")
    checks = DatasetChecks("the set", allow_partial=True)
    builder = SplitBuilder("test", tmp_path)
    for number in range(4):
        builder.add(f"{number}.jpg", number)
    found = builder.split(4, checks)
    assert found.keys == ("2.jpg",)
    assert np.asarray(found.labels).tolist() == [2]
    with pytest.raises(
        DatasetError, match=r"test: 3 of 4 images or their targets are missing, such as .*0\.jpg"
    ):
        checks.require(tmp_path / "anything")


def test_a_picture_in_a_shard_keeps_its_place(tmp_path: Path) -> None:
    shard = str(tmp_path / "a.tar")
    source = ImageEntry(f"{shard}#x/1.jpg", 7, shard, 512)
    builder = SplitBuilder("train", tmp_path)
    builder.add_found(source, 0)
    found = builder.split(1, DatasetChecks("the set"))
    assert found.image(0) == source
    assert found.keys == ("a.tar#x/1.jpg",)


def test_labels_can_stand_for_other_numbers(tmp_path: Path) -> None:
    touch(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    builder = SplitBuilder("train", tmp_path)
    for number, label in enumerate((0, 1, 0)):
        builder.add(f"{number}.jpg", label)
    found = builder.split(8, DatasetChecks("the set"), [7, 3])
    assert np.asarray(found.labels).tolist() == [7, 3, 7]


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_no_class_is_refused(tmp_path: Path, label: int) -> None:
    touch(tmp_path, "1.jpg")
    builder = SplitBuilder("train", tmp_path)
    builder.add("1.jpg", label)
    with pytest.raises(DatasetError, match="there are 2 classes"):
        builder.split(2, DatasetChecks("the set", allow_partial=True))


def test_a_part_without_pictures_is_a_part(tmp_path: Path) -> None:
    found = SplitBuilder("train", tmp_path).split(2, DatasetChecks("the set"))
    assert len(found) == 0
    assert found.keys == ()


def written(folder: Path, *names: str) -> list[Pair]:
    """Pairs whose files exist."""
    for number, name in enumerate(names):
        write_picture(folder / "a" / f"{name}.jpg", number)
        write_mask(folder / "b" / f"{name}.png", [number])
    return [Pair(f"a/{name}.jpg", f"b/{name}.png") for name in names]


def split_of(folder: Path, pairs: list[Pair], checks: DatasetChecks, name: str = "train") -> Split:
    return paired_split(name, folder, pairs, partial(read_mask, label_map=VOC), checks)


def test_pictures_stand_by_name_whatever_the_order_of_the_list(tmp_path: Path) -> None:
    pairs = written(tmp_path, "x", "z", "y")
    checks = DatasetChecks("some")
    split = split_of(tmp_path, pairs, checks)
    assert split.keys == ("a/x.jpg", "a/y.jpg", "a/z.jpg")
    assert [split.target(index)[0, 0] for index in range(3)] == [0, 2, 1]
    assert split.image(1).name == str(tmp_path / "a" / "y.jpg")
    assert split.image(1).num_bytes == (tmp_path / "a" / "y.jpg").stat().st_size
    assert split.fingerprint() == split_of(tmp_path, pairs[::-1], checks).fingerprint()


def test_the_fingerprint_is_the_same_wherever_the_folder_lies(tmp_path: Path) -> None:
    found = [
        split_of(tmp_path / place, written(tmp_path / place, "x", "y"), DatasetChecks("some"))
        for place in ("here", "there")
    ]
    assert found[0].fingerprint() == found[1].fingerprint()


def test_a_pair_without_one_of_its_files_is_left_out_and_told_of(tmp_path: Path) -> None:
    pairs = written(tmp_path, "v", "w", "x")
    (tmp_path / "a/v.jpg").unlink()
    (tmp_path / "b/x.png").unlink()
    checks = DatasetChecks("some", allow_partial=True)
    split = split_of(tmp_path, pairs, checks)
    assert split.keys == ("a/w.jpg",)
    assert len(split.targets) == 1
    with pytest.raises(DatasetError, match=r"2 of 3 images .* such as .*a/v\.jpg"):
        checks.require(tmp_path / "nowhere")


def test_targets_may_lie_elsewhere(tmp_path: Path) -> None:
    written(tmp_path, "x")
    elsewhere = tmp_path / "other" / "x.png"
    write_mask(elsewhere, [5])
    split = split_of(tmp_path, [Pair("a/x.jpg", str(elsewhere))], DatasetChecks("some"))
    assert split.targets == (str(elsewhere),)
    assert split.target(0)[0, 0] == 5


def test_a_picture_in_both_parts_is_refused_even_of_a_partial_set(tmp_path: Path) -> None:
    pairs = written(tmp_path, "x", "y", "z")
    checks = DatasetChecks("some", allow_partial=True)
    train = split_of(tmp_path, pairs[:2], checks)
    require_disjoint(train, split_of(tmp_path, pairs[2:], checks, "val"), checks)
    with pytest.raises(
        DatasetError, match=r"1 images are in 'train' and in 'val' too, such as a/y"
    ):
        require_disjoint(train, split_of(tmp_path, pairs[1:], checks, "val"), checks)


def test_files_are_found_at_any_depth_by_how_their_names_end(tmp_path: Path) -> None:
    for name in ("a/1_x.png", "a/b/2_x.png", "a/b/2_y.png", "a/b/._2_x.png", "c/3_x.png"):
        write_picture(tmp_path / name)
    assert sorted(files_below(tmp_path, "a", "_x.png")) == ["a/1_x.png", "a/b/2_x.png"]
    assert len(files_below(tmp_path, "", "_x.png")) == 3
    assert files_below(tmp_path, "nowhere", ".png") == []


def check(folder: Path) -> None:
    """Compare the two parts of class folders."""
    checks = DatasetChecks("mine", allow_partial=True)
    found = class_folders(folder, checks)
    assert isinstance(found.train, Split)
    require_no_copies(found.train, found.test, checks)


def test_the_same_file_is_refused_in_whatever_class_it_lies(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/b/y.jpg": b"1", "val/b/deep/x.jpg": b"same"})
    with pytest.raises(DatasetError, match=r"val/b/deep/x\.jpg is a copy of train/a/x\.jpg"):
        check(tmp_path)


def test_equal_names_and_sizes_of_other_content_are_no_copies(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/a/y.jpg": b"12", "val/a/x.jpg": b"else"})
    check(tmp_path)


def test_a_member_of_a_shard_is_compared_with_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "val/a/other.png")
    (tmp_path / "train").mkdir()
    write_shard(tmp_path / "train/a.tar", [("deep/4.png", encoded(4)), ("5.png", encoded(5))])
    check(tmp_path)
    write(tmp_path, {"val/a/4.png": encoded(4)})
    with pytest.raises(DatasetError, match=r"val/a/4\.png is a copy of train/a\.tar#deep/4\.png"):
        check(tmp_path)


def test_files_that_are_gone_are_left_to_whoever_reads_them(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "val/a/x.jpg": b"same"})
    checks = DatasetChecks("mine")
    found = class_folders(tmp_path, checks)
    (tmp_path / "val/a/x.jpg").unlink()
    assert found.train is not None
    require_no_copies(found.train, found.test, checks)
    (tmp_path / "train/a/x.jpg").unlink()
    require_no_copies(found.train, found.test, checks)


def test_only_so_many_files_are_read_and_rare_agreements_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_COMPARED", 2)
    common = {f"train/{name}/0.jpg": name.encode() for name in "abcd"}
    write(tmp_path, {**common, "val/a/0.jpg": b"a"})
    check(tmp_path)
    write(tmp_path, {"train/a/rare.jpg": b"x", "val/a/rare.jpg": b"x"})
    with pytest.raises(DatasetError, match=r"val/a/rare\.jpg is a copy of train/a/rare\.jpg"):
        check(tmp_path)


def test_lines_come_without_the_white_space_around_them(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "a b\r\n\n  c\n   \nd"})
    assert list(lines(tmp_path / "list.txt")) == ["a b", "c", "d"]


def test_a_name_that_is_no_text_is_kept(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": b"\xff.jpg\n"})
    assert list(lines(tmp_path / "list.txt")) == ["\udcff.jpg"]


def test_the_last_column_keeps_its_spaces(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "1025794 707-320\n0001  F/A-18 Hornet\n"})
    assert list(rows(tmp_path / "list.txt", 2)) == [
        ["1025794", "707-320"],
        ["0001", "F/A-18 Hornet"],
    ]


def test_a_line_with_too_few_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "a 1\nb\n"})
    with pytest.raises(DatasetError, match=r"list\.txt has the line 'b'"):
        list(rows(tmp_path / "list.txt", 2))


def test_what_is_no_number_is_refused_by_the_name_of_its_list(tmp_path: Path) -> None:
    assert whole(" 12", tmp_path / "list.txt") == 12
    with pytest.raises(DatasetError, match=r"list\.txt has 'one' in place of an integer"):
        whole("one", tmp_path / "list.txt")


def test_json_is_read_and_damaged_json_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"good.json": '{"a": [1]}', "cut.json": '{"a": [1'})
    assert read_json(tmp_path / "good.json") == {"a": [1]}
    with pytest.raises(DatasetError, match=r"cut\.json is not a JSON file"):
        read_json(tmp_path / "cut.json")
