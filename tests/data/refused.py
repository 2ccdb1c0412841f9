"""Files that must be refused, with words of the error."""

import struct
import zlib
from dataclasses import dataclass

import numpy as np
from PIL import Image

from tests.data.corpus import DEEP, GRAYS, PHOTO, SIZE, encoded
from tests.data.encoders import COLOR, GRAY, LONG, png, tiff, tiff_tags, with_jpeg_size


@dataclass(frozen=True)
class Bad:
    """A file that must be refused, and words of the error."""

    name: str
    content: bytes
    words: str


def bombs() -> list[Bad]:
    """Small files that claim to be huge."""
    jpeg, tags = encoded(Image.fromarray(PHOTO), "JPEG"), tiff_tags((60_000, 60_000), [8], 1)
    gif, bmp = encoded(Image.fromarray(GRAYS), "GIF"), encoded(Image.fromarray(PHOTO), "BMP")
    vast_tile = tiff_tags((16, 16), [8], 1, compression=8)
    vast_tile |= {322: (LONG, [60_000]), 323: (LONG, [20_000])}
    webp = b"VP8X" + struct.pack("<IBxxx", 10, 0) + (16_382).to_bytes(3, "little") * 2
    canvas = b"RIFF" + struct.pack("<I", len(webp) + 4) + b"WEBP" + webp
    large = struct.pack("<HH", 60_000, 60_000)
    return [
        Bad("bomb.png", png((50_000, 50_000), 8, COLOR, [bytes(150_000)] * 9), "more pixels"),
        Bad("bomb.jpg", with_jpeg_size(jpeg, 65_500, 65_500), "more pixels"),
        Bad("bomb.gif", gif[:6] + large + gif[10:], "more pixels"),
        Bad("bomb.bmp", bmp[:18] + struct.pack("<ii", 10**5, 10**5) + bmp[26:], "more pixels"),
        Bad("bomb.tif", tiff(tags, bytes(100)), "more pixels"),
        Bad("tile.tif", tiff(vast_tile, zlib.compress(bytes(10**7)), tile=True), "tiles of 60000"),
        Bad("bomb.ppm", b"P6 60000 60000 255\n" + bytes(100), "more pixels"),
        Bad("bomb.webp", canvas, "one of the formats|more pixels"),
        Bad("rope.png", png((1, 2**24 + 1), 8, GRAY, [b"\0"] * 9), "at most 16,777,216"),
    ]


def foreign() -> list[Bad]:
    """Files that are not images, or of formats that stay closed."""
    image = Image.fromarray(PHOTO)
    none = "cannot be read as one of the formats"
    return [
        Bad("empty.jpg", b"", none),
        Bad("zeros.jpg", bytes(1000), none),
        Bad("text.jpg", b"This is not an image.\n", none),
        Bad("page.jpg", b"<!DOCTYPE html><html><body>404</body></html>", none),
        Bad("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>", none),
        Bad("photo.heic", b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(100), none),
        Bad("page.eps", encoded(image, "EPS"), none),
        Bad("page.pdf", encoded(image, "PDF"), none),
        Bad("icon.ico", encoded(image, "ICO"), none),
        Bad("image.tga", encoded(image, "TGA"), none),
        Bad("a text that begins like a.ppm", b"P5 and so on\n", none),
        Bad("no pixels.png", png((0, 5), 8, GRAY, []), none),
        Bad(
            "floats to 255.tif",
            tiff(tiff_tags(SIZE, [32], 1, sample_format=3), GRAYS.astype(np.float32).tobytes()),
            r"floats from \d+ to 25\d, .* 0\.\.1",
        ),
        Bad(
            "32 bits.tif",
            tiff(tiff_tags(SIZE, [32], 1, sample_format=2), (DEEP[..., 0] - 9 << 4).tobytes() * 2),
            "integers from",
        ),
    ]


CUT = "truncated|cannot be read as one of"


def truncated() -> list[Bad]:
    """Files truncated at ten positions each."""
    image = Image.fromarray(PHOTO)
    wholes = {
        "jpg": encoded(image, "JPEG"),
        "progressive.jpg": encoded(image, "JPEG", progressive=True),
        "png": encoded(image, "PNG"),
        "webp": encoded(image, "WEBP"),
        "gif": encoded(image, "GIF"),
        "bmp": encoded(image, "BMP"),
        "tif": tiff(tiff_tags(SIZE, [8, 8, 8], 2), PHOTO.tobytes()),
        "ppm": encoded(image, "PPM"),
    }
    return [
        Bad(f"cut {tenth}.{name}", whole[: max(1, len(whole) * tenth // 10)], CUT)
        for name, whole in wholes.items()
        for tenth in range(10)
    ]


BAD = [*bombs(), *foreign(), *truncated()]
