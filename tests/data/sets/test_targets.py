"""Masks are read as numbers, depth as meters, and what would silently change them is refused."""

import pickle
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.sets.dense_layouts import (
    HEIGHT,
    WIDTH,
    write_depth,
    write_lines,
    write_mask,
    write_sbd,
)
from veca.data.images import DataError, ImageError
from veca.data.sets.segmentation import ADE20K, VOC, plain_table, read_depth, read_mask

SOME = (0, 20, 255, 7)


@pytest.mark.parametrize("palette", [False, True])
def test_a_mask_is_the_indices_of_its_file_whatever_their_colors(
    tmp_path: Path, palette: bool
) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, SOME, palette=palette)
    with Image.open(path) as image:
        assert image.mode == ("P" if palette else "L")
    found = read_mask(str(path), VOC)
    assert found.dtype == np.uint8
    assert np.array_equal(found, mask)


def test_a_palette_of_a_few_colors_packs_pixels_and_they_come_out_whole(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 1, 2, 3))
    image = Image.frombytes("P", (WIDTH, HEIGHT), mask.tobytes())
    image.putpalette([9, 9, 9, 0, 0, 0, 9, 9, 9, 200, 0, 0])
    image.save(path, bits=2)
    assert path.read_bytes()[24] == 2  # the depth that the header states
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_file_of_one_bit_holds_0_and_255(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 255, 255))
    Image.fromarray(mask).convert("1", dither=Image.Dither.NONE).save(path)
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_table_is_applied_once_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, range(151))
    content = path.read_bytes()
    expected = [255 if number == 0 else number - 1 for number in mask.ravel().tolist()]
    for _ in range(2):
        assert read_mask(str(path), ADE20K).ravel().tolist() == expected
    assert path.read_bytes() == content


def test_an_unknown_number_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    write_mask(path, (0, 21))
    with pytest.raises(ImageError, match=r"mask\.png: a mask holds the numbers 21,"):
        read_mask(str(path), VOC)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "I;16"])
def test_a_mask_with_more_than_one_byte_a_pixel_is_refused(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "mask.png"
    Image.new(mode, (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match=rf"has the mode {mode}, but a mask needs"):
        read_mask(str(path), VOC)


def test_a_mask_that_jpeg_has_blurred_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    Image.new("L", (WIDTH, HEIGHT)).save(path, "JPEG")
    with pytest.raises(ImageError, match="is a JPEG file"):
        read_mask(str(path), VOC)


def test_a_mask_that_was_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    write_mask(path, range(21))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ImageError):
        read_mask(str(path), VOC)


@pytest.mark.parametrize(("per_metre", "meters"), [(1000, 65.535), (256, 255.99609375)])
def test_depth_is_in_meters_and_unknown_stays_zero(
    tmp_path: Path, per_metre: int, meters: float
) -> None:
    path = tmp_path / "depth.png"
    steps = write_depth(path, (0, per_metre, 1, 65_535))
    found = read_depth(str(path), per_metre)
    assert found.dtype == np.float32
    assert found[0, :2].tolist() == [0.0, 1.0]
    assert found[0, 3] == np.float32(meters)
    assert np.allclose(found, steps.astype(np.float64) / per_metre, rtol=1e-7, atol=0)


def test_a_depth_map_of_eight_bits_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "depth.png"
    Image.new("L", (WIDTH, HEIGHT)).save(path)
    with pytest.raises(ImageError, match="depth needs one channel of 16 bits"):
        read_depth(str(path), 1000)


def test_the_masks_of_sbd_are_read_from_their_matlab_files(tmp_path: Path) -> None:
    path = tmp_path / "2008_000002.mat"
    mask = write_sbd(path, range(21))
    assert np.array_equal(read_mask(str(path), VOC), mask)


def test_a_matlab_file_without_a_mask_is_refused(tmp_path: Path) -> None:
    from scipy.io import savemat  # noqa: PLC0415 - an extra

    other, damaged = tmp_path / "other.mat", tmp_path / "damaged.mat"
    savemat(other, {"GTcls": {"Boundaries": np.zeros((3, 3))}})
    with pytest.raises(ImageError, match=r"holds no mask as GTcls\.Segmentation"):
        read_mask(str(other), VOC)
    write_lines(damaged, ["no MATLAB file at all, but long enough to be asked for its version" * 4])
    with pytest.raises(DataError, match="GTcls"):
        read_mask(str(damaged), VOC)


def test_without_scipy_a_matlab_file_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "2008_000002.mat"
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(DataError, match=r"pip install veca\[probe\]"):
        read_mask(str(path), VOC)


def test_readers_travel_to_other_processes(tmp_path: Path) -> None:
    path = tmp_path / "mask.png"
    mask = write_mask(path, (0, 1, 255))
    read = pickle.loads(pickle.dumps(partial(read_mask, table=plain_table(2))))
    assert np.array_equal(read(str(path)), mask)
