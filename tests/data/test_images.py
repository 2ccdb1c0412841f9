"""Decoding: formats, colors, orientation, limits; every file gives its colors or an error."""

import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

import veca
from tests.data.corpus import (
    BAD,
    DEEP,
    GOOD,
    GRAYS,
    PHOTO,
    TURNED_UPRIGHT,
    Bad,
    Good,
    bombs,
    encoded,
    exif,
    on_white,
    photo,
)
from veca.data.images import (
    FORMATS,
    MAX_PIXELS,
    ImageError,
    _strict_pillow,
    decode,
    opened,
    reason,
)

PNG = encoded(Image.fromarray(PHOTO), "PNG")


def colors(image: object) -> np.ndarray:
    """Decoded colors, (H, W, 3) within 0..1."""
    pixels = decode(image).pixels()
    return (pixels if pixels.is_floating_point() else pixels / 255).permute(1, 2, 0).numpy()


def is_the_photo(source: object) -> bool:
    return np.array_equal(decode(source).pixels().permute(1, 2, 0), PHOTO)


def test_image_error_is_public_and_a_value_error() -> None:
    assert veca.ImageError is ImageError
    assert issubclass(ImageError, ValueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [("two\nlines", "two lines"), ("a\x1b[31mb", "a?[31mb"), ("", "OSError"), ("x" * 500, "x...")],
)
def test_messages_of_libraries_are_shortened_to_one_line(text: str, words: str) -> None:
    found = reason(OSError(text))
    assert words in found
    assert len(found) <= 123
    assert found.isprintable()


def test_paths_bytes_and_open_files_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "ph\u00f6to.png"
    path.write_bytes(PNG)
    for source in (path, str(path), PNG, bytearray(PNG), memoryview(PNG)):
        assert is_the_photo(source)
    with path.open("rb") as file:
        file.seek(100)  # read from its start
        assert is_the_photo(file)
        assert is_the_photo(file)
    with tarfile.open(tmp_path / "s.tar", "w") as shard:
        shard.add(path, "a.png")
        shard.add(path, "b.png")
    with tarfile.open(tmp_path / "s.tar") as shard:
        assert is_the_photo(shard.extractfile("b.png"))


class Stream(io.RawIOBase):
    """A stream that cannot be rewound."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0


def closed_file() -> io.BytesIO:
    file = io.BytesIO(PNG)
    file.close()
    return file


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere.png", "nowhere.png does not exist or is"),
        ("/", "not a regular file"),
        ("photo\0.png", "cannot be opened|does not exist"),
        (Stream(), "cannot be read"),
        (closed_file(), "closed file"),
        (io.StringIO("words"), "cannot be read"),
        (None, "a NoneType is not an image; pass a path, bytes"),
        (42, "a int is not an image"),
        (["photo.png"], "a list is not an image"),
    ],
)
def test_other_sources_are_refused(source: object, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(source)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a regular file"):
        decode(tmp_path / "pipe.png")


def test_formats_that_run_programs_or_read_other_files_stay_closed() -> None:
    assert {"EPS", "PDF", "WMF", "FITS", "PSD", "ICNS"}.isdisjoint(FORMATS)
    assert {"JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"} <= set(FORMATS)


def test_opening_reads_the_header_only() -> None:
    with opened(PNG[: PNG.index(b"IDAT") + 20]) as (_, image):
        assert image.size == (56, 40)


def test_at_most_max_pixels_are_decoded() -> None:
    assert MAX_PIXELS == Image.MAX_IMAGE_PIXELS  # where Pillow begins to warn
    assert decode(PNG, max_pixels=56 * 40).sides == (40, 56)
    jpeg = encoded(Image.fromarray(PHOTO), "JPEG")
    words = r"56 x 40 pixels, but at most 2,239 .* higher max_pixels"
    for source in (PNG, Image.fromarray(PHOTO), jpeg):  # a JPEG before it is made smaller
        with pytest.raises(ImageError, match=words):
            decode(source, max_pixels=56 * 40 - 1, min_side=10)
    with pytest.raises(ImageError, match="at most 16,777,216"):
        decode(Image.new("1", (1, 2**24 + 1)))


@pytest.mark.parametrize("bomb", bombs(), ids=lambda bomb: bomb.name)
def test_bombs_are_refused_before_anything_is_decoded(
    bomb: Bad, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(image: Image.Image) -> None:
        raise AssertionError(f"{image.size} pixels are decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(ImageError, match=bomb.words):
        decode(bomb.content)


@pytest.mark.parametrize("format_", ["PNG", "TIFF", "WEBP", "GIF"])
def test_a_limit_above_that_of_pillow_counts(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(Image.fromarray(PHOTO), format_)
    assert decode(content, max_pixels=10_000).sides == (40, 56)


LIMIT = Image.MAX_IMAGE_PIXELS
LARGE = Image.fromarray(photo(200, 300))
TRUNCATED = [encoded(LARGE, format_)[:-300] for format_ in ("JPEG", "PNG", "BMP")]


@pytest.fixture
def lenient_pillow() -> Iterator[None]:
    """Pillow as much training code leaves it."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    yield
    ImageFile.LOAD_TRUNCATED_IMAGES = False


@pytest.mark.usefixtures("lenient_pillow")
@pytest.mark.parametrize("content", TRUNCATED)
def test_a_truncated_file_is_refused_even_if_pillow_is_set_to_fill_it(content: bytes) -> None:
    Image.open(io.BytesIO(content)).load()  # Pillow's behavior now
    with pytest.raises(ImageError, match="truncated"):
        decode(content)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def in_threads(target: Callable[[], object], count: int) -> None:
    threads = [threading.Thread(target=target) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive()


@pytest.mark.usefixtures("lenient_pillow")
def test_threads_refuse_every_truncated_file() -> None:
    refused = []

    def read() -> None:
        for _ in range(25):
            with pytest.raises(ImageError):
                decode(TRUNCATED[0])
            refused.append(True)

    in_threads(read, 8)
    assert len(refused) == 200
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("limit", [LIMIT, 7, None])
def test_the_limit_of_pillow_is_raised_for_one_decoding_only(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(KeyError), _strict_pillow(10**12):
        raise KeyError(Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    with _strict_pillow(10**12):
        assert (None if limit is None else 10**12) == Image.MAX_IMAGE_PIXELS
        assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert (limit, True) == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_threads_decode_in_parallel_where_pillow_is_strict() -> None:
    with _strict_pillow(100):
        assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (False, LIMIT)
        in_threads(lambda: decode(PNG), 1)


@pytest.mark.parametrize("orientation", [*TURNED_UPRIGHT, 0, 9, 255])
def test_the_exif_orientation_is_applied(orientation: int) -> None:
    content = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(orientation))
    stored = Image.open(io.BytesIO(content))
    expected = TURNED_UPRIGHT[orientation if orientation in TURNED_UPRIGHT else 1](PHOTO) / 255
    assert np.allclose(colors(stored), expected, atol=1e-7)
    turned = ImageOps.exif_transpose(stored)  # and not twice
    assert np.allclose(colors(turned), expected, atol=1e-7)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV"])
def test_a_color_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(PHOTO)
    image = image.convert("RGBA") if mode == "RGBa" else image
    assert np.abs(colors(image.convert(mode)) - PHOTO / 255).max() < 8 / 255


@pytest.mark.parametrize("mode", ["L", "LA", "La", "RGB", "P"])
def test_a_gray_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(GRAYS)
    image = image.convert("LA") if mode == "La" else image
    assert np.array_equal(colors(image.convert(mode)), np.dstack([GRAYS] * 3) / np.float32(255))


def test_other_modes_are_converted() -> None:
    reds = Image.new("RGB", (2, 2), (180, 60, 50)).convert("LAB")
    assert np.abs(colors(reds) * 255 - (180, 60, 50)).max() < 4
    assert (colors(Image.new("RGBA", (3, 2), (200, 10, 10, 0))) == 1).all()  # transparent: white
    assert colors(Image.new("LA", (1, 1), (0, 128))).tolist() == [[[pytest.approx(127 / 255)] * 3]]
    broken = Image.new("P", (2, 2))
    broken.info["transparency"] = (1, 2, 3)
    with pytest.raises(ImageError, match="mode P"):
        decode(broken)


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "i4"])
def test_16_bits_are_scaled_and_not_clipped(dtype: str) -> None:
    values = np.array([[0, 255, 256, 40_000, 65_535]])
    image = Image.fromarray(values.astype(dtype))
    assert np.allclose(colors(image)[..., 0], values / 65535, atol=1e-7)


@pytest.mark.parametrize("values", [[[-1, 5]], [[0, 65_536]]])
def test_integers_beyond_16_bits_are_refused(values: list[list[int]]) -> None:
    with pytest.raises(ImageError, match=r"integers from .* 0\.\.65535"):
        decode(Image.fromarray(np.array(values, "i4")))


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, np.nan, np.inf])
def test_floats_outside_0_to_1_are_refused(value: float) -> None:
    array = np.array([[0.5, value]], np.float32)
    for source in (Image.fromarray(array), array, torch.from_numpy(array)):
        with pytest.raises(ImageError, match=r"has floats from .* 0\.\.1; divide"):
            decode(source)


def test_rounding_errors_are_clipped() -> None:
    pixels = decode(np.array([[-1e-6, 1 + 1e-6]])).pixels()
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)


def test_a_pil_image_is_not_changed() -> None:
    image = Image.open(io.BytesIO(encoded(Image.fromarray(PHOTO), "PNG", transparency=(1, 2, 3))))
    image.load()
    before = image.tobytes(), image.mode, dict(image.info)
    decode(image)
    assert (image.tobytes(), image.mode, image.info) == before


RGBA = np.dstack([PHOTO, GRAYS])


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (GRAYS, np.dstack([GRAYS] * 3) / 255),
        (GRAYS[..., None], np.dstack([GRAYS] * 3) / 255),
        (PHOTO, PHOTO / 255),
        (PHOTO[:, ::-1], PHOTO[:, ::-1] / 255),
        (RGBA, on_white(PHOTO, GRAYS)),
        (RGBA / 255, on_white(PHOTO, GRAYS)),
        (DEEP[..., 0], np.dstack([DEEP[..., 0]] * 3) / 65535),
        (DEEP[..., :3], DEEP[..., :3] / 65535),
        (DEEP[..., :3].astype(">u2"), DEEP[..., :3] / 65535),
        (DEEP, DEEP[..., :3] / 65535 * (DEEP[..., 3:] / 65535) + 1 - DEEP[..., 3:] / 65535),
        (PHOTO / 255, PHOTO / 255),
        ((GRAYS / 255).astype(np.float16), np.dstack([GRAYS] * 3) / 255),
        (np.zeros((1, 1), np.uint8), np.zeros((1, 1, 3))),
    ],
)
def test_arrays_and_tensors_hold_colors(array: np.ndarray, expected: np.ndarray) -> None:
    assert np.abs(colors(array) - expected).max() <= 1 / 255
    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    tensor = torch.from_numpy(native)
    tensor = tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor
    assert np.abs(colors(tensor) - expected).max() <= 1 / 255


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_tensors_may_be_floats_of_any_precision(dtype: torch.dtype) -> None:
    pixels = torch.tensor([0.0, 0.25, 1.0], dtype=dtype).reshape(3, 1, 1).requires_grad_()
    assert decode(pixels).pixels().flatten().tolist() == [0, 0.25, 1]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"\(H, W, 3\) or \(H, W, 4\)"),
        (np.zeros((1, 8, 8, 3), np.uint8), r"\(H, W, 3\) or \(H, W, 4\)"),
        (np.zeros((), np.uint8), r"\(H, W, 3\) or \(H, W, 4\)"),
        (torch.zeros(8, 8, 3), r"\(3, H, W\) or \(4, H, W\)"),
        (torch.zeros(1, 3, 8, 8), r"\(3, H, W\) or \(4, H, W\)"),
        (np.zeros((4, 4), bool), r"uint8, uint16 or floats in 0\.\.1"),
        (np.zeros((4, 4), np.int64), r"uint8, uint16 or floats in 0\.\.1"),
        (np.zeros((4, 4), object), r"uint8, uint16 or floats in 0\.\.1"),
        (np.zeros((5, 0, 3), np.uint8), "both sides must be >= 1"),
    ],
)
def test_other_arrays_are_refused(source: object, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode(source)


OPENED = [case for case in GOOD if case.name not in {"four grays.png", "rgb 16 key.png"}]
"""Pillow does not find the transparent color of the other two."""

SMALL = [case for case in GOOD if len(case.content) < 20_000]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_a_file_is_decoded_to_its_colors(case: Good, tmp_path: Path) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    found = colors(path)
    assert found.shape == case.colors.shape
    assert np.abs(found - case.colors).max() <= case.tolerance + 1e-6
    assert np.abs(found.mean() - case.colors.mean()) <= 1 / 255


@pytest.mark.parametrize("case", OPENED, ids=lambda case: case.name)
def test_an_opened_pil_image_is_decoded_like_its_file(case: Good) -> None:
    image = Image.open(io.BytesIO(case.content))
    assert torch.equal(decode(image).pixels(), decode(case.content).pixels())


@pytest.mark.parametrize("case", BAD, ids=lambda case: case.name)
def test_a_bad_file_is_refused_in_one_sentence(case: Bad, tmp_path: Path) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    with pytest.raises(ImageError, match=case.words) as caught:
        decode(path)
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@given(st.data())
def test_a_damaged_file_is_decoded_or_an_image_error(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SMALL))
    content = bytearray(case.content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    try:
        pixels = decode(bytes(content[:end]), max_pixels=10**6).pixels()
    except ImageError:
        return
    assert pixels.shape[0] == 3
    assert pixels.dtype == torch.uint8 or 0 <= pixels.min() <= pixels.max() <= 1


@pytest.mark.parametrize(("least", "scale"), [(400, 1), (201, 1), (200, 2), (60, 4), (1, 8)])
def test_a_jpeg_is_decoded_as_small_as_min_side_allows(least: int, scale: int) -> None:
    image = Image.fromarray(PHOTO).resize((600, 400), Image.Resampling.BICUBIC)
    content = encoded(image, "JPEG", quality=95)
    picture = decode(content, min_side=least)
    assert picture.sides == (400 // scale, 600 // scale)
    expected = decode(content).resampled(picture.sides, (0.0, 0.0, 600.0, 400.0)).pixels()
    assert (picture.pixels().int() - expected.int()).abs().float().mean() < 2
    turned = encoded(image, "JPEG", exif=exif(6))
    assert decode(turned, min_side=least).sides == (600 // scale, 400 // scale)
    assert decode(encoded(image, "PNG"), min_side=least).sides == (400, 600)


def test_a_pil_image_is_decoded_at_its_current_frame() -> None:
    frames = [Image.fromarray(np.roll(PHOTO, step, axis=0)) for step in range(3)]
    content = encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:])
    film = Image.open(io.BytesIO(content))
    film.seek(2)
    assert np.array_equal(decode(film).pixels().permute(1, 2, 0), np.asarray(frames[2]))
    assert film.tell() == 2


def test_a_pil_image_of_a_truncated_file_is_refused() -> None:
    image = Image.open(io.BytesIO(PNG[:900]))
    with pytest.raises(ImageError, match="the image given cannot be decoded"):
        decode(image)
