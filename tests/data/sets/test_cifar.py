"""CIFAR's binary records are pictures that can be opened where they lie."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.data.sets.miniatures import Maker, Reader, complaint, complete, labels, part, write
from veca.data.images import decode
from veca.data.listing import open_image
from veca.data.sets.classification import cifar_10, cifar_100
from veca.data.sets.dataset import Split

TEN_NAMES = "airplane\nautomobile\nbird\n\n"


def records(*told: tuple[int, ...], seed: int = 0) -> bytes:
    """Labels, each before 3,072 numbers of chance."""
    numbers = np.random.default_rng(seed).integers(0, 256, (len(told), 3072), np.uint8)
    return b"".join(
        bytes(labels) + row.tobytes() for labels, row in zip(told, numbers, strict=True)
    )


def ten(folder: Path) -> Path:
    batches = {
        f"data_batch_{number}.bin": records((number % 3,), seed=number) for number in range(1, 5)
    }
    last = {
        "data_batch_5.bin": records((2,), (0,), seed=5),
        "test_batch.bin": records((1,), seed=6),
    }
    return write(folder, batches | last | {"batches.meta.txt": TEN_NAMES})


def hundred(folder: Path) -> Path:
    """The superclass comes first, and is not the label."""
    return write(
        folder,
        {
            "train.bin": records((19, 1), (3, 0)),
            "test.bin": records((7, 2), seed=1),
            "fine_label_names.txt": "apple\naquarium_fish\nbaby\n",
            "coarse_label_names.txt": "aquatic_mammals\nfish\n",
        },
    )


def pixels(split: Split | None, row: int) -> NDArray[np.uint8]:
    assert split is not None
    with open_image(split.image(row)) as file:
        return np.asarray(decode(file).pixels(), np.uint8)


@pytest.mark.parametrize("below", ["", "cifar-10-batches-bin"])
def test_batches_of_cifar_10_follow_each_other(tmp_path: Path, below: str) -> None:
    ten(tmp_path / below)
    found = part(cifar_10, tmp_path)
    assert found.classes == ("airplane", "automobile", "bird")
    assert list(labels(found.train).values()) == [1, 2, 0, 1, 2, 0]
    assert list(labels(found.train))[-1] == "data_batch_5.bin#00001.planar-rgb"
    assert list(labels(found.test).values()) == [1]


@pytest.mark.parametrize("below", ["", "cifar-100-binary"])
def test_the_fine_labels_of_cifar_100_count(tmp_path: Path, below: str) -> None:
    hundred(tmp_path / below)
    found = part(cifar_100, tmp_path)
    assert found.classes == ("apple", "aquarium_fish", "baby")
    assert list(labels(found.train).values()) == [1, 0]
    assert list(labels(found.test).values()) == [2]


def test_the_pixels_of_a_record_are_its_three_planes(tmp_path: Path) -> None:
    found = part(cifar_100, hundred(tmp_path))
    raw = np.frombuffer((tmp_path / "train.bin").read_bytes(), np.uint8).reshape(2, 3074)
    for row in range(2):
        wanted = raw[row, 2:].reshape(3, 32, 32)
        np.testing.assert_array_equal(pixels(found.train, row), wanted)


def test_a_whole_cifar_has_as_many_of_each_class(tmp_path: Path) -> None:
    ten(tmp_path)
    write(tmp_path, {"test_batch.bin": records((1,), (0,), (2,))})
    counts = {
        "classes": 3,
        "train pictures": 6,
        "train pictures of a class": 2,
        "test pictures": 3,
        "test pictures of a class": 1,
    }
    assert list(labels(complete(cifar_10, tmp_path, counts).test).values()) == [1, 0, 2]


@pytest.mark.parametrize(
    ("reader", "made", "counts"),
    [
        (cifar_10, ten, ("classes: 3 were found, 10", "50,000", "10,000", "5,000 are published")),
        (
            cifar_100,
            hundred,
            ("classes: 3 were found, 100", "50,000", "10,000", "500 are", "100 are"),
        ),
    ],
)
def test_all_counts_of_cifar_are_asserted(
    tmp_path: Path, reader: Reader, made: Maker, counts: tuple[str, ...]
) -> None:
    message = complaint(reader, made(tmp_path))
    for count in counts:
        assert count in message


def test_a_file_that_was_cut_is_told_of_and_read_as_far_as_it_goes(tmp_path: Path) -> None:
    hundred(tmp_path)
    whole = (tmp_path / "train.bin").read_bytes()
    (tmp_path / "train.bin").write_bytes(whole[:-1])
    assert "has 6,147 bytes, no multiple of 3,074" in complaint(cifar_100, tmp_path)
    assert list(labels(part(cifar_100, tmp_path).train).values()) == [1]


def test_the_pickled_version_is_not_read_and_the_other_one_is_named(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-py", {"data_batch_1": b"x", "batches.meta": b"x"})
    message = complaint(cifar_10, tmp_path)
    assert "the binary version is needed" in message
    assert "data_batch_1.bin is missing" in message
