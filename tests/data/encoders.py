"""Files written by hand, byte by byte, for what Pillow reads but does not write."""

import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
