"""Decoding: formats, colors, orientation, limits; every file gives its colors or an error."""

import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps
from torch import Tensor

import veca
from tests.data import measure
from tests.data.corpus import (
    DEEP,
    GOOD,
    GRAYS,
    PHOTO,
    TURNED_UPRIGHT,
    Good,
    encoded,
    exif,
    on_white,
    photo,
)
from tests.data.refused import BAD, Bad
from veca.data.images import (
    FORMATS,
    MAX_PIXELS,
    ImageError,
    _strict_pillow,
    decode,
    opened,
    reason,
)


def test_a_picture_error_is_a_value_error_that_veca_offers() -> None:
    assert veca.ImageError is ImageError
    assert issubclass(ImageError, ValueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [("two\nlines", "two lines"), ("a\x1b[31mb", "a?[31mb"), ("", "OSError"), ("x" * 500, "x...")],
)
def test_the_reason_of_a_library_fits_into_a_sentence(text: str, words: str) -> None:
    found = reason(OSError(text))
    assert words in found
    assert len(found) <= 123
    assert found.isprintable()


PNG = encoded(Image.fromarray(PHOTO), "PNG")


def is_the_photo(source: object) -> bool:
    """Whether a source is read as the photo that it holds."""
    return np.array_equal(decode(source).pixels().permute(1, 2, 0).numpy(), PHOTO)


def test_a_path_is_opened_as_text_and_as_an_object(tmp_path: Path) -> None:
    path = tmp_path / "ph\u00f6to.png"
    path.write_bytes(PNG)
    assert is_the_photo(path)
    assert is_the_photo(str(path))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_are_opened(kind: Any) -> None:
    assert is_the_photo(kind(PNG))


def test_an_open_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    path.write_bytes(PNG)
    with path.open("rb") as file:
        file.seek(100)
        assert is_the_photo(file)
        assert is_the_photo(file)


def test_a_member_of_an_archive_is_read() -> None:
    shard = io.BytesIO()
    with tarfile.open(fileobj=shard, mode="w") as archive:
        for name in ("a.png", "b.png"):
            member = tarfile.TarInfo(name)
            member.size = len(PNG)
            archive.addfile(member, io.BytesIO(PNG))
    with tarfile.open(fileobj=io.BytesIO(shard.getvalue())) as archive:
        assert is_the_photo(archive.extractfile("b.png"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nowhere.png does not exist; check the path"):
        decode(tmp_path / "nowhere.png")


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="not a regular file; pass"):
        decode(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such pipes")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match="not a regular file"):
        decode(tmp_path / "pipe.png")


def test_a_path_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ImageError, match="cannot be opened"):
        decode("photo\0.png")


class Stream(io.RawIOBase):
    """What comes over a wire: read once, from front to back."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return 0


def test_a_stream_that_cannot_be_rewound_is_refused() -> None:
    with pytest.raises(ImageError, match="cannot be read"):
        decode(Stream())


def test_a_closed_file_is_refused() -> None:
    file = io.BytesIO(PNG)
    file.close()
    with pytest.raises(ImageError, match="closed file"):
        decode(file)


def test_a_text_file_is_refused() -> None:
    with pytest.raises(ImageError, match="cannot be read"):
        decode(io.StringIO("words"))


@pytest.mark.parametrize("source", [None, 42, 3.5, ["photo.png"], {"a": 1}, object()])
def test_what_is_no_picture_is_refused_with_what_is_one(source: object) -> None:
    with pytest.raises(
        ImageError, match=f"a {type(source).__name__} is not an image; pass a path, bytes"
    ):
        decode(source)


def test_formats_that_run_programs_or_read_other_files_stay_closed() -> None:
    assert {"EPS", "PDF", "WMF", "FITS", "PSD", "ICNS"}.isdisjoint(FORMATS)
    assert set(FORMATS) <= set(Image.OPEN)


def test_opening_decodes_nothing() -> None:
    with opened(PNG[: PNG.index(b"IDAT") + 20]) as (_, image):
        assert image.size == (56, 40)


def test_as_many_pixels_as_allowed_are_decoded_and_no_more() -> None:
    assert is_the_photo(PNG)
    assert decode(PNG, max_pixels=56 * 40).sides == (40, 56)
    words = r"56 x 40 pixels, but at most 2,239 .* higher max_pixels"
    for source in (PNG, Image.fromarray(PHOTO)):
        with pytest.raises(ImageError, match=words):
            decode(source, max_pixels=56 * 40 - 1)


def test_the_default_limit_is_where_pillow_begins_to_warn() -> None:
    assert MAX_PIXELS == Image.MAX_IMAGE_PIXELS


@pytest.mark.parametrize("format_", ["PNG", "TIFF", "WEBP", "GIF"])
def test_a_limit_above_that_of_pillow_counts(format_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    content = encoded(Image.fromarray(PHOTO), format_)
    assert decode(content, max_pixels=10_000).sides == (40, 56)


def test_a_side_that_cannot_be_resampled_is_refused() -> None:
    with pytest.raises(ImageError, match="at most 16,777,216"):
        decode(Image.new("1", (1, 2**24 + 1)))


LIMIT = Image.MAX_IMAGE_PIXELS
WHOLE = Image.fromarray(photo(200, 300))
CUTS = [encoded(WHOLE, "JPEG")[:-300], encoded(WHOLE, "PNG")[:-300], encoded(WHOLE, "BMP")[:-300]]


@pytest.fixture
def lenient_pillow() -> Iterator[None]:
    """Pillow as much training code leaves it."""
    ImageFile.LOAD_TRUNCATED_IMAGES = True
    yield
    ImageFile.LOAD_TRUNCATED_IMAGES = False


@pytest.mark.usefixtures("lenient_pillow")
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_file_is_refused_even_where_pillow_was_told_to_fill_it_up(cut: bytes) -> None:
    Image.open(io.BytesIO(cut)).load()  # as Pillow does now
    with pytest.raises(ImageError, match="truncated"):
        decode(cut)
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.usefixtures("lenient_pillow")
def test_threads_that_decode_at_once_refuse_every_cut_file() -> None:
    seen, refused = [], []

    def read() -> None:
        for _ in range(25):
            try:
                seen.append(decode(CUTS[0]))
            except ImageError:
                refused.append(True)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not seen
    assert len(refused) == 200
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


def test_nothing_is_changed_where_pillow_is_strict() -> None:
    with _strict_pillow(100):
        assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (False, LIMIT)


@pytest.mark.parametrize("limit", [LIMIT, 7, None])
def test_a_higher_limit_holds_for_one_decoding_only(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with _strict_pillow(10**12):
        raised = Image.MAX_IMAGE_PIXELS
    assert raised == (None if limit is None else 10**12)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_settings_come_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(KeyError), _strict_pillow(10**12):
        raise KeyError
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert Image.MAX_IMAGE_PIXELS == LIMIT


def test_threads_decode_side_by_side_where_pillow_is_strict() -> None:
    with _strict_pillow(100):
        other = threading.Thread(target=decode, args=(encoded(Image.fromarray(PHOTO), "PNG"),))
        other.start()
        other.join(timeout=10)
        assert not other.is_alive()


def stored(orientation: int) -> Image.Image:
    """A lossless picture that says how to turn it."""
    content = encoded(Image.fromarray(PHOTO), "PNG", exif=exif(orientation))
    return Image.open(io.BytesIO(content))


def upright(image: Image.Image) -> np.ndarray:
    """The decoded pixels, (H, W, 3)."""
    return decode(image).pixels().permute(1, 2, 0).numpy()


@pytest.mark.parametrize("orientation", TURNED_UPRIGHT)
def test_a_picture_is_turned_as_the_standard_defines(orientation: int) -> None:
    expected = TURNED_UPRIGHT[orientation](PHOTO)
    assert np.array_equal(upright(stored(orientation)), expected)


@pytest.mark.parametrize("orientation", [0, 9, 255])
def test_numbers_that_mean_nothing_leave_a_picture_as_it_is(orientation: int) -> None:
    assert np.array_equal(upright(stored(orientation)), PHOTO)


def test_a_picture_that_pillow_has_turned_is_not_turned_again() -> None:
    turned = ImageOps.exif_transpose(stored(6))
    assert np.array_equal(upright(turned), TURNED_UPRIGHT[6](PHOTO))


def colors(image: object) -> np.ndarray:
    """Decoded colors, (H, W, 3) within 0..1."""
    pixels = decode(image).pixels()
    scale = 255 if not pixels.is_floating_point() else 1
    return (pixels.permute(1, 2, 0) / scale).numpy()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "HSV"])
def test_a_color_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(PHOTO)
    image = image.convert("RGBA") if mode == "RGBa" else image
    assert np.abs(colors(image.convert(mode)) - PHOTO / 255).max() < 8 / 255


def test_lab_is_turned_into_colors() -> None:
    reds = Image.new("RGB", (2, 2), (180, 60, 50)).convert("LAB")
    assert np.abs(colors(reds) * 255 - (180, 60, 50)).max() < 4


@pytest.mark.parametrize("mode", ["L", "LA", "La", "RGB", "P"])
def test_a_gray_image_looks_the_same_in_every_mode(mode: str) -> None:
    image = Image.fromarray(GRAYS)
    image = image.convert("LA") if mode == "La" else image
    assert np.array_equal(colors(image.convert(mode)), np.dstack([GRAYS] * 3) / np.float32(255))


def test_what_is_transparent_is_white_whatever_color_it_hides() -> None:
    hidden = Image.new("RGBA", (3, 2), (200, 10, 10, 0))
    assert (colors(hidden) == 1).all()


def test_half_transparent_black_is_gray() -> None:
    assert colors(Image.new("LA", (1, 1), (0, 128))).tolist() == [[[pytest.approx(127 / 255)] * 3]]


@pytest.mark.parametrize("dtype", ["<u2", ">u2", "i4"])
def test_sixteen_bits_are_scaled_and_not_clipped(dtype: str) -> None:
    values = np.array([[0, 255, 256, 40_000, 65_535]])
    image = Image.fromarray(values.astype(dtype))
    assert np.allclose(colors(image)[..., 0], values / 65535, atol=1e-7)


@pytest.mark.parametrize("values", [[[-1, 5]], [[0, 65_536]]])
def test_whole_numbers_beyond_sixteen_bits_are_refused(values: list[list[int]]) -> None:
    with pytest.raises(ImageError, match=r"integers from .* 0\.\.65535"):
        colors(Image.fromarray(np.array(values, "i4")))


@pytest.mark.parametrize("value", [-0.01, 1.01, 255.0, np.nan, np.inf])
def test_floats_outside_their_range_are_refused(value: float) -> None:
    image = Image.fromarray(np.array([[0.5, value]], np.float32))
    with pytest.raises(ImageError, match=r"holds floats from .* 0\.\.1"):
        colors(image)


def test_a_mode_without_a_way_to_colors_is_refused() -> None:
    broken = Image.new("P", (2, 2))
    broken.info["transparency"] = (1, 2, 3)
    with pytest.raises(ImageError, match="mode P"):
        colors(broken)


def test_an_image_that_was_passed_in_stays_as_it_was() -> None:
    image = Image.open(io.BytesIO(encoded(Image.fromarray(PHOTO), "PNG", transparency=(1, 2, 3))))
    image.load()
    before = image.tobytes(), image.mode, dict(image.info)
    colors(image)
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
def test_an_array_and_its_tensor_give_the_colors_in_them(
    array: np.ndarray, expected: np.ndarray
) -> None:
    assert np.abs(colors(array) - expected).max() <= 1 / 255

    native = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("=")))
    tensor = torch.from_numpy(native)
    tensor = tensor.permute(2, 0, 1) if tensor.ndim == 3 else tensor
    assert np.abs(colors(tensor) - expected).max() <= 1 / 255


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_floats_of_every_width_are_taken(dtype: torch.dtype) -> None:
    pixels = torch.tensor([0.0, 0.25, 1.0], dtype=dtype).reshape(3, 1, 1).requires_grad_()
    assert decode(pixels).pixels().flatten().tolist() == [0, 0.25, 1]


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 2), (8, 8, 5), (1, 8, 8, 3), (8,), ()])
def test_an_array_of_another_shape_is_refused_with_the_shapes_needed(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ImageError, match=r"\(H, W, 3\) or \(H, W, 4\)"):
        decode(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("shape", [(8, 8, 3), (2, 8, 8), (1, 3, 8, 8), (8,)])
def test_a_tensor_of_another_shape_is_refused_with_the_shapes_needed(
    shape: tuple[int, ...],
) -> None:
    with pytest.raises(ImageError, match=r"\(3, H, W\) or \(4, H, W\)"):
        decode(torch.zeros(shape))


@pytest.mark.parametrize("dtype", [bool, np.int32, np.int64, np.uint32, complex, object])
def test_an_array_of_another_type_is_refused_with_the_types_needed(dtype: type) -> None:
    with pytest.raises(ImageError, match=r"uint8, uint16 or floats in 0\.\.1"):
        decode(np.zeros((4, 4), dtype))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0, 3)])
def test_an_array_without_a_pixel_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match="both sides must be >= 1"):
        decode(np.zeros(shape, np.uint8))


@pytest.mark.parametrize(
    "tensor",
    [torch.full((3, 2, 2), 255.0), torch.full((3, 2, 2), -1.0), torch.full((3, 2, 2), torch.nan)],
)
def test_floats_in_another_range_are_refused_with_the_range_found(tensor: Tensor) -> None:
    with pytest.raises(ImageError, match=r"floats from (255|-1|nan) to (255|-1|nan), .* divide"):
        decode(tensor)


def test_floats_that_strayed_by_rounding_are_clipped() -> None:
    pixels = decode(np.array([[-1e-6, 1 + 1e-6]])).pixels()
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)


OPENED = [case for case in GOOD if case.name not in {"four grays.png", "rgb 16 key.png"}]
"""Of the other two, Pillow does not find the transparent color."""

SMALL = [case for case in GOOD if len(case.content) < 20_000]


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_a_good_file_gives_the_colors_in_it(case: Good, tmp_path: Path) -> None:
    path = tmp_path / case.name
    path.write_bytes(case.content)
    pixels = decode(path).pixels()
    colors = (pixels / 255 if pixels.dtype == torch.uint8 else pixels).permute(1, 2, 0).numpy()

    assert colors.shape == case.colors.shape
    assert np.abs(colors - case.colors).max() <= case.tolerance + 1e-6
    assert np.abs(colors.mean() - case.colors.mean()) <= 1 / 255


@pytest.mark.parametrize("case", OPENED, ids=lambda case: case.name)
def test_an_image_that_pillow_has_open_gives_what_its_file_gives(case: Good) -> None:
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
def test_a_damaged_file_is_a_picture_or_a_picture_error(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(SMALL))
    content = bytearray(case.content)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    try:
        picture = decode(bytes(content[:end]), max_pixels=10**6)
    except ImageError:
        return
    pixels = picture.pixels()
    assert pixels.shape[0] == 3
    assert pixels.dtype == torch.uint8 or 0 <= pixels.min() <= pixels.max() <= 1


@pytest.mark.parametrize(("least", "scale"), [(400, 1), (201, 1), (200, 2), (60, 4), (1, 8)])
def test_a_photograph_comes_as_small_as_its_least_side_allows(least: int, scale: int) -> None:
    image = Image.fromarray(PHOTO).resize((600, 400), Image.Resampling.BICUBIC)
    content = encoded(image, "JPEG", quality=95)
    picture = decode(content, min_side=least)
    assert picture.sides == (400 // scale, 600 // scale)
    expected = decode(content).resampled(picture.sides, (0.0, 0.0, 600.0, 400.0)).pixels()
    assert (picture.pixels().int() - expected.int()).abs().float().mean() < 2


def test_the_least_side_is_that_of_the_upright_picture_and_of_photographs_only() -> None:
    image = Image.fromarray(PHOTO).resize((600, 400))
    turned = Image.Exif()
    turned[274] = 6
    jpeg = encoded(image, "JPEG", exif=turned)
    assert decode(jpeg, min_side=100).sides == (150, 100)
    assert decode(encoded(image, "PNG"), min_side=100).sides == (400, 600)


def test_the_size_is_checked_before_a_photograph_is_made_smaller() -> None:
    jpeg = encoded(Image.fromarray(PHOTO).resize((600, 400)), "JPEG")
    with pytest.raises(ImageError, match="600 x 400"):
        decode(jpeg, max_pixels=100_000, min_side=10)


def test_a_pil_image_is_read_at_the_frame_where_it_stands() -> None:
    frames = [Image.fromarray(np.roll(PHOTO, step, axis=0)) for step in range(3)]
    film = Image.open(
        io.BytesIO(encoded(frames[0], "TIFF", save_all=True, append_images=frames[1:]))
    )
    film.seek(2)
    assert np.array_equal(decode(film).pixels().permute(1, 2, 0), np.asarray(frames[2]))
    assert film.tell() == 2


def test_a_pil_image_of_a_cut_file_is_refused() -> None:
    image = Image.open(io.BytesIO(encoded(Image.fromarray(PHOTO), "PNG")[:900]))
    with pytest.raises(ImageError, match="the image given cannot be decoded"):
        decode(image)


def test_the_settings_of_pillow_are_as_they_were() -> None:
    assert ImageFile.LOAD_TRUNCATED_IMAGES is False
    assert Image.MAX_IMAGE_PIXELS == 89_478_485


MOST_SECONDS = 0.2
MOST_GROWTH = 300 * 2**20
CONTENTS = {good.name: good.content for good in GOOD} | {bad.name: bad.content for bad in BAD}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak of memory")
def test_every_file_is_answered_at_once_and_in_bounded_memory(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, str(Path(measure.__file__)), str(tmp_path)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    outcomes = {file["name"]: file["outcome"] for file in answer["files"]}
    assert len(outcomes) == len(GOOD) + len(BAD)
    assert all(outcomes[case.name].startswith("(3, ") for case in GOOD), outcomes
    assert all(outcomes[case.name].startswith("ImageError: ") for case in BAD), outcomes
    slow = [file for file in answer["files"] if file["seconds"] > MOST_SECONDS]
    assert not slow
    assert answer["growth"] < MOST_GROWTH
