"""Places365 and SUN397 are read by their makers' lists."""

from pathlib import Path

import pytest

from tests.data.sets.miniatures import complaint, complete, labels, part, touch, write
from veca.data.sets.classification import places365, sun397

PLACES_LISTS = {
    "categories_places365.txt": "/a/airfield 0\n/a/apartment_building/outdoor 1\n/b/bar 2\n",
    "places365_train_standard.txt": "/b/bar/00000001.jpg 2\n"
    "/a/apartment_building/outdoor/00000001.jpg 1\n/a/airfield/00000007.jpg 0\n",
    "places365_val.txt": "Places365_val_00000001.jpg 1\nPlaces365_val_00000002.jpg 0\n"
    "Places365_val_00000003.jpg 2\n",
}
PLACES_SMALL = {
    "classes": 3,
    "train pictures": 3,
    "val pictures": 3,
    "val pictures of a class": 1,
}
PLACES_TRAIN = (
    "b/bar/00000001.jpg",
    "a/apartment_building/outdoor/00000001.jpg",
    "a/airfield/00000007.jpg",
)


def places(folder: Path, train: str, val: str) -> Path:
    write(folder, PLACES_LISTS)
    touch(folder / train, *PLACES_TRAIN)
    touch(folder / val, *(f"Places365_val_{number:08d}.jpg" for number in (1, 2, 3)))
    return folder


@pytest.mark.parametrize(
    ("train", "val"),
    [
        ("data_256_standard", "val_256"),
        ("data_256", "val_256"),
        ("data_large_standard", "val_large"),
        ("data_large", "val_large"),
    ],
)
def test_places_are_labeled_by_their_lists(tmp_path: Path, train: str, val: str) -> None:
    found = complete(places365, places(tmp_path, train, val), PLACES_SMALL)
    assert found.classes == ("airfield", "apartment_building/outdoor", "bar")
    assert labels(found.train) == {
        f"{train}/{name}": label for name, label in zip(PLACES_TRAIN, (2, 1, 0), strict=True)
    }
    assert list(labels(found.test).values()) == [1, 0, 2]
    assert found.test.name == "val"
    assert found.facts == {"pictures": train}


def test_all_counts_of_places_are_asserted(tmp_path: Path) -> None:
    folder = places(tmp_path, "data_256_standard", "val_256")
    (folder / "data_256_standard/b/bar/00000001.jpg").unlink()
    message = complaint(places365, folder)
    for count in ("365", "1,803,460", "36,500", "100 are published for each class"):
        assert count in message
    assert "train: 1 of 3 pictures are not there" in message
    assert list(labels(part(places365, folder).train).values()) == [1, 0]


def test_places_without_pictures_or_lists_are_told_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, PLACES_LISTS)
    touch(tmp_path, "val_256/1.jpg")
    assert f"{tmp_path / 'data_256_standard'} is missing" in complaint(places365, tmp_path)
    (tmp_path / "places365_val.txt").unlink()
    assert f"{tmp_path / 'places365_val.txt'} is missing" in complaint(places365, tmp_path)


def test_places_whose_classes_are_not_numbered_in_turn_are_refused(tmp_path: Path) -> None:
    folder = places(tmp_path, "data_256_standard", "val_256")
    write(folder, {"categories_places365.txt": "/a/airfield 0\n/b/bar 2\n"})
    assert "does not number its classes" in complaint(places365, folder)


SUN_CLASSES = ("/a/abbey", "/b/bow_window/indoor", "/b/bow_window/outdoor")
SUN_SMALL = {
    "classes": 3,
    "pictures": 7,
    "train pictures": 3,
    "test pictures": 3,
    "train pictures of a class": 1,
    "test pictures of a class": 1,
}


def sun(folder: Path, pictures: str, lists: str) -> Path:
    """A class has two levels, and one picture is in no list."""
    names = [f"{class_.strip('/')}/sun_{number}.jpg" for class_ in SUN_CLASSES for number in (1, 2)]
    touch(folder / pictures, *names, "a/abbey/sun_3.jpg", "a/abbey/Thumbs.db")
    write(folder / pictures, {"ClassName.txt": "\n".join(SUN_CLASSES)})
    train = "".join(f"{class_}/sun_1.jpg\n" for class_ in reversed(SUN_CLASSES))
    test = "".join(f"{class_}/sun_2.jpg\n" for class_ in SUN_CLASSES)
    write(folder / lists, {"Training_01.txt": train, "Testing_01.txt": test})
    return folder


@pytest.mark.parametrize(
    ("pictures", "lists"),
    [("", ""), ("", "Partitions"), ("SUN397", ""), ("SUN397", "SUN397/Partitions")],
)
def test_classes_of_sun_may_have_two_levels(tmp_path: Path, pictures: str, lists: str) -> None:
    found = complete(sun397, sun(tmp_path, pictures, lists), SUN_SMALL)
    assert found.classes == ("abbey", "bow_window/indoor", "bow_window/outdoor")
    assert labels(found.train) == {
        "b/bow_window/outdoor/sun_1.jpg": 2,
        "b/bow_window/indoor/sun_1.jpg": 1,
        "a/abbey/sun_1.jpg": 0,
    }
    assert list(labels(found.test).values()) == [0, 1, 2]
    assert found.facts == {"partition": "01 of 10"}


def test_all_counts_of_sun_are_asserted(tmp_path: Path) -> None:
    message = complaint(sun397, sun(tmp_path, "", ""))
    for count in ("397", "108,754", "train pictures: 3 were found, 19,850", "test pictures: 3"):
        assert count in message
    assert "50 are published for each class" in message


def test_sun_without_its_lists_names_them(tmp_path: Path) -> None:
    folder = sun(tmp_path, "SUN397", "")
    (folder / "Training_01.txt").unlink()
    (folder / "Testing_01.txt").unlink()
    message = complaint(sun397, folder)
    assert "Training_01.txt is missing" in message
    assert "Testing_01.txt is missing" in message


def test_a_picture_of_an_unknown_scene_is_refused(tmp_path: Path) -> None:
    folder = sun(tmp_path, "", "")
    write(folder, {"Testing_01.txt": "/b/bow_window/sun_2.jpg\n"})
    assert "whose class is not in ClassName.txt" in complaint(sun397, folder)
