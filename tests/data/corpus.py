"""Unusual image files with their colors, and files that must be refused.

They are generated in every run, so that the repository holds no images.
"""

import io
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

# Files written by hand, byte by byte, for what Pillow reads but does not write.

PNG_HEAD = b"\x89PNG\r\n\x1a\n"
GRAY, COLOR, GRAY_AND_ALPHA, COLOR_AND_ALPHA = 0, 2, 4, 6


def png_chunk(kind: bytes, content: bytes) -> bytes:
    """One chunk of a PNG file."""
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(
    size: tuple[int, int],
    depth: int,
    colors: int,
    rows: Sequence[bytes],
    *,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG file of unfiltered rows, with chunks before and after the pixels."""
    header = struct.pack(">IIBBBBB", *size, depth, colors, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    chunks = png_chunk(b"IHDR", header) + before + png_chunk(b"IDAT", pixels) + after
    return PNG_HEAD + chunks + png_chunk(b"IEND", b"")


def png16(values: NDArray[Any], colors: int, before: bytes = b"") -> bytes:
    """A PNG file of 16 bits a channel from an array (height, width, channels)."""
    height, width, _ = values.shape
    rows = [row.astype(">u2").tobytes() for row in values]
    return png((width, height), 16, colors, rows, before=before)


SHORT, LONG = 3, 4
TIFF_CODES = {SHORT: "H", LONG: "I"}


def tiff(
    tags: Mapping[int, tuple[int, Sequence[int]]],
    strip: bytes,
    order: str = "<",
    tile: bool = False,
) -> bytes:
    """A TIFF file of one strip (or tile) and these tags, by number: type and values."""
    place, length = (324, 325) if tile else (273, 279)
    entries = {**tags, place: (LONG, [8]), length: (LONG, [len(strip)])}
    strip += b"\0" * (len(strip) % 2)
    directory_at = 8 + len(strip)
    extra_at = directory_at + 2 + 12 * len(entries) + 4
    directory, extra = struct.pack(f"{order}H", len(entries)), b""
    for tag, (kind, values) in sorted(entries.items()):
        content = struct.pack(f"{order}{len(values)}{TIFF_CODES[kind]}", *values)
        if len(content) > 4:
            content, extra = struct.pack(f"{order}I", extra_at + len(extra)), extra + content
        directory += struct.pack(f"{order}HHI", tag, kind, len(values)) + content.ljust(4, b"\0")
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HI", 42, directory_at)
    return head + strip + directory + bytes(4) + extra


def tiff_tags(
    size: tuple[int, int], bits: Sequence[int], photometric: int, **more: int
) -> dict[int, tuple[int, Sequence[int]]]:
    """The tags that every uncompressed TIFF file needs, and `extra_samples` or `sample_format`."""
    width, height = size
    tags: dict[int, tuple[int, Sequence[int]]] = {
        256: (LONG, [width]),
        257: (LONG, [height]),
        258: (SHORT, bits),
        259: (SHORT, [more.get("compression", 1)]),
        262: (SHORT, [photometric]),
        277: (SHORT, [len(bits)]),
        278: (LONG, [height]),
    }
    if "extra_samples" in more:
        tags[338] = (SHORT, [more["extra_samples"]])
    if "sample_format" in more:
        tags[339] = (SHORT, [more["sample_format"]] * len(bits))
    return tags


def packed_12_bit(values: NDArray[Any]) -> bytes:
    """Two numbers of 12 bits in three bytes, the higher bits first."""
    first, second = values.reshape(-1, 2).astype(np.uint16).T
    triples = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1)
    return triples.astype(np.uint8).tobytes()


def jpeg_segments(content: bytes) -> list[tuple[int, int, int]]:
    """Marker, start and end of each segment of a JPEG file before its pixels."""
    segments, at = [], 2
    while content[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(content[at + 2 : at + 4], "big")
        segments.append((content[at + 1], at, end))
        at = end
    return segments


def without_adobe_marker(content: bytes) -> bytes:
    """A JPEG file that does not say that Adobe's conventions hold."""
    (place,) = [(start, end) for marker, start, end in jpeg_segments(content) if marker == 0xEE]
    return content[: place[0]] + content[place[1] :]


def with_adobe_transform(content: bytes, transform: int) -> bytes:
    """A JPEG file whose Adobe marker names another color space: 2 is YCCK."""
    (end,) = [end for marker, _, end in jpeg_segments(content) if marker == 0xEE]
    return content[: end - 1] + bytes([transform]) + content[end:]


def with_jpeg_size(content: bytes, width: int, height: int) -> bytes:
    """A JPEG file whose header claims another size."""
    (start,) = [start for marker, start, _ in jpeg_segments(content) if marker in {0xC0, 0xC2}]
    sides = struct.pack(">HH", height, width)
    return content[: start + 5] + sides + content[start + 9 :]


HEIGHT, WIDTH = 40, 56
SIZE = (WIDTH, HEIGHT)
ONE_STEP = 1 / 255


@dataclass(frozen=True)
class Good:
    """A file that must be read, and the upright, opaque colors in it, (H, W, 3) in 0..1."""

    name: str
    content: bytes
    colors: NDArray[Any]
    tolerance: float = 1e-6


def photo(height: int = HEIGHT, width: int = WIDTH) -> NDArray[Any]:
    """Smooth colors with some noise, which no rotation or flip maps to itself."""
    y, x = np.mgrid[0:height, 0:width]
    smooth = np.stack([x * 255 // width, y * 255 // height, (x + y) * 255 // (width + height)], -1)
    noise = np.random.default_rng(7).integers(0, 16, smooth.shape)
    return np.minimum(smooth + noise, 255).astype(np.uint8)


PHOTO = photo()
GRAYS = PHOTO[..., 0]
DEEP = np.random.default_rng(1).integers(0, 65536, (HEIGHT, WIDTH, 4)).astype(np.uint16)
INKS = np.repeat(
    np.repeat([[[255, 0, 0, 0], [0, 255, 0, 0]], [[0, 0, 255, 0], [0, 64, 128, 128]]], 16, 0), 16, 1
).astype(np.uint8)
"""Four squares of 16 pixels in cyan, magenta, yellow and a mixture with black."""


def encoded(image: Image.Image, format_: str, **options: Any) -> bytes:
    """The image as Pillow writes it."""
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


def plainly_decoded(content: bytes) -> NDArray[Any]:
    """What Pillow decodes from an ordinary file."""
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def gray(values: NDArray[Any]) -> NDArray[Any]:
    """Grays in 0..1 as colors."""
    return np.repeat(values[..., None], 3, axis=2)


def on_white(colors: NDArray[Any], opacity: NDArray[Any]) -> NDArray[Any]:
    """Bytes blended by hand onto white."""
    share = opacity[..., None] / 255
    return colors / 255 * share + (1 - share)


def rgb_of_inks(inks: NDArray[Any]) -> NDArray[Any]:
    """The plain formula from CMYK to RGB."""
    part = 1 - inks / 255
    return part[..., :3] * part[..., 3:]


TURNED_UPRIGHT: dict[int, Callable[[NDArray[Any]], NDArray[Any]]] = {
    1: lambda stored: stored,
    2: lambda stored: stored[:, ::-1],
    3: lambda stored: stored[::-1, ::-1],
    4: lambda stored: stored[::-1],
    5: lambda stored: stored.swapaxes(0, 1),
    6: lambda stored: np.rot90(stored, -1),
    7: lambda stored: stored[::-1, ::-1].swapaxes(0, 1),
    8: lambda stored: np.rot90(stored, 1),
}
"""From stored to upright pixels, for each EXIF orientation by its definition."""


def exif(orientation: int) -> Image.Exif:
    """EXIF data with an orientation only."""
    data = Image.Exif()
    data[274] = orientation
    return data


def oriented() -> list[Good]:
    """An orientation in each place of a file where it can be."""
    image = Image.fromarray(PHOTO)
    jpeg = encoded(image, "JPEG", exif=exif(5))
    colors = TURNED_UPRIGHT[5](plainly_decoded(encoded(image, "JPEG"))) / 255
    rows = [row.tobytes() for row in PHOTO]
    late = png_chunk(b"eXIf", exif(6).tobytes()[6:])
    damaged = png_chunk(b"eXIf", b"II*\0\xff\xff\xff\xff broken")
    return [
        Good("turned.jpg", jpeg, colors),
        Good("early.png", encoded(image, "PNG", exif=exif(5)), TURNED_UPRIGHT[5](PHOTO) / 255),
        Good("late.png", png(SIZE, 8, COLOR, rows, after=late), TURNED_UPRIGHT[6](PHOTO) / 255),
        Good("damaged exif.png", png(SIZE, 8, COLOR, rows, before=damaged), PHOTO / 255),
        Good(
            "turned.webp",
            encoded(image, "WEBP", lossless=True, exif=exif(8)),
            TURNED_UPRIGHT[8](PHOTO) / 255,
        ),
        Good(
            "turned.tif",
            tiff(tiff_tags(SIZE, [8, 8, 8], 2) | {274: (3, [6])}, PHOTO.tobytes()),
            TURNED_UPRIGHT[6](PHOTO) / 255,
        ),
        Good(
            "turned 16 bit.png",
            encoded(Image.fromarray(DEEP[..., 0]), "PNG", exif=exif(7)),
            TURNED_UPRIGHT[7](gray(DEEP[..., 0] / 65535)),
        ),
    ]


def plain() -> list[Good]:
    """Everyday files of every format, some under a wrong name."""
    image, jpeg = Image.fromarray(PHOTO), encoded(Image.fromarray(PHOTO), "JPEG")
    progressive = encoded(image, "JPEG", progressive=True)
    gray_jpeg = encoded(Image.fromarray(GRAYS), "JPEG")
    strip = np.random.default_rng(3).integers(0, 256, (10, 10_000, 3)).astype(np.uint8)
    found = [
        Good("photo.png", encoded(image, "PNG"), PHOTO / 255),
        Good("a png called.jpg", encoded(image, "PNG"), PHOTO / 255),
        Good("a jpeg called.png", jpeg, plainly_decoded(jpeg) / 255),
        Good("no ending", jpeg, plainly_decoded(jpeg) / 255),
        Good("progressive.jpg", progressive, plainly_decoded(progressive) / 255),
        Good("gray.jpg", gray_jpeg, plainly_decoded(gray_jpeg) / 255),
        Good("photo.bmp", encoded(image, "BMP"), PHOTO / 255),
        Good("photo.ppm", encoded(image, "PPM"), PHOTO / 255),
        Good("packed.tif", encoded(image, "TIFF", compression="tiff_lzw"), PHOTO / 255),
        Good("one.png", encoded(image.crop((5, 5, 6, 6)), "PNG"), PHOTO[5:6, 5:6] / 255),
        Good("row.png", encoded(image.crop((0, 3, WIDTH, 4)), "PNG"), PHOTO[3:4] / 255),
        Good("column.png", encoded(image.crop((4, 0, 5, HEIGHT)), "PNG"), PHOTO[:, 4:5] / 255),
        Good("strip.png", encoded(Image.fromarray(strip), "PNG"), strip / 255),
        Good("no end mark.png", encoded(image, "PNG")[:-12], PHOTO / 255),
    ]
    if features.check("avif"):
        avif = encoded(image, "AVIF", quality=100, subsampling="4:4:4")
        found.append(Good("photo.avif", avif, PHOTO / 255, 6 * ONE_STEP))
    return found


def animated() -> list[Good]:
    """Animations, of which the first frame counts."""
    frames = [Image.fromarray(np.roll(PHOTO, 9 * step, axis=1)) for step in range(3)]
    few = [frame.quantize(32) for frame in frames]
    options: dict[str, Any] = {"save_all": True, "append_images": frames[1:], "duration": 50}
    first = np.asarray(few[0].convert("RGB")) / 255
    return [
        Good("film.gif", encoded(few[0], "GIF", **options | {"append_images": few[1:]}), first),
        Good("film.webp", encoded(frames[0], "WEBP", lossless=True, **options), PHOTO / 255),
        Good("film.png", encoded(frames[0], "PNG", **options), PHOTO / 255),
        Good("pages.tif", encoded(frames[0], "TIFF", **options), PHOTO / 255),
    ]


def transparent() -> list[Good]:
    """Opacity in every form that files have."""
    opacity = np.linspace(0, 255, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8)
    blended, blended_gray = on_white(PHOTO, opacity), on_white(gray(GRAYS), opacity)
    rgba = Image.fromarray(np.dstack([PHOTO, opacity]))
    la = Image.merge("LA", (Image.fromarray(GRAYS), Image.fromarray(opacity)))
    palette = Image.fromarray(PHOTO).quantize(64)
    index, colors = np.asarray(palette), np.asarray(palette.convert("RGB"))
    alphas = bytes(range(0, 256, 4))
    one = np.where(index == 5, 0, 255)
    of_index = np.frombuffer(alphas, np.uint8)[index]
    pa = np.dstack([index, opacity])
    table = [part * 257 for part in np.array(palette.getpalette("RGB")).reshape(-1, 3).T.ravel()]
    pa_tags = tiff_tags(SIZE, [8, 8], 3, extra_samples=2) | {320: (3, table)}
    premultiplied = np.stack([GRAYS * (opacity / 255), opacity], -1).round().astype(np.uint8)
    la_tags = tiff_tags(SIZE, [8, 8], 1, extra_samples=1)
    few = (GRAYS >> 6).reshape(HEIGHT, -1, 4)
    quarters = [bytes((row @ [64, 16, 4, 1]).tolist()) for row in few.astype(int)]
    key = png_chunk(b"tRNS", struct.pack(">H", 2))
    seen = np.where(GRAYS >> 6 == 2, 255, (GRAYS >> 6) * 85) / 255
    return [
        Good("rgba.png", encoded(rgba, "PNG"), blended, ONE_STEP),
        Good("rgba.webp", encoded(rgba, "WEBP", lossless=True, exact=True), blended, ONE_STEP),
        Good("la.png", encoded(la, "PNG"), blended_gray, ONE_STEP),
        Good("p.png", encoded(palette, "PNG"), colors / 255),
        Good("p one.png", encoded(palette, "PNG", transparency=5), on_white(colors, one)),
        Good(
            "p many.png",
            encoded(palette, "PNG", transparency=alphas),
            on_white(colors, of_index),
            ONE_STEP,
        ),
        Good("p one.gif", encoded(palette, "GIF", transparency=5), on_white(colors, one)),
        Good("pa.tif", tiff(pa_tags, pa.tobytes()), on_white(colors, opacity), ONE_STEP),
        Good("la.tif", tiff(la_tags, premultiplied.tobytes()), blended_gray, 2 * ONE_STEP),
        Good("four grays.png", png(SIZE, 2, GRAY, quarters, before=key), gray(seen)),
    ]


def deep() -> list[Good]:
    """More than 8 bits: scaled, not clipped."""
    first, rgb, opacity = DEEP[..., 0], DEEP[..., :3] / 65535, DEEP[..., 3:] / 65535
    key = int(first[2, 3])
    rgb_key = png_chunk(b"tRNS", DEEP[2, 3, :3].astype(">u2").tobytes())
    rgb_seen = np.where((DEEP[..., :3] >> 8 == DEEP[2, 3, :3] >> 8).all(-1)[..., None], 1, rgb)
    gray_key = png_chunk(b"tRNS", struct.pack(">H", key))
    floats = (first / 65535).astype(np.float32)
    twelve = first >> 4
    one = Image.fromarray(PHOTO[..., 0] > 99)
    return [
        Good("gray 16.png", png16(DEEP[..., :1], GRAY), gray(first / 65535)),
        Good(
            "gray 16 key.png",
            png16(DEEP[..., :1], GRAY, gray_key),
            gray(np.where(first == key, 1, first / 65535)),
        ),
        Good("rgb 16.png", png16(DEEP[..., :3], COLOR), rgb, ONE_STEP),
        Good("rgb 16 key.png", png16(DEEP[..., :3], COLOR, rgb_key), rgb_seen, ONE_STEP),
        Good(
            "rgba 16.png",
            png16(DEEP, COLOR_AND_ALPHA),
            rgb * opacity + 1 - opacity,
            2 * ONE_STEP,
        ),
        Good(
            "la 16.png",
            png16(DEEP[..., [0, 3]], GRAY_AND_ALPHA),
            gray(first / 65535) * opacity + 1 - opacity,
            2 * ONE_STEP,
        ),
        Good("16.tif", tiff(tiff_tags(SIZE, [16], 1), first.tobytes()), gray(first / 65535)),
        Good(
            "16 motorola.tif",
            tiff(tiff_tags(SIZE, [16], 1), first.astype(">u2").tobytes(), ">"),
            gray(first / 65535),
        ),
        Good(
            "16 white is zero.tif",
            tiff(tiff_tags(SIZE, [16], 0), first.tobytes()),
            gray(1 - first / 65535),
        ),
        Good("12.tif", tiff(tiff_tags(SIZE, [12], 1), packed_12_bit(twelve)), gray(twelve / 4095)),
        Good(
            "rgb 16.tif",
            tiff(tiff_tags(SIZE, [16] * 3, 2), DEEP[..., :3].tobytes()),
            rgb,
            ONE_STEP,
        ),
        Good(
            "float.tif",
            tiff(tiff_tags(SIZE, [32], 1, sample_format=3), floats.tobytes()),
            gray(floats),
        ),
        Good("float.pfm", encoded(Image.fromarray(floats), "PPM"), gray(floats)),
        Good(
            "16.pgm",
            b"P5 56 40 65535\n" + first.astype(">u2").tobytes(),
            gray(first / 65535),
        ),
        Good("one bit.png", encoded(one, "PNG"), gray(np.asarray(one) * 1.0)),
        Good(
            "one bit.tif", encoded(one, "TIFF", compression="group4"), gray(np.asarray(one) * 1.0)
        ),
    ]


def inked() -> list[Good]:
    """CMYK plain, inverted as by Adobe, and as YCCK."""
    cmyk = Image.frombytes("CMYK", (32, 32), INKS.tobytes())
    inverted = Image.frombytes("CMYK", (32, 32), (255 - INKS).tobytes())
    rgb, fine = rgb_of_inks(INKS), {"quality": 100, "subsampling": 0}
    # Pillow inverts when it writes; Adobe's YCCK has the luma and chroma of the inks in CMY.
    luma = np.asarray(Image.fromarray(INKS[..., :3]).convert("YCbCr"))
    ycck = Image.frombytes("CMYK", (32, 32), np.dstack([255 - luma, INKS[..., 3]]).tobytes())
    return [
        Good("cmyk.tif", encoded(cmyk, "TIFF"), rgb, ONE_STEP),
        Good("adobe.jpg", encoded(cmyk, "JPEG", **fine), rgb, 3 * ONE_STEP),
        Good(
            "plain cmyk.jpg",
            without_adobe_marker(encoded(inverted, "JPEG", **fine)),
            rgb,
            3 * ONE_STEP,
        ),
        Good(
            "ycck.jpg",
            with_adobe_transform(encoded(ycck, "JPEG", **fine), 2),
            rgb,
            4 * ONE_STEP,
        ),
    ]


GOOD = [*oriented(), *plain(), *animated(), *transparent(), *deep(), *inked()]


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
    """Files truncated at three positions each."""
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
        for tenth in (0, 3, 9)
    ]


BAD = [*bombs(), *foreign(), *truncated()]
