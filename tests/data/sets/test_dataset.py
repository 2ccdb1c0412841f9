"""Datasets are found by name or layout; splits, published counts, copies and lists are checked."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import encoded, write_shard
from tests.data.sets.layouts import touch, write, write_mask, write_picture
from tests.data.sets.test_classification import (
    aircraft,
    birds,
    cars,
    flowers,
    food,
    hundred,
    make_voc2007,
    objects,
    pets,
    places,
    sun,
    ten,
    textures,
)
from tests.data.sets.test_imagenet import FISH, TRAIN, VAL
from tests.data.sets.test_segmentation import (
    KITTI_LAYOUTS,
    NYU_LAYOUTS,
    add_sbd,
    make_ade20k,
    make_cityscapes,
    make_context,
    make_voc,
    write_coco,
    write_frame,
    write_kitti,
    write_nyu,
)
from veca.data.listing import ImageEntry
from veca.data.sets import dataset as dataset_module
from veca.data.sets.dataset import (
    DatasetChecks,
    DatasetError,
    LabeledDataset,
    Split,
    build_split,
    files_below,
    lines,
    paired_dataset,
    parse_int,
    read_json,
    require_disjoint,
    require_no_copies,
    rows,
)
from veca.data.sets.folders import class_folders
from veca.data.sets.registry import SETS, read_set
from veca.data.sets.segmentation import VOC, read_mask


def split(folder: Path, *labels: int, name: str = "train") -> Split:
    """Images with these labels."""
    names = [f"{name}/{number}.jpg" for number in range(len(labels))]
    touch(folder, *names)
    images = zip(names, labels, strict=True)
    return build_split(name, folder, images, DatasetChecks("the set"))


def test_images_keep_their_order_sizes_and_labels(tmp_path: Path) -> None:
    touch(tmp_path, "b/1.jpg", "a/2.jpg")
    images = [("b/1.jpg", 1), ("a/2.jpg", 0)]
    found = build_split("train", tmp_path, images, DatasetChecks("the set"))
    assert (found.name, len(found), found.keys) == ("train", 2, ("b/1.jpg", "a/2.jpg"))
    assert found.image(0) == ImageEntry(str(tmp_path / "b/1.jpg"), 1)
    assert found.image(1).num_bytes == 2
    assert np.asarray(found.labels).tolist() == [1, 0]
    with pytest.raises(ValueError, match="have labels, not masks or depth"):
        found.target(0)


def test_the_fingerprint_depends_on_names_and_sizes_but_not_on_the_folder(tmp_path: Path) -> None:
    here, there = split(tmp_path / "here", 0, 0), split(tmp_path / "there", 0, 0)
    assert here.fingerprint() == there.fingerprint()
    write(tmp_path, {"there/train/1.jpg": b"longer"})
    images = [(key, 0) for key in there.keys]
    changed = build_split("train", tmp_path / "there", images, DatasetChecks("the set"))
    assert changed.fingerprint() != here.fingerprint()


def test_missing_images_are_counted_and_left_out(tmp_path: Path) -> None:
    touch(tmp_path, "2.jpg")
    checks = DatasetChecks("the set", allow_partial=True)
    images = [(f"{number}.jpg", number) for number in range(4)]
    found = build_split("test", tmp_path, images, checks)
    assert (found.keys, np.asarray(found.labels).tolist()) == (("2.jpg",), [2])
    words = r"test: 3 of 4 images or their targets are missing, such as .*0\.jpg"
    with pytest.raises(DatasetError, match=words):
        checks.require(tmp_path / "anything")


def test_an_image_in_a_shard_keeps_its_position(tmp_path: Path) -> None:
    shard = str(tmp_path / "a.tar")
    entry = ImageEntry(f"{shard}#x/1.jpg", 7, shard, 512)
    found = build_split("train", tmp_path, [(entry, 0)], DatasetChecks("the set"))
    assert (found.image(0), found.keys) == (entry, ("a.tar#x/1.jpg",))


def masks(
    folder: Path, checks: DatasetChecks, train: list[tuple[str, str]], val: list[tuple[str, str]]
) -> LabeledDataset:
    read = partial(read_mask, label_map=VOC)
    return paired_dataset("masks", folder, read, {"train": train, "val": val}, checks)


def pairs(folder: Path, *names: str) -> list[tuple[str, str]]:
    """Pairs of an image and its mask."""
    for number, name in enumerate(names):
        write_picture(folder / "a" / f"{name}.jpg", number)
        write_mask(folder / "b" / f"{name}.png", [number])
    return [(f"a/{name}.jpg", f"b/{name}.png") for name in names]


def test_pairs_are_sorted_by_name(tmp_path: Path) -> None:
    some = pairs(tmp_path, "x", "z", "y")
    found = masks(tmp_path, DatasetChecks("some"), some, some[::-1])
    for part in found.splits():
        assert part.keys == ("a/x.jpg", "a/y.jpg", "a/z.jpg")
        assert [part.target(index)[0, 0] for index in range(3)] == [0, 2, 1]


def test_a_pair_without_one_of_its_files_is_left_out_and_reported(tmp_path: Path) -> None:
    some = pairs(tmp_path, "v", "w", "x")
    (tmp_path / "a/v.jpg").unlink()
    (tmp_path / "b/x.png").unlink()
    checks = DatasetChecks("some")
    found = masks(tmp_path, checks, some, some[1:2])
    assert found.splits()[0].keys == found.test.keys == ("a/w.jpg",)
    assert len(found.splits()[0].targets) == 1
    with pytest.raises(DatasetError, match=r"2 of 3 images .* such as .*a/v\.jpg"):
        checks.finish(found)


def test_targets_may_lie_elsewhere(tmp_path: Path) -> None:
    ((image, _),) = pairs(tmp_path, "x")
    elsewhere = tmp_path / "other" / "x.png"
    write_mask(elsewhere, [5])
    some = [(image, str(elsewhere))]
    found = masks(tmp_path, DatasetChecks("some"), some, some).test
    assert found.targets == (str(elsewhere),)
    assert found.target(0)[0, 0] == 5


def dataset(
    checks: DatasetChecks, folder: Path, labels: Sequence[int], counts: dict[str, int]
) -> LabeledDataset:
    """Two splits with these published counts."""
    splits = [split(folder, *labels), split(folder, 0, name="test")]
    return checks.dataset("classes", splits, counts, classes=("a", "b"))


def test_a_complete_dataset_is_returned_as_it_is(tmp_path: Path) -> None:
    checks = DatasetChecks("the set")
    counts = {"classes": 2, "train": 4, "train/class": 2, "test": 1}
    found = dataset(checks, tmp_path, (0, 1, 1, 0), counts)
    assert checks.finish(found) == found
    assert (found.missing, found.val, found.facts) == ((), None, {})


def test_all_faults_are_in_one_message_and_in_a_partial_dataset(tmp_path: Path) -> None:
    faults = (
        "a list is damaged",
        "classes: 2 were found, 1,000 are published",
        "train images: 3 were found, 1,281,167 are published",
        "train images of a class: 2 are published for each class, but 1 of the 2 classes differ, "
        "such as number 0 with 1",
    )
    for allow_partial in (False, True):
        checks = DatasetChecks("the set", allow_partial=allow_partial)
        checks.report(faults[0])
        counts = {"classes": 1000, "train": 1_281_167, "train/class": 2}
        found = dataset(checks, tmp_path, (0, 1, 1), counts)
        if allow_partial:
            assert checks.finish(found).missing == faults
        else:
            with pytest.raises(DatasetError, match=r"the set.*--allow-partial") as error:
                checks.finish(found)
            assert all(fault in str(error.value) for fault in faults)


def test_even_a_partial_dataset_has_images_in_every_split(tmp_path: Path) -> None:
    checks = DatasetChecks("the set", allow_partial=True)
    with pytest.raises(DatasetError, match="train: there are no images"):
        checks.finish(dataset(checks, tmp_path, (), {}))


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_that_is_not_a_class_is_refused(tmp_path: Path, label: int) -> None:
    with pytest.raises(DatasetError, match="there are 2 classes"):
        dataset(DatasetChecks("the set", allow_partial=True), tmp_path, (label,), {})


def test_all_missing_files_are_named_even_for_a_partial_dataset(tmp_path: Path) -> None:
    touch(tmp_path, "there.txt")
    checks = DatasetChecks("the set", allow_partial=True)
    checks.report("something else")
    with pytest.raises(DatasetError) as error:
        checks.require(*(tmp_path / name for name in ("a.txt", "there.txt", "b.txt")))
    message = str(error.value)
    assert f"{tmp_path / 'a.txt'} is missing" in message
    assert f"{tmp_path / 'b.txt'} is missing" in message
    assert "something else" in message
    assert "there.txt" not in message


@pytest.mark.parametrize("below", ["", "archive-1.0"])
def test_a_dataset_is_found_in_the_given_folder_or_in_that_of_its_archive(
    tmp_path: Path, below: str
) -> None:
    touch(tmp_path / below, "images/1.jpg", "list.txt")
    checks = DatasetChecks("the set")
    found = checks.find(tmp_path, ("images", "list.txt"), ("archive-1.0",))
    assert found == tmp_path / below


def test_missing_files_are_named_in_the_folder_that_has_the_others(tmp_path: Path) -> None:
    def complaint(folder: Path) -> str:
        with pytest.raises(DatasetError) as error:
            DatasetChecks("the set").find(folder, ("images", "list.txt"), ("archive-1.0",))
        return str(error.value)

    assert "archive-1.0" in complaint(tmp_path)
    assert f"{tmp_path / 'list.txt'} is missing" in complaint(tmp_path)
    assert "not a folder" in complaint(tmp_path / "nowhere")
    touch(tmp_path, "archive-1.0/images/1.jpg")
    assert f"{tmp_path / 'archive-1.0' / 'list.txt'} is missing" in complaint(tmp_path)
    assert "images" not in complaint(tmp_path)


def test_an_image_in_two_splits_is_refused(tmp_path: Path) -> None:
    some = pairs(tmp_path, "x", "y", "z")
    checks = DatasetChecks("some", allow_partial=True)
    train, val = masks(tmp_path, checks, some[:2], some[2:]).splits()
    require_disjoint(train, val, checks)
    _, other = masks(tmp_path, checks, some[:2], some[1:]).splits()
    with pytest.raises(DatasetError, match=r"1 images are in 'train' and in 'val' too, .* a/y"):
        require_disjoint(train, other, checks)


def test_files_are_found_at_any_depth_by_the_end_of_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "a/1_x.png", "a/b/2_x.png", "a/b/2_y.png", "a/b/._2_x.png", "c/3_x.png")
    assert sorted(files_below(tmp_path, "a", "_x.png")) == ["a/1_x.png", "a/b/2_x.png"]
    assert len(files_below(tmp_path, "", "_x.png")) == 3
    assert files_below(tmp_path, "nowhere", ".png") == []


def check_copies(folder: Path) -> None:
    """Compare the splits of class folders."""
    checks = DatasetChecks("mine", allow_partial=True)
    train, val = class_folders(folder, checks).splits()
    require_no_copies(train, val, checks)


def test_a_copy_of_a_file_is_refused_in_any_class(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/b/y.jpg": b"1", "val/b/deep/x.jpg": b"same"})
    with pytest.raises(DatasetError, match=r"val/b/deep/x\.jpg is a copy of train/a/x\.jpg"):
        check_copies(tmp_path)


def test_equal_names_and_sizes_of_other_content_are_not_copies(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "train/a/y.jpg": b"12", "val/a/x.jpg": b"else"})
    check_copies(tmp_path)


def test_a_member_of_a_shard_is_compared_with_a_file(tmp_path: Path) -> None:
    touch(tmp_path, "val/a/other.png")
    (tmp_path / "train").mkdir()
    write_shard(tmp_path / "train/a.tar", [("deep/4.png", encoded(4)), ("5.png", encoded(5))])
    check_copies(tmp_path)
    write(tmp_path, {"val/a/4.png": encoded(4)})
    with pytest.raises(DatasetError, match=r"val/a/4\.png is a copy of train/a\.tar#deep/4\.png"):
        check_copies(tmp_path)


def test_files_that_are_gone_are_not_compared(tmp_path: Path) -> None:
    write(tmp_path, {"train/a/x.jpg": b"same", "val/a/x.jpg": b"same"})
    checks = DatasetChecks("mine")
    train, val = class_folders(tmp_path, checks).splits()
    (tmp_path / "val/a/x.jpg").unlink()
    require_no_copies(train, val, checks)


def test_at_most_some_files_are_read_and_rare_agreements_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "MAX_COMPARED", 2)
    common = {f"train/{name}/0.jpg": name.encode() for name in "abcd"}
    write(tmp_path, {**common, "val/a/0.jpg": b"a"})
    check_copies(tmp_path)
    write(tmp_path, {"train/a/rare.jpg": b"x", "val/a/rare.jpg": b"x"})
    with pytest.raises(DatasetError, match=r"val/a/rare\.jpg is a copy of train/a/rare\.jpg"):
        check_copies(tmp_path)


def test_lines_are_stripped_and_names_need_not_be_utf_8(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": b"a b\r\n\n  c\n   \n\xff.jpg"})
    assert list(lines(tmp_path / "list.txt")) == ["a b", "c", "\udcff.jpg"]


def test_the_last_column_keeps_its_spaces(tmp_path: Path) -> None:
    write(tmp_path, {"list.txt": "1025794 707-320\n0001  F/A-18 Hornet\nb\n"})
    found = rows(tmp_path / "list.txt", 2)
    assert [next(found), next(found)] == [["1025794", "707-320"], ["0001", "F/A-18 Hornet"]]
    with pytest.raises(DatasetError, match=r"list\.txt has the line 'b'"):
        next(found)


def test_damaged_lists_are_named(tmp_path: Path) -> None:
    assert parse_int(" 12", tmp_path / "list.txt") == 12
    with pytest.raises(DatasetError, match=r"list\.txt has 'one' in place of an integer"):
        parse_int("one", tmp_path / "list.txt")
    write(tmp_path, {"good.json": '{"a": [1]}', "cut.json": '{"a": [1'})
    assert read_json(tmp_path / "good.json") == {"a": [1]}
    with pytest.raises(DatasetError, match=r"cut\.json is not a JSON file"):
        read_json(tmp_path / "cut.json")


@pytest.mark.parametrize("name", sorted(SETS))
def test_every_reader_names_what_is_missing_in_an_empty_folder(tmp_path: Path, name: str) -> None:
    for allow_partial in (False, True):
        with pytest.raises(DatasetError, match="missing") as error:
            read_set(f"{name}={tmp_path}", allow_partial=allow_partial)
        assert name in str(error.value)
        assert str(tmp_path) in str(error.value)


def test_an_image_in_train_and_test_is_refused_even_in_a_partial_dataset(
    tmp_path: Path,
) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/test.txt": "beagle_7 3 2 2\n"})
    with pytest.raises(DatasetError, match="1 images are in 'trainval' and in 'test' too"):
        read_set(f"oxford-pets={tmp_path}", allow_partial=True)


def test_a_copy_of_a_training_image_is_refused_where_splits_are_folders(tmp_path: Path) -> None:
    files = {"train/a/1.jpg": b"one", "train/b/2.jpg": b"two", "test/a/3.jpg": b"more"}
    write(tmp_path, {**files, "val/b/1.jpg": b"six"})
    assert read_set(str(tmp_path)).val is not None
    write(tmp_path, {"val/b/1.jpg": b"one"})
    with pytest.raises(DatasetError, match=r"val/b/1\.jpg is a copy of train/a/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)
    write(tmp_path, {"val/b/1.jpg": b"six", "test/a/1.jpg": b"six"})
    with pytest.raises(DatasetError, match=r"test/a/1\.jpg is a copy of val/b/1\.jpg"):
        read_set(str(tmp_path), allow_partial=True)


def test_a_folder_may_have_any_name_and_be_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "mine=own", "train/a/1.jpg", "val/a/2.jpg")
    monkeypatch.chdir(tmp_path)
    found = read_set("mine=own")
    assert (found.name, found.kind, found.missing) == ("mine=own", "classes", ())
    assert found.test.image(0).name == str(tmp_path / "mine=own/val/a/2.jpg")


def test_an_unknown_layout_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    touch(tmp_path, "cat/1.jpg", "notes/dog.txt")
    with pytest.raises(DatasetError, match="train/<class>/ with val/<class>/") as error:
        read_set(str(tmp_path))
    assert "arrange its images like this" in str(error.value)
    assert "food101" in str(error.value)
    touch(tmp_path, "images/2.jpg")  # of a published dataset, whose other folder is no class
    with pytest.raises(DatasetError, match="train/<class>/ with val/<class>/"):
        read_set(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("oxford-pet=nowhere", "did you mean oxford-pets"),
        ("food101", "give its folder too, as in 'food101=FOLDER'"),
        ("food101=", "give its folder too"),
        ("nowhere/at/all", "check the path"),
        ("food101=nowhere/at/all", "is not a folder"),
    ],
)
def test_an_unknown_dataset_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(DatasetError) as error:
        read_set(text)
    assert hint in str(error.value)
    assert "food101" in str(error.value)


def make_imagenet(folder: Path) -> None:
    touch(folder, *TRAIN, f"val/{FISH}/{VAL.format(1)}")


def make_imagenet_v2(folder: Path) -> None:
    touch(folder, *(f"{number}/a.jpeg" for number in range(12)))


def make_imagenet_real(folder: Path) -> None:
    write(folder, {"real.json": "[[1], [2]]"})
    touch(folder, f"val/{VAL.format(1)}")


def make_voc_aug(folder: Path) -> None:
    add_sbd(make_voc(folder).parent / "benchmark_RELEASE/dataset")


def make_coco(folder: Path) -> None:
    write_coco(folder, "images", "annotations")


def make_nyu(folder: Path) -> None:
    write_nyu(folder, *NYU_LAYOUTS[0])


def make_nyu_labeled(folder: Path) -> None:
    for part, number in (("train", 1), ("test", 0)):
        write_frame(folder / "official_splits" / part, "basement", number)


def make_kitti(folder: Path) -> None:
    write_kitti(folder, *KITTI_LAYOUTS[0])


PUBLISHED: dict[str, tuple[Callable[[Path], object], str]] = {
    "imagenet-1k": (make_imagenet, "1,000; 1,281,167; 50,000; 50 are published for each"),
    "imagenet-v2": (make_imagenet_v2, "1,000; 10,000; 10 are published for each"),
    "imagenet-real": (make_imagenet_real, "50,000; 50,000; 46,837"),
    "places365": (places, "365; 1,803,460; 36,500; 100 are published for each"),
    "food101": (food, "101; 75,750; 750 are published for each; 25,250; 250 are published for"),
    "sun397": (sun, "108,754; 397; 19,850; 50 are published for each; 19,850; 50 are pub"),
    "oxford-pets": (pets, "37; 3,680; 3,669"),
    "cub-200": (birds, "11,788; 200; 5,994; 5,794"),
    "cifar-10": (ten, "10; 50,000; 5,000 are published for each; 10,000; 1,000 are published for"),
    "cifar-100": (
        hundred,
        "100; 50,000; 500 are published for each; 10,000; 100 are",
    ),
    "stanford-cars": (cars, "196; 8,144; 8,041"),
    "fgvc-aircraft": (aircraft, "100; 3,334; 3,333; 3,333"),
    "voc2007": (make_voc2007, "5,011; 4,952"),
    "dtd": (textures, "47; 1,880; 40 are published for each; 1,880; 40 are; 1,880; 40 are pub"),
    "caltech-101": (objects, "102; 3,060; 6,084"),
    "flowers-102": (flowers, "102; 8,189; 1,020; 10 are published for each; 1,020; 10 are; 6,149"),
    "voc2012": (make_voc, "1,464; 1,449"),
    "voc2012-aug": (make_voc_aug, "9,118; 10,582; 1,449"),
    "pascal-context-60": (make_context, "4,998; 5,105"),
    "pascal-context-59": (make_context, "4,998; 5,105"),
    "ade20k": (make_ade20k, "20,210; 2,000"),
    "coco-stuff": (make_coco, "118,287; 5,000"),
    "coco-object": (make_coco, "118,287; 5,000"),
    "cityscapes": (make_cityscapes, "2,975; 500"),
    "nyu-v2": (make_nyu, "24,231; 654"),
    "nyu-v2-labeled": (make_nyu_labeled, "795; 654"),
    "kitti": (make_kitti, "45; 23,158; 652"),
}
"""What each dataset must hold, in the order in which it is checked."""


@pytest.mark.parametrize("name", sorted(SETS))
def test_published_counts_are_asserted(name: str, tmp_path: Path) -> None:
    assert PUBLISHED.keys() == SETS.keys()
    make, counts = PUBLISHED[name]
    make(tmp_path)
    missing = read_set(f"{name}={tmp_path}", allow_partial=True).missing
    text = " ".join(problem for problem in missing if " published" in problem)
    for count in counts.split("; "):
        place = text.find(f" {count}")
        assert place >= 0, (count, missing)
        text = text[place + 1 :]
