"""Every file of the corpus gives its colors or the right error, and damage gives no other."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from tests.data.corpus import GOOD, PHOTO, Good, encoded
from tests.data.refused import BAD, Bad
from veca.data.images import ImageError, decode, read_size

OPENED = [case for case in GOOD if case.name not in {"four grays.png", "rgb 16 key.png"}]
"""Of the other two, Pillow does not find the transparent color."""

WHOLE = [case for case in GOOD if len(case.content) < 20_000]


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


@pytest.mark.parametrize("case", GOOD, ids=lambda case: case.name)
def test_the_size_is_read_without_decoding(case: Good, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("the pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", refuse)
    height, width, _ = case.colors.shape
    assert read_size(case.content) == (width, height)


def test_the_size_of_a_file_too_large_to_decode_can_be_read() -> None:
    (bomb,) = [case for case in BAD if case.name == "bomb.png"]
    assert read_size(bomb.content) == (50_000, 50_000)


@settings(max_examples=1000)
@given(st.data())
def test_a_damaged_file_is_a_picture_or_a_picture_error(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from(WHOLE))
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
