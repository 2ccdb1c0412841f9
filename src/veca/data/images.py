"""From a file, bytes, array or tensor to an upright RGB image.

What goes wrong with pictures, in words for the person who passed them.

Pillow as strict as we need it, whatever other libraries have told it.

Two of Pillow's settings are global. `LOAD_TRUNCATED_IMAGES`, which much training code switches on,
makes half-gray pictures of files that were cut short; `MAX_IMAGE_PIXELS` stops what a caller of
ours has allowed. Where one of them stands in the way, it is changed for the time of one decoding
and put back. Nearly always there is nothing to change, and threads decode side by side.

From whatever holds an encoded picture to an identified file, by content and within limits.

A file is what its first bytes say, whatever its name ends in, and only if they say one of FORMATS.
Formats that run a program (EPS), name other files or are hardly met stay closed: each one is a
decoder that strangers can feed. Sizes are checked on the header, before anything is decoded.

A file that was cut short is refused. One that ends too early but in form (a JPEG to which someone
has added an end mark after the cut) is not: Pillow does not tell.

Which way up a picture is: cameras store it as the sensor lay and note how to turn it.

From the many color modes of decoded images to a `Picture`.

* What is transparent shows BACKGROUND, blended before anything is resampled.
* CMYK becomes RGB by the plain formula. JPEG files with Adobe's marker store it inverted, others
  do not; both come out right.
* More than 8 bits of gray (PNG, TIFF, PGM) and floats (TIFF, PFM) stay floats, scaled by the
  greatest value of their type and never clipped. Of 16-bit colors Pillow keeps the upper 8 bits.
* Embedded color profiles are ignored, as in the pipelines that teachers were trained with.

From numbers in memory to a `Picture`.

Numpy arrays have the channels last: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4). Torch tensors have
them first: (H, W), (1, H, W), (3, H, W) or (4, H, W). A fourth channel is opacity. Bytes run to
255, 16 bits to 65535, floats from 0 to 1.

A decoded picture, and the one way in which it is resampled.

Resampling is bicubic (a = -0.5) with antialiasing: along x, then along y, brought back into range
after each pass. For 8-bit pictures both passes are Pillow's `Image.resize` with BICUBIC, so that
the outcome is that of Pillow as most training pipelines have used it; newer ones may begin with y
where that is faster, and differ where colors are clipped. Finer pictures go through the same
passes in floats and are never rounded to 8 bits.

From anything that is a picture to its colors, or to its size alone.
"""

import io
import math
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from PIL import (
    BmpImagePlugin,
    ExifTags,
    GifImagePlugin,
    Image,
    ImageChops,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)
from PIL.TiffImagePlugin import BITSPERSAMPLE, PHOTOMETRIC_INTERPRETATION, TiffImageFile
from torch import Tensor

from veca.runtime import VecaError


class ImageError(VecaError, ValueError):
    """A picture that cannot be used: what was got, what is allowed, what to do."""


class InputError(VecaError, ValueError):
    """A path, list, pattern or shard that names no usable pictures."""


class DataError(VecaError, ValueError):
    """Images that cannot be trained on: what was got, what is allowed, what to do."""


class WorkerError(VecaError, RuntimeError):
    """A worker process that was ended from outside."""


def reason(error: Exception, most: int = 120) -> str:
    """Why a library failed, on one line of bounded length, without characters a terminal obeys."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= most else f"{text[:most]}..."


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
        raise ImageError(
            f"a picture cannot be a {type(source).__name__}; pass a path, bytes, an open binary "
            "file, a PIL image, a numpy array or a torch tensor."
        )


def check_size(name: str, image: Image.Image, most_pixels: int) -> None:
    """Refuse a picture that would take too much memory to decode."""
    for what, (width, height) in (("", image.size), ("tiles of ", _tile(image))):
        if width * height > most_pixels:
            raise ImageError(
                f"{name} has {what}{width} x {height} pixels, but at most {most_pixels:,} are "
                "decoded, so that no file can fill the memory; shrink it, or pass a higher "
                "most_pixels if you trust it."
            )
        if max(width, height) > MOST_SIDE:
            raise ImageError(
                f"{name} has {what}{width} x {height} pixels, but a side of at most {MOST_SIDE:,} "
                "can be resampled; cut it into parts."
            )


def load(name: str, image: Image.Image) -> None:
    """Decode the pixels, of the first frame or of the one that a PIL image was left at."""
    try:
        image.load()
    except Exception as error:  # decoders fail in as many ways as files are damaged
        raise ImageError(
            f"{name} cannot be decoded ({reason(error)}); it is damaged or was cut short: get it "
            "again."
        ) from error


def _open_path(path: Path) -> io.BufferedReader:
    """Open a regular file; a pipe could keep us waiting for ever."""
    try:
        mode = path.stat().st_mode
        file = path.open("rb") if stat.S_ISREG(mode) else None
    except FileNotFoundError as error:
        raise ImageError(f"{path} does not exist; check the path.") from error
    except (OSError, ValueError) as error:
        raise ImageError(
            f"{path} cannot be opened ({reason(error)}); check the path and its permissions."
        ) from error
    if file is None:
        what = "folder" if stat.S_ISDIR(mode) else "device or a pipe"
        raise ImageError(f"{path} is a {what}; pass the path of one picture, or its bytes.")
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
            raise ImageError(
                f"{name} has more pixels than can be decoded safely ({reason(error)}); shrink it."
            ) from error
        except Exception as error:  # headers are damaged in as many ways as pixels
            raise ImageError(
                f"{name} begins like a {format_} picture, but its header cannot be read "
                f"({reason(error)}); it is damaged, cut short or of a rare kind: get it again, or "
                "convert it to PNG."
            ) from error
    raise ImageError(
        f"{name} is in none of the formats that are read ({', '.join(FORMATS)}), whatever its "
        "name ends in; convert it, for example to PNG."
    )


def _first_bytes(name: str, file: BinaryFile) -> bytes:
    """Enough of a file to know its format."""
    try:
        file.seek(0)
        prefix = file.read(PREFIX)
    except Exception as error:  # any object may call itself a file
        raise ImageError(
            f"{name} cannot be read from its start ({reason(error)}); pass its bytes, as in "
            "file.read()."
        ) from error
    if not isinstance(prefix, bytes):
        raise ImageError(f"{name} gives {type(prefix).__name__}; open it in binary mode, 'rb'.")
    if not prefix:
        raise ImageError(f"{name} is empty; get the file again.")
    return prefix


def _tile(image: Image.Image) -> tuple[int, int]:
    """Width and height of a TIFF file's tiles, each of which is decoded whole; else zeros."""
    if not isinstance(image, TiffImagePlugin.TiffImageFile):
        return 0, 0
    tags = image.tag_v2
    sides = tags.get(TiffImagePlugin.TILEWIDTH, 0), tags.get(TiffImagePlugin.TILELENGTH, 0)
    return sides if all(isinstance(side, int) for side in sides) else (0, 0)


TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What brings a picture of each EXIF orientation upright; all other numbers mean upright."""

LYING = frozenset({5, 6, 7, 8})
"""The orientations that swap width and height."""


def upright(image: Image.Image) -> Image.Image:
    """The picture as the camera's owner saw it; `image` is decoded."""
    turn = TURNS.get(_orientation(image))
    return image if turn is None else image.transpose(turn)


def upright_size(image: ImageFile.ImageFile, file: BinaryFile) -> tuple[int, int]:
    """Width and height of the picture when it is upright, without decoding it."""
    width, height = image.size
    if image.format == "TIFF":  # Pillow turns these by itself
        return width, height
    if image.format == "PNG" and "exif" not in image.info:
        image.info["exif"] = _exif_of_png(file)  # else Pillow would decode to find it
    return (height, width) if _orientation(image) in LYING else (width, height)


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation; 1 where there is none, or where what should tell it is damaged."""
    try:
        found = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged EXIF fails in many ways, and the pixels are none the worse
        return 1
    return found if isinstance(found, int) else 1


def _exif_of_png(file: BinaryFile) -> bytes:
    """The EXIF block of a PNG file, which may stand behind the pixels."""
    file.seek(8)
    while len(head := file.read(8)) == 8:
        length, kind = int.from_bytes(head[:4], "big"), head[4:]
        if kind == b"eXIf":
            return b"Exif\0\0" + file.read(length)
        file.seek(length + 4, io.SEEK_CUR)
    return b""


SLACK = 1e-4
"""How far floats may leave 0..1, since arithmetic strays; they are clipped."""

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels, which begin at whole numbers."""


@dataclass(frozen=True)
class Picture:
    """Upright and opaque colors, in 8 bits or in floats."""

    bands: tuple[Image.Image, ...]
    """One 'RGB' image of 8 bits, or one (gray) or three (color) 'F' images within 0..1."""

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        width, height = self.bands[0].size
        return height, width

    def resampled(self, sides: tuple[int, int], box: Box) -> "Picture":
        """The part within the box at another height and width; what lies around it weighs in."""
        return Picture(tuple(_resampled(band, sides, box) for band in self.bands))

    def resampled_beyond(self, sides: tuple[int, int], box: Box) -> "Picture":
        """As `resampled`, of a box that may leave the picture, which is mirrored at its borders."""
        height, width = self.sides
        left, top, right, bottom = box
        if left >= 0 and top >= 0 and right <= width and bottom <= height:
            return self.resampled(sides, box)
        first_row, last_row = _reached(top, bottom, sides[0])
        first_column, last_column = _reached(left, right, sides[1])
        rows = mirrored(first_row, last_row, height)
        columns = mirrored(first_column, last_column, width)
        bands = [Image.fromarray(np.asarray(band)[rows][:, columns]) for band in self.bands]
        within = (left - first_column, top - first_row, right - first_column, bottom - first_row)
        return Picture(tuple(bands)).resampled(sides, within)

    def pixels(self) -> Shaped[Tensor, "3 height width"]:
        """Bytes, or floats within 0..1."""
        if self.bands[0].mode == "RGB":
            return torch.from_numpy(np.array(self.bands[0])).permute(2, 0, 1).contiguous()
        planes = [torch.from_numpy(np.array(band)) for band in self.bands]
        return torch.stack(planes * (3 // len(planes)))


def mirrored(first: int, last: int, side: int) -> NDArray[np.int64]:
    """Which of `side` pixels stand at the places from `first` up to `last`, of which some are none.

    Mirrors stand on the borders, so that the outermost pixels come twice in a row (numpy calls it
    'symmetric'), and again behind each other as often as it takes.
    """
    places = np.arange(first, last) % (2 * side)
    return np.where(places < side, places, 2 * side - 1 - places)


def checked_floats(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse floats that are no colors in 0..1."""
    low, high = float(values.min()), float(values.max())
    if not (low >= -SLACK and high <= 1 + SLACK):  # also where one of them is not a number
        raise ImageError(
            f"{name} holds floats from {low:g} to {high:g}, but colors in 0..1 are needed; divide "
            "by the greatest value that a color can have."
        )
    return values


def plane(values: NDArray[Any]) -> Image.Image:
    """A band of floats, brought into 0..1."""
    return Image.fromarray(np.clip(values, 0, 1).astype(np.float32, copy=False))


def _resampled(band: Image.Image, sides: tuple[int, int], box: Box) -> Image.Image:
    """One band, first along x, of the rows that are needed only, then along y."""
    height, width = sides
    left, top, right, bottom = box
    first, last = _reached(top, bottom, height)
    first, last = max(0, first), min(band.height, last)
    band = _resized(band, (width, last - first), (left, float(first), right, float(last)))
    return _resized(band, (width, height), (0.0, top - first, float(width), bottom - first))


def _reached(start: float, end: float, count: int) -> tuple[int, int]:
    """From which pixel up to which one `count` new ones between two places depend on the old."""
    reach = 2 * max(1.0, (end - start) / count) + 1  # of the kernel, and one for rounding
    return math.floor(start - reach), math.ceil(end + reach)


def _resized(band: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    """One pass; Pillow brings bytes back into range by itself."""
    found = band.resize(size, Image.Resampling.BICUBIC, box)
    return found if band.mode == "RGB" else plane(np.asarray(found))


BACKGROUND = (255, 255, 255, 255)
"""What is seen through transparent pixels: white."""

GREATEST_16_BIT = 65535

GRAY_STEPS = {"L;2": 85, "L;4": 17}
"""From one gray of a PNG file with few grays to the next, by Pillow's name for their packing."""


def picture_of_image(name: str, image: Image.Image) -> Picture:
    """Bring a decoded image upright and into colors."""
    turned = upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return Picture((plane(_gray(name, turned, _tiff_facts(image))),))
    if image.mode == "CMYK" and image.format in {"JPEG", "MPO"} and "adobe" not in image.info:
        turned = ImageChops.invert(turned)  # Pillow takes every one for Adobe's
    try:
        return Picture((opaque(turned),))
    except Exception as error:  # a mode without a way to RGB, or a palette that is broken
        raise ImageError(
            f"{name} has colors that cannot be read (mode {image.mode}: {reason(error)}); convert "
            "it to an RGB file, for example with Pillow."
        ) from error


def opaque(image: Image.Image) -> Image.Image:
    """The image as RGB, laid on the background where it is transparent."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")  # which would copy
    if image.mode == "La":
        image = image.convert("LA")  # the only step that Pillow has from here
    canvas = Image.new("RGBA", image.size, BACKGROUND)
    canvas.alpha_composite(image.convert("RGBA"))
    return canvas.convert("RGB")


def match_transparency(image: ImageFile.ImageFile) -> None:
    """Scale the color that a PNG file calls transparent as Pillow will scale its pixels.

    To be called before the pixels are decoded: then Pillow forgets how the file packs them.
    """
    color = image.info.get("transparency")
    packing = image.tile[0][3] if image.format == "PNG" and image.tile else None
    if packing == "RGB;16B" and isinstance(color, tuple):
        image.info["transparency"] = tuple(part >> 8 for part in color)
    elif isinstance(packing, str) and packing in GRAY_STEPS and isinstance(color, int):
        image.info["transparency"] = color * GRAY_STEPS[packing]


def _gray(name: str, image: Image.Image, facts: tuple[int, bool]) -> NDArray[Any]:
    """Grays beyond 8 bits as floats in 0..1."""
    values = np.asarray(image)
    greatest, white_is_zero = facts
    if image.mode == "F":
        grays = checked_floats(name, values)
    else:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > GREATEST_16_BIT:
            raise ImageError(
                f"{name} holds whole numbers from {low} to {high}, but grays of at most 16 bits, "
                "0..65535, are needed; scale them, or store floats in 0..1."
            )
        grays = values.astype(np.float32) / greatest
    if white_is_zero:
        grays = 1 - grays
    transparent = image.info.get("transparency")
    return grays if transparent is None else np.where(values == transparent, 1.0, grays)


def _tiff_facts(image: Image.Image) -> tuple[int, bool]:
    """The greatest gray and whether zero is white, which Pillow does not apply to TIFF files."""
    if not isinstance(image, TiffImageFile):
        return GREATEST_16_BIT, False
    twelve = tuple(image.tag_v2.get(BITSPERSAMPLE, ())) == (12,)
    white_is_zero = image.tag_v2.get(PHOTOMETRIC_INTERPRETATION) == 0
    return 4095 if twelve else GREATEST_16_BIT, white_is_zero


CHANNELS = (1, 3, 4)


def picture_of_tensor(tensor: Tensor) -> Picture:
    """A picture from a tensor on any device."""
    if tensor.ndim == 3 and tensor.shape[0] in CHANNELS:
        tensor = tensor.permute(1, 2, 0)
    elif tensor.ndim != 2:
        raise _wrong_shape("tensor", tensor.shape, "(H, W), (1, H, W), (3, H, W) or (4, H, W)")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy knows fewer types of floats
    return _picture("the tensor given", tensor.numpy())


def picture_of_array(array: NDArray[Any]) -> Picture:
    """A picture from a numpy array."""
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in CHANNELS):
        raise _wrong_shape("array", array.shape, "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    return _picture("the array given", array)


def _picture(name: str, array: NDArray[Any]) -> Picture:
    """A picture from an array whose shape is right."""
    if array.size == 0:
        raise ImageError(
            f"{name} has the shape {array.shape}, which holds no pixel; pass a picture with sides "
            "of at least 1."
        )
    channels = array.reshape(*array.shape[:2], -1)
    if channels.dtype == np.uint8:
        gray = channels.shape[2] == 1
        return Picture((opaque(Image.fromarray(channels[..., 0] if gray else channels)),))
    floats = _floats(name, channels)
    colors = floats[..., :3]
    if floats.shape[2] == 4:
        opacity = floats[..., 3:]
        colors = colors * opacity + (1 - opacity)  # on white, as everywhere
    return Picture(tuple(plane(colors[..., band]) for band in range(colors.shape[2])))


def _floats(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Values in 0..1, whatever type they came in."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:
        return array.astype(np.float32) / GREATEST_16_BIT
    if array.dtype.kind == "f":
        return checked_floats(name, array).astype(np.float32)
    raise ImageError(
        f"{name} holds {array.dtype} numbers, but uint8, uint16 or floats in 0..1 are needed; "
        "convert it with astype or to."
    )


def _wrong_shape(kind: str, shape: tuple[int, ...], allowed: str) -> ImageError:
    """The error for what is no single picture."""
    return ImageError(
        f"the {kind} given has the shape {tuple(shape)}, but one picture of shape {allowed} is "
        "needed; pass pictures one by one, and move the axes to this order."
    )


EncodedSource = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryFile
"""A path, the bytes of a file, or an open binary file, which is read from its start."""

Source = EncodedSource | Image.Image | NDArray[Any] | Tensor
"""Everything that is taken for a picture; arrays and tensors as `arrays.py` says."""


def decode(
    source: object, most_pixels: int = MOST_PIXELS, least_side: int | None = None
) -> Picture:
    """The picture, upright and opaque: the first frame, or the one that a PIL image stands at.

    Where `least_side` is given, an encoded JPEG comes at 1, 1/2, 1/4 or 1/8 of its size, the
    smallest with that many pixels on both sides: its decoder can leave the finest detail out, which
    makes large photographs several times faster to read.
    """
    if isinstance(source, np.ndarray):
        return picture_of_array(source)
    if isinstance(source, Tensor):
        return picture_of_tensor(source)
    with strict_pillow(most_pixels):
        if isinstance(source, Image.Image):
            return _decoded("the image given", source, most_pixels)
        with opened(source) as (name, image, _):
            match_transparency(image)
            check_size(name, image, most_pixels)  # of the whole picture
            if least_side is not None:
                image.draft(None, (least_side, least_side))
            return _decoded(name, image, most_pixels)


def read_size(source: EncodedSource) -> tuple[int, int]:
    """Width and height of the upright picture, from the header alone."""
    with strict_pillow(MOST_PIXELS), opened(source) as (_, image, file):
        return upright_size(image, file)


def _decoded(name: str, image: Image.Image, most_pixels: int) -> Picture:
    """Decode an image whose size is allowed."""
    check_size(name, image, most_pixels)
    load(name, image)
    return picture_of_image(name, image)
