"""What other libraries tell Pillow neither reaches our pictures nor is lost."""

import io
import threading
from collections.abc import Iterator

import pytest
from PIL import Image, ImageFile

from tests.data.corpus import PHOTO, encoded, photo
from veca.data.images import ImageError, decode, strict_pillow

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
    with pytest.raises(ImageError, match="cut short"):
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
    with strict_pillow(100):
        assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == (False, LIMIT)


@pytest.mark.parametrize("limit", [LIMIT, 7, None])
def test_a_higher_limit_holds_for_one_decoding_only(
    limit: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with strict_pillow(10**12):
        raised = Image.MAX_IMAGE_PIXELS
    assert raised == (None if limit is None else 10**12)
    assert limit == Image.MAX_IMAGE_PIXELS


def test_the_settings_come_back_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(KeyError), strict_pillow(10**12):
        raise KeyError
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True
    assert Image.MAX_IMAGE_PIXELS == LIMIT


def test_threads_decode_side_by_side_where_pillow_is_strict() -> None:
    with strict_pillow(100):
        other = threading.Thread(target=decode, args=(encoded(Image.fromarray(PHOTO), "PNG"),))
        other.start()
        other.join(timeout=10)
        assert not other.is_alive()
