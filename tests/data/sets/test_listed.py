"""Food, pets, birds, aircraft and textures are labeled by their makers' lists."""

import json
from pathlib import Path

import pytest

from tests.data.sets.miniatures import (
    Maker,
    Reader,
    complaint,
    complete,
    labels,
    part,
    touch,
    write,
)
from veca.data.sets.classification import cub_200, dtd, fgvc_aircraft, food101, oxford_pets


def food(folder: Path) -> Path:
    """The files of a part list their classes in another order than the classes have."""
    parts = {
        "train": {"waffles": ["waffles/9"], "apple_pie": ["apple_pie/2", "apple_pie/1"]},
        "test": {"waffles": ["waffles/3"], "apple_pie": ["apple_pie/4"]},
    }
    files = {f"meta/{part}.json": json.dumps(listed) for part, listed in parts.items()}
    pictures = [
        f"images/{name}.jpg" for part in parts.values() for some in part.values() for name in some
    ]
    touch(folder, *pictures)
    return write(folder, files | {"meta/classes.txt": "apple_pie\nwaffles\n"})


@pytest.mark.parametrize("below", ["", "food-101"])
def test_food_is_labeled_by_its_json_files(tmp_path: Path, below: str) -> None:
    food(tmp_path / below)
    found = part(food101, tmp_path)
    assert found.classes == ("apple_pie", "waffles")
    assert labels(found.train) == {
        "images/apple_pie/2.jpg": 0,
        "images/apple_pie/1.jpg": 0,
        "images/waffles/9.jpg": 1,
    }
    assert labels(found.test) == {"images/apple_pie/4.jpg": 0, "images/waffles/3.jpg": 1}


def test_food_that_names_other_classes_is_refused(tmp_path: Path) -> None:
    food(tmp_path)
    write(tmp_path, {"meta/test.json": '{"soup": ["soup/1"]}'})
    assert "is no map from the names in classes.txt" in complaint(food101, tmp_path)
    write(tmp_path, {"meta/test.json": "[]"})
    assert "is no map from the names in classes.txt" in complaint(food101, tmp_path)


def pets(folder: Path) -> Path:
    """Breeds of cats and dogs are counted apart in the last column, which must not be the label."""
    touch(
        folder, *(f"images/{name}.jpg" for name in ("Abyssinian_100", "Abyssinian_2", "beagle_7"))
    )
    touch(
        folder, "images/american_bulldog_10.jpg", "images/beagle_8.jpg", "images/Abyssinian_1.mat"
    )
    return write(
        folder,
        {
            "annotations/trainval.txt": "Abyssinian_100 1 1 1\namerican_bulldog_10 2 2 1\n"
            "beagle_7 3 2 2\n",
            "annotations/test.txt": "Abyssinian_2 1 1 1\nbeagle_8 3 2 2\n",
        },
    )


@pytest.mark.parametrize("below", ["", "oxford-iiit-pet"])
def test_classes_of_pets_are_counted_from_one_in_the_lists(tmp_path: Path, below: str) -> None:
    pets(tmp_path / below)
    counts = {"classes": 3, "trainval pictures": 3, "test pictures": 2}
    found = complete(oxford_pets, tmp_path, counts)
    assert found.classes == ("Abyssinian", "american_bulldog", "beagle")
    assert labels(found.train) == {
        "images/Abyssinian_100.jpg": 0,
        "images/american_bulldog_10.jpg": 1,
        "images/beagle_7.jpg": 2,
    }
    assert labels(found.test) == {"images/Abyssinian_2.jpg": 0, "images/beagle_8.jpg": 2}
    assert found.per_class


def test_pets_without_a_breed_keep_the_numbers_of_the_others(tmp_path: Path) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/trainval.txt": "beagle_7 3 2 2\n"})
    write(tmp_path, {"annotations/test.txt": "Abyssinian_2 1 1 1\n"})
    found = part(oxford_pets, tmp_path)
    assert found.classes == ("Abyssinian", "1", "beagle")
    assert labels(found.train) == {"images/beagle_7.jpg": 2}


@pytest.mark.parametrize("line", ["Abyssinian_100 0 1 1", "Abyssinian_100 x 1 1", "Abyssinian_100"])
def test_a_damaged_list_of_pets_is_refused(tmp_path: Path, line: str) -> None:
    pets(tmp_path)
    write(tmp_path, {"annotations/trainval.txt": line})
    assert "again" in complaint(oxford_pets, tmp_path)


def birds(folder: Path) -> Path:
    """Every list is in an order of its own."""
    touch(folder, *(f"images/{name}.jpg" for name in ("001.Albatross/A_1", "001.Albatross/A_2")))
    touch(folder, *(f"images/{name}.jpg" for name in ("002.Auklet/B_1", "010.Bunting/C_1")))
    return write(
        folder,
        {
            "classes.txt": "10 010.Bunting\n1 001.Albatross\n2 002.Auklet\n",
            "images.txt": "4 010.Bunting/C_1.jpg\n1 001.Albatross/A_1.jpg\n"
            "2 001.Albatross/A_2.jpg\n3 002.Auklet/B_1.jpg\n",
            "image_class_labels.txt": "1 1\n3 2\n2 1\n4 10\n",
            "train_test_split.txt": "2 0\n4 1\n1 1\n3 0\n",
        },
    )


@pytest.mark.parametrize("below", ["", "CUB_200_2011"])
def test_the_lists_of_birds_are_joined_by_id(tmp_path: Path, below: str) -> None:
    birds(tmp_path / below)
    counts = {"classes": 3, "pictures": 4, "train pictures": 2, "test pictures": 2}
    found = complete(cub_200, tmp_path, counts)
    assert found.classes == ("Albatross", "Auklet", "Bunting")
    assert labels(found.train) == {
        "images/010.Bunting/C_1.jpg": 2,
        "images/001.Albatross/A_1.jpg": 0,
    }
    assert labels(found.test) == {
        "images/001.Albatross/A_2.jpg": 0,
        "images/002.Auklet/B_1.jpg": 1,
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n"),
        ("image_class_labels.txt", "1 1\n2 1\n3 2\n4 11\n"),
        ("train_test_split.txt", "1 1\n2 1\n3 0\n4 2\n"),
        ("train_test_split.txt", "1 1\n2 1\n3 0\n"),
    ],
)
def test_a_bird_without_class_or_part_is_refused(tmp_path: Path, name: str, content: str) -> None:
    birds(tmp_path)
    write(tmp_path, {name: content})
    assert "picture 4, 010.Bunting/C_1.jpg, has the class" in complaint(cub_200, tmp_path)


def test_a_class_of_birds_that_is_no_number_is_refused(tmp_path: Path) -> None:
    birds(tmp_path)
    write(tmp_path, {"classes.txt": "one 001.Albatross\n"})
    message = complaint(cub_200, tmp_path)
    assert "classes.txt has 'one' where a whole number belongs" in message


def aircraft(folder: Path) -> Path:
    touch(folder, *(f"data/images/{number:07d}.jpg" for number in range(4)))
    return write(
        folder,
        {
            "data/variants.txt": "707-320\nF/A-18\nModel B200\n",
            "data/images_variant_train.txt": "0000000 Model B200\n0000001 707-320\n",
            "data/images_variant_val.txt": "0000002 F/A-18\n",
            "data/images_variant_test.txt": "0000003 Model B200\n",
        },
    )


@pytest.mark.parametrize("below", ["", "fgvc-aircraft-2013b"])
def test_aircraft_are_labeled_by_variant(tmp_path: Path, below: str) -> None:
    aircraft(tmp_path / below)
    counts = {"classes": 3, "train pictures": 2, "val pictures": 1, "test pictures": 1}
    found = complete(fgvc_aircraft, tmp_path, counts)
    assert found.classes == ("707-320", "F/A-18", "Model B200")
    assert labels(found.train) == {"data/images/0000000.jpg": 2, "data/images/0000001.jpg": 0}
    assert labels(found.val) == {"data/images/0000002.jpg": 1}
    assert labels(found.test) == {"data/images/0000003.jpg": 2}
    assert found.per_class


def test_an_unknown_variant_is_refused(tmp_path: Path) -> None:
    aircraft(tmp_path)
    write(tmp_path, {"data/images_variant_val.txt": "0000002 Concorde\n"})
    assert "'Concorde', which is not in variants.txt" in complaint(fgvc_aircraft, tmp_path)


def textures(folder: Path) -> Path:
    names = {"train": ("zigzagged", "banded"), "val": ("banded", "zigzagged"), "test": ("banded",)}
    for place, (part_, classes) in enumerate(names.items()):
        listed = [f"{class_}/{class_}_{place:04d}.jpg" for class_ in classes]
        touch(folder / "images", *listed)
        write(folder, {f"labels/{part_}1.txt": "\n".join(listed)})
    return folder


@pytest.mark.parametrize("below", ["", "dtd"])
def test_textures_come_in_three_parts(tmp_path: Path, below: str) -> None:
    textures(tmp_path / below)
    found = part(dtd, tmp_path)
    assert found.classes == ("banded", "zigzagged")
    assert labels(found.train) == {
        "images/zigzagged/zigzagged_0000.jpg": 1,
        "images/banded/banded_0000.jpg": 0,
    }
    assert list(labels(found.val).values()) == [0, 1]
    assert labels(found.test) == {"images/banded/banded_0002.jpg": 0}
    assert found.facts == {"partition": "1 of 10"}


@pytest.mark.parametrize(
    ("reader", "made", "counts"),
    [
        (food101, food, ("101", "75,750", "25,250", "750 are published for each", "250 are pub")),
        (oxford_pets, pets, ("37", "trainval pictures: 3 were found, 3,680", "3,669")),
        (cub_200, birds, ("200", "11,788", "5,994", "5,794")),
        (
            fgvc_aircraft,
            aircraft,
            ("100", "3,334", "val pictures: 1 were found, 3,333", "test pic"),
        ),
        (dtd, textures, ("47", "train pictures: 2 were found, 1,880", "40 are published for each")),
    ],
)
def test_all_counts_of_listed_sets_are_asserted(
    tmp_path: Path, reader: Reader, made: Maker, counts: tuple[str, ...]
) -> None:
    made(tmp_path)
    message = complaint(reader, tmp_path)
    for count in counts:
        assert count in message


@pytest.mark.parametrize(
    ("reader", "made", "name"),
    [
        (food101, food, "meta/test.json"),
        (oxford_pets, pets, "annotations/test.txt"),
        (cub_200, birds, "image_class_labels.txt"),
        (fgvc_aircraft, aircraft, "data/variants.txt"),
        (dtd, textures, "labels/val1.txt"),
    ],
)
def test_a_list_that_is_missing_is_named(
    tmp_path: Path, reader: Reader, made: Maker, name: str
) -> None:
    made(tmp_path)
    (tmp_path / name).unlink()
    assert f"{tmp_path / name} is missing" in complaint(reader, tmp_path)
