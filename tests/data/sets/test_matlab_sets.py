"""Cars and flowers are labeled by their makers' MATLAB files."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.sets.miniatures import complaint, complete, labels, part, touch, write
from veca.data.sets.dataset import DatasetError
from veca.data.sets.matlab_sets import FLOWERS, flowers_102, read_matlab, stanford_cars

scipy_io = pytest.importorskip("scipy.io", reason="MATLAB files need scipy")


def save(path: Path, **variables: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy_io.savemat(path, variables)


def annotations(*records: tuple[str, int | None]) -> NDArray[Any]:
    """Records as in the devkit: a box, the class from 1 if it is told, the file."""
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    rows = [(1, 2, 30, 40, class_, name) for name, class_ in records]
    if any(class_ is None for _, class_ in records):
        fields.remove("class")
        rows = [(*row[:4], row[5]) for row in rows]  # type: ignore[misc]
    return np.array([rows], dtype=[(field, object) for field in fields])


def cars(folder: Path, labels_in: str = "") -> Path:
    names = np.array(["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "smart fortwo 2012"])
    save(folder / "devkit/cars_meta.mat", class_names=names.astype(object)[None])
    records = annotations(("00001.jpg", 3), ("00002.jpg", 1))
    save(folder / "devkit/cars_train_annos.mat", annotations=records)
    save(folder / "devkit/cars_test_annos.mat", annotations=annotations(("00001.jpg", None)))
    records = annotations(("00001.jpg", 2))
    save(folder / labels_in / "cars_test_annos_withlabels.mat", annotations=records)
    touch(folder, "cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg")
    return folder


@pytest.mark.parametrize("below", ["", "stanford_cars"])
@pytest.mark.parametrize("labels_in", ["", "devkit"])
def test_classes_of_cars_are_counted_from_one_in_the_files(
    tmp_path: Path, below: str, labels_in: str
) -> None:
    cars(tmp_path / below, labels_in)
    counts = {"classes": 3, "train pictures": 2, "test pictures": 1}
    found = complete(stanford_cars, tmp_path, counts)
    assert found.classes[1] == "Acura RL Sedan 2012"
    assert labels(found.train) == {"cars_train/00001.jpg": 2, "cars_train/00002.jpg": 0}
    assert labels(found.test) == {"cars_test/00001.jpg": 1}


def test_all_counts_of_cars_are_asserted(tmp_path: Path) -> None:
    message = complaint(stanford_cars, cars(tmp_path))
    for count in ("196", "8,144", "8,041"):
        assert count in message


def test_cars_need_the_file_with_the_test_labels(tmp_path: Path) -> None:
    cars(tmp_path)
    listed = tmp_path / "cars_test_annos_withlabels.mat"
    listed.unlink()
    assert f"{listed} is missing" in complaint(stanford_cars, tmp_path)
    (tmp_path / "devkit/cars_test_annos.mat").rename(listed)
    assert "has no classes, only bbox_x1" in complaint(stanford_cars, tmp_path)


def test_a_class_of_cars_that_is_no_number_is_told_with_its_file(tmp_path: Path) -> None:
    cars(tmp_path)
    records = np.array([[("00001.jpg", "three")]], dtype=[("fname", object), ("class", object)])
    save(tmp_path / "devkit/cars_train_annos.mat", annotations=records)
    message = complaint(stanford_cars, tmp_path)
    assert "cars_train_annos.mat has 'three' as the class of 00001.jpg" in message


def flowers(folder: Path) -> Path:
    """Picture n has the class 102, 1, 5, 5, 1 in turn."""
    save(folder / "imagelabels.mat", labels=np.array([[102, 1, 5, 5, 1]], np.uint8))
    parts = {"trnid": [[5, 1]], "valid": [[3]], "tstid": [[2, 4]]}
    save(folder / "setid.mat", **{name: np.array(ids, np.uint16) for name, ids in parts.items()})
    return touch(folder, *(f"jpg/image_{number:05d}.jpg" for number in range(1, 6)))


@pytest.mark.parametrize("below", ["", "flowers-102"])
def test_flowers_and_their_classes_are_counted_from_one_in_the_files(
    tmp_path: Path, below: str
) -> None:
    flowers(tmp_path / below)
    found = part(flowers_102, tmp_path)
    assert labels(found.train) == {"jpg/image_00005.jpg": 0, "jpg/image_00001.jpg": 101}
    assert labels(found.val) == {"jpg/image_00003.jpg": 4}
    assert labels(found.test) == {"jpg/image_00002.jpg": 0, "jpg/image_00004.jpg": 4}
    assert found.per_class
    assert len(found.classes) == len(set(found.classes)) == 102
    assert (found.classes[0], found.classes[101]) == ("pink primrose", "blackberry lily")


def test_all_counts_of_flowers_are_asserted(tmp_path: Path) -> None:
    message = complaint(flowers_102, flowers(tmp_path))
    for count in ("classes: 3 were found, 102", "8,189", "train pictures: 2 were found, 1,020"):
        assert count in message
    for count in ("val pictures: 1 were found, 1,020", "6,149", "10 are published for each"):
        assert count in message


def test_a_flower_without_a_label_is_refused(tmp_path: Path) -> None:
    flowers(tmp_path)
    save(tmp_path / "imagelabels.mat", labels=np.array([[1, 2, 3]], np.uint8))
    message = complaint(flowers_102, tmp_path)
    assert "setid.mat has picture 5, but imagelabels.mat has 3 labels" in message


def test_a_part_of_one_picture_is_read_too(tmp_path: Path) -> None:
    save(tmp_path / "one.mat", ids=np.array([[7]], np.uint16))
    assert read_matlab(tmp_path / "one.mat", "ids").tolist() == [7]


def test_a_damaged_matlab_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"torn.mat": b"MATLAB 5.0 MAT-file" + bytes(200)})
    with pytest.raises(DatasetError, match=r"torn\.mat has no labels that can be read"):
        read_matlab(tmp_path / "torn.mat", "labels")
    save(tmp_path / "other.mat", x=np.zeros(3))
    with pytest.raises(DatasetError, match=r"other\.mat has no labels that can be read"):
        read_matlab(tmp_path / "other.mat", "labels")


def test_without_scipy_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DatasetError, match=r"pip install veca\[probe\]"):
        read_matlab(tmp_path / "labels.mat", "labels")


def test_no_flower_is_named_twice() -> None:
    assert len(set(FLOWERS)) == len(FLOWERS) == 102
