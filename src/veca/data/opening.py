"""From whatever holds an encoded picture to an identified file, by content and within limits.

A file is what its first bytes say, whatever its name ends in, and only if they say one of FORMATS.
Formats that run a program (EPS), name other files or are hardly met stay closed: each one is a
decoder that strangers can feed. Sizes are checked on the header, before anything is decoded.

A file that was cut short is refused. One that ends too early but in form (a JPEG to which someone
has added an end mark after the cut) is not: Pillow does not tell.
"""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast, runtime_checkable

from PIL import (
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from veca.data.errors import PictureError, reason

try:
    from PIL.AvifImagePlugin import AvifImageFile

    NEWER_FORMATS: tuple[str, ...] = (AvifImageFile.format,)
except ImportError:  # Pillow before 11.3
    NEWER_FORMATS = ()

FORMATS = (
    JpegImagePlugin.JpegImageFile.format,
    PngImagePlugin.PngImageFile.format,
    WebPImagePlugin.WebPImageFile.format,
    GifImagePlugin.GifImageFile.format,
    BmpImagePlugin.BmpImageFile.format,
    TiffImagePlugin.TiffImageFile.format,
    PpmImagePlugin.PpmImageFile.format,  # with PGM, PBM and PFM
    *NEWER_FORMATS,
)
"""What is opened, by Pillow's names; importing the plugins has made them known to it."""

MOST_PIXELS = 89_478_485
"""Pixels that a picture may have: where Pillow begins to warn, a quarter of a gigabyte as RGB."""

MOST_SIDE = 2**24
"""Pixels that one side may have: Pillow resamples at coordinates of single precision."""


PREFIX = 16
"""Bytes by which a format is known."""


@runtime_checkable
class BinaryFile(Protocol):
    """An open file, as far as it is needed; `typing.IO` asks for what files in memory lack."""

    def read(self, size: int = -1, /) -> bytes:
        """The next bytes, all of them by default."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go to a place."""


class EncodedPicture(NamedTuple):
    """A picture whose header was read and whose pixels were not."""

    name: str
    """What errors call it."""

    image: ImageFile.ImageFile

    file: BinaryFile


@contextmanager
def opened(source: object) -> Iterator[EncodedPicture]:
    """Open a path, bytes or an open binary file, which is read from its start."""
    if isinstance(source, str | os.PathLike):
        with _open_path(Path(os.fsdecode(source))) as file:
            yield _identified(os.fsdecode(source), file)
    elif isinstance(source, bytes | bytearray | memoryview):
        yield _identified("the file in memory", io.BytesIO(source))
    elif hasattr(source, "read"):
        yield _identified("the open file", cast(BinaryFile, source))
    else:
        raise PictureError(
            f"a picture cannot be a {type(source).__name__}; pass a path, bytes, an open binary "
            "file, a PIL image, a numpy array or a torch tensor."
        )


def check_size(name: str, image: Image.Image, most_pixels: int) -> None:
    """Refuse a picture that would take too much memory to decode."""
    for what, (width, height) in (("", image.size), ("tiles of ", _tile(image))):
        if width * height > most_pixels:
            raise PictureError(
                f"{name} has {what}{width} x {height} pixels, but at most {most_pixels:,} are "
                "decoded, so that no file can fill the memory; shrink it, or pass a higher "
                "most_pixels if you trust it."
            )
        if max(width, height) > MOST_SIDE:
            raise PictureError(
                f"{name} has {what}{width} x {height} pixels, but a side of at most {MOST_SIDE:,} "
                "can be resampled; cut it into parts."
            )


def load(name: str, image: Image.Image) -> None:
    """Decode the pixels, of the first frame or of the one that a PIL image was left at."""
    try:
        image.load()
    except Exception as error:  # decoders fail in as many ways as files are damaged
        raise PictureError(
            f"{name} cannot be decoded ({reason(error)}); it is damaged or was cut short: get it "
            "again."
        ) from error


def _open_path(path: Path) -> io.BufferedReader:
    """Open a regular file; a pipe could keep us waiting for ever."""
    try:
        mode = path.stat().st_mode
        file = path.open("rb") if stat.S_ISREG(mode) else None
    except FileNotFoundError as error:
        raise PictureError(f"{path} does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        raise PictureError(
            f"{path} cannot be opened ({reason(error)}); check the path and its permissions."
        ) from error
    if file is None:
        what = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
        raise PictureError(f"{path} is a {what}; pass the path of one picture, or its bytes.")
    return file


def _identified(name: str, file: BinaryFile) -> EncodedPicture:
    """Read the header of a file by the format that its first bytes show."""
    prefix = _first_bytes(name, file).ljust(PREFIX, b"\0")  # plugins may look without counting
    for format_ in FORMATS:
        factory, accept = Image.OPEN[format_]
        if accept is None or accept(prefix) is not True:
            continue
        file.seek(0)
        try:
            return EncodedPicture(name, factory(cast(IO[bytes], file), ""), file)
        except Image.DecompressionBombError as error:  # WebP makes room before we can look
            raise PictureError(
                f"{name} has more pixels than can be decoded safely ({reason(error)}); shrink it."
            ) from error
        except Exception as error:  # headers are damaged in as many ways as pixels
            raise PictureError(
                f"{name} begins like a {format_} picture, but its header cannot be read "
                f"({reason(error)}); it is damaged, cut short or of a rare kind: get it again, or "
                "convert it to PNG."
            ) from error
    raise PictureError(
        f"{name} is in none of the formats that are read ({', '.join(FORMATS)}), whatever its "
        "name ends in; convert it, for example to PNG."
    )


def _first_bytes(name: str, file: BinaryFile) -> bytes:
    """Enough of a file to know its format."""
    try:
        file.seek(0)
        prefix = file.read(PREFIX)
    except Exception as error:  # any object may call itself a file
        raise PictureError(
            f"{name} cannot be read from its start ({reason(error)}); pass its bytes, as in "
            "file.read()."
        ) from error
    if not isinstance(prefix, bytes):
        raise PictureError(f"{name} gives {type(prefix).__name__}; open it in binary mode, 'rb'.")
    if not prefix:
        raise PictureError(f"{name} is empty; get the file again.")
    return prefix


def _tile(image: Image.Image) -> tuple[int, int]:
    """Width and height of a TIFF file's tiles, each of which is decoded whole; else zeros."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return 0, 0
    tags = image.tag_v2
    sides = tags.get(TiffImagePlugin.TILEWIDTH, 0), tags.get(TiffImagePlugin.TILELENGTH, 0)
    return sides if all(isinstance(side, int) for side in sides) else (0, 0)
