"""The pictures of `quick`: made once, taken as they are while nothing changed, made anew else."""

import io
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from veca.data.images import DataError
from veca.data.listing import list_images
from veca.recipes import quick_pictures as module
from veca.recipes.quick_pictures import DESCRIPTION_NAME, SHARD_NAME, Part, quick_pictures
from veca.runtime.files import LOCK_NAME, lock_folder

TWO_COLORS = {"red": (200, 30, 30), "blue": (30, 30, 200)}


@pytest.fixture(autouse=True)
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[bool, list[Path]]:
    """One photograph to train on, one that is held out, whatever is installed."""
    found = {}
    for held_out, (name, color) in zip((False, True), TWO_COLORS.items(), strict=True):
        path = tmp_path / f"{name}.png"
        Image.new("RGB", (300, 200), color).save(path)
        found[held_out] = [path]

    def photographs(*, held_out: bool) -> list[Path]:
        return found[held_out]

    monkeypatch.setattr(module, "shipped_photographs", photographs)
    return found


def contents(folder: Path) -> dict[str, Image.Image]:
    """The pictures of a shard by name, read by Python's own library."""
    found: dict[str, Image.Image] = {}
    with tarfile.open(folder / SHARD_NAME, "r:") as shard:
        for member in shard.getmembers():
            file = shard.extractfile(member)
            if file is None:
                pytest.fail(f"{member.name} is no file")
            found[member.name] = Image.open(io.BytesIO(file.read()))
    return found


def state(folder: Path) -> tuple[bytes, int]:
    """The bytes of the shard, and which file it is."""
    shard = folder / SHARD_NAME
    return shard.read_bytes(), shard.stat().st_ino


def color(picture: Image.Image) -> list[int]:
    """The mean color of a picture."""
    return np.asarray(picture).mean(axis=(0, 1)).round().astype(int).tolist()


def test_half_are_crops_of_photographs_and_half_are_generated(tmp_path: Path) -> None:
    pictures = contents(quick_pictures(tmp_path / "made", 7))
    assert list(pictures) == [f"{n:06d}_red.jpg" for n in range(3)] + [
        f"{n:06d}_generated.jpg" for n in range(3, 7)
    ]
    for name, picture in pictures.items():
        assert (picture.format, picture.size, picture.mode) == ("JPEG", (160, 160), "RGB")
        near = np.abs(np.subtract(color(picture), TWO_COLORS["red"])).max() <= 2
        assert near == name.endswith("red.jpg")


def test_the_folder_is_what_training_reads(tmp_path: Path) -> None:
    found = list_images([quick_pictures(tmp_path / "made", 5)])
    assert len(found.rows) == 5
    assert not found.problems


def test_equal_settings_give_equal_bytes_and_other_seeds_others(tmp_path: Path) -> None:
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    quick_pictures(one, 6, seed=1)
    quick_pictures(two, 6, seed=1)
    quick_pictures(other, 6, seed=2)
    assert state(one)[0] == state(two)[0] != state(other)[0]
    assert (one / DESCRIPTION_NAME).read_bytes() == (two / DESCRIPTION_NAME).read_bytes()


def test_a_whole_set_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    quick_pictures(folder, 4)
    before = state(folder)
    assert quick_pictures(folder, 4) == folder
    assert state(folder) == before


def test_other_settings_or_photographs_make_it_anew(
    tmp_path: Path, shipped: dict[bool, list[Path]]
) -> None:
    folder = tmp_path / "made"
    quick_pictures(folder, 4)
    assert len(contents(quick_pictures(folder, 6))) == 6
    before = state(folder)[0]
    Image.new("RGB", (300, 200), "white").save(shipped[False][0])
    quick_pictures(folder, 6)
    assert state(folder)[0] != before


@pytest.mark.parametrize("name", [SHARD_NAME, DESCRIPTION_NAME])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_set_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    folder = quick_pictures(tmp_path / "made", 4)
    whole = (folder / SHARD_NAME).read_bytes(), (folder / DESCRIPTION_NAME).read_bytes()
    path = folder / name
    content = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    quick_pictures(folder, 4)
    assert ((folder / SHARD_NAME).read_bytes(), (folder / DESCRIPTION_NAME).read_bytes()) == whole


@pytest.mark.parametrize("text", ["[]", "{}", "null"])
def test_a_description_of_another_form_is_replaced(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / DESCRIPTION_NAME).write_text(text, "utf-8")
    assert len(contents(quick_pictures(folder, 2))) == 2


def test_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / f".{SHARD_NAME}.0123456789abcdef.tmp").write_bytes(b"half a shard")
    quick_pictures(folder, 2)
    assert {path.name for path in folder.iterdir()} <= {SHARD_NAME, DESCRIPTION_NAME, LOCK_NAME}


def test_a_failure_half_way_leaves_no_set_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = quick_pictures(tmp_path / "made", 4)

    def fails(*_: object) -> object:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_crop", fails)
        with pytest.raises(KeyboardInterrupt):
            quick_pictures(folder, 8)
    assert not (folder / DESCRIPTION_NAME).exists()
    assert len(contents(quick_pictures(folder, 8))) == 8


def test_training_and_validation_share_no_picture(tmp_path: Path) -> None:
    parts: tuple[Part, Part] = ("training", "validation")
    made = [contents(quick_pictures(tmp_path / part, 8, part=part)) for part in parts]
    trained, kept = ({picture.tobytes() for picture in each.values()} for each in made)
    assert not trained & kept
    assert {name.partition("_")[2] for name in made[1]} == {"blue.jpg", "generated.jpg"}


def test_few_photographs_are_not_cut_into_endless_crops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_CROPS", 2)
    names = list(contents(quick_pictures(tmp_path / "made", 8)))
    assert [name.endswith("red.jpg") for name in names] == [True] * 2 + [False] * 6


def test_without_photographs_all_are_generated(
    tmp_path: Path, shipped: dict[bool, list[Path]]
) -> None:
    shipped[False].clear()
    names = list(contents(quick_pictures(tmp_path / "made", 3)))
    assert names == [f"{n:06d}_generated.jpg" for n in range(3)]


def test_crops_lie_within_the_photograph_at_many_places_and_sizes() -> None:
    boxes = [module._crop(np.random.default_rng(n), (300, 451)) for n in range(200)]
    sides = np.array([(right - left, bottom - top) for left, top, right, bottom in boxes])
    assert np.allclose(sides[:, 0], sides[:, 1])
    assert 112 <= sides.min() < 130
    assert 270 < sides.max() <= 300
    low, high = np.min(boxes, axis=0), np.max(boxes, axis=0)
    assert low[:2].min() >= 0
    assert high[2] <= 451
    assert high[3] <= 300
    assert high[0] - low[0] > 150
    small = module._crop(np.random.default_rng(0), (90, 90))
    assert small == (0, 0, 90, 90)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows starts no copies of a process")
def test_processes_at_once_wait_for_the_first_and_take_its_set(
    tmp_path: Path, shipped: dict[bool, list[Path]]
) -> None:
    shipped[False].clear()
    folder = tmp_path / "made"
    folder.mkdir()
    ready, held = os.pipe()
    child = os.fork()
    if not child:
        with lock_folder(folder):
            os.write(held, b"x")
            module._make(folder, [], module._settings([], 3, 0, "training"))
            time.sleep(0.3)
        os._exit(0)
    os.read(ready, 1)
    quick_pictures(folder, 3)
    made = state(folder)
    assert os.waitpid(child, 0)[1] == 0
    assert state(folder) == made
    assert len(contents(folder)) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows starts no copies of a process")
def test_a_set_of_other_settings_is_made_after_the_other_process_ends(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    ready, held = os.pipe()
    child = os.fork()
    if not child:
        with lock_folder(folder):
            os.write(held, b"x")
            time.sleep(0.3)
            (tmp_path / "leaves").touch()
        os._exit(0)
    os.read(ready, 1)
    quick_pictures(folder, 3)
    assert (tmp_path / "leaves").exists()
    assert os.waitpid(child, 0)[1] == 0
    assert len(contents(folder)) == 3


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.jpg").write_bytes(b"a picture of mine")
    with pytest.raises(DataError, match=r"such as .*, which would be trained on; name an empty"):
        quick_pictures(tmp_path, 2)
    assert not (tmp_path / SHARD_NAME).exists()


def test_no_picture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="count=0 asks for no picture"):
        quick_pictures(tmp_path, 0)
