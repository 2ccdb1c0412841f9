"""Pillow as strict as we need it, whatever other libraries have told it.

Two of Pillow's settings are global. `LOAD_TRUNCATED_IMAGES`, which much training code switches on,
makes half-grey pictures of files that were cut short; `MAX_IMAGE_PIXELS` stops what a caller of
ours has allowed. Where one of them stands in the way, it is changed for the time of one decoding
and put back. Nearly always there is nothing to change, and threads decode side by side.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image, ImageFile

_CHANGING = threading.Lock()


@contextmanager
def strict_pillow(most_pixels: int) -> Iterator[None]:
    """Refuse what was cut short, and let Pillow decode as many pixels as this."""
    _CHANGING.acquire()  # also waits for a thread that has changed the settings for now
    truncated, limit = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    too_low = limit is not None and limit < most_pixels
    if not truncated and not too_low:
        _CHANGING.release()
        yield
        return
    try:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        Image.MAX_IMAGE_PIXELS = most_pixels if too_low else limit
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = truncated, limit
        _CHANGING.release()
