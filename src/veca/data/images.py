"""Decode a file, bytes, array or tensor to an upright, opaque RGB image, and resample it.

Format: decided by content, never by the file name, and limited to FORMATS. Formats that run a
program (EPS), refer to other files or are rare stay closed. Sizes are checked on the header, before
anything is decoded. A truncated file is refused, unless an end marker was appended after the cut,
which Pillow cannot detect.

Colors: transparency is blended onto BACKGROUND before resampling; CMYK becomes RGB by the plain
formula; gray of more than 8 bits (PNG, TIFF, PGM) and floats (TIFF, PFM) stay floats in 0..1, while
Pillow keeps the upper 8 bits of 16-bit colors. Embedded color profiles are ignored, as in the
pipelines that teachers were trained with.

Arrays have channels last: (H, W), (H, W, 1), (H, W, 3) or (H, W, 4); tensors have them first. A
fourth channel is opacity. uint8 runs to 255, uint16 to 65535, floats from 0 to 1.

Resampling is antialiased bicubic (a = -0.5): along x, then along y, clipped after each pass. For
8-bit images both passes are Pillow's `Image.resize` with BICUBIC. Newer Pillow versions may begin
with y where that is faster, which differs where colors are clipped. Float images go through the
same passes and are never rounded to 8 bits.
"""

import io
import math
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageChops, ImageFile
from PIL.TiffImagePlugin import (
    BITSPERSAMPLE,
    PHOTOMETRIC_INTERPRETATION,
    TILELENGTH,
    TILEWIDTH,
    TiffImageFile,
)
from torch import Tensor

from veca.runtime import VecaError
from veca.runtime.files import printable

Image.init()  # registers all formats
FORMATS = tuple(
    name
    for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
    if name in Image.OPEN  # AVIF is missing before Pillow 11.3
)
"""Formats that are opened, by Pillow's names; PPM includes PGM, PBM and PFM."""

MAX_PIXELS = 89_478_485
"""Most pixels of an image: where Pillow begins to warn, a quarter of a gigabyte as RGB."""

MAX_SIDE = 2**24
"""Longest side: Pillow computes resampling coordinates in single precision."""

BACKGROUND = (255, 255, 255, 255)
"""Color behind transparent pixels: white."""

TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transposition that makes an image upright, by EXIF orientation; other values are upright."""

SLACK = 1e-4
"""How far floats may leave 0..1 through rounding; they are clipped."""

MAX_16_BIT = 65535

GRAY_STEPS = {"L;2": 85, "L;4": 17}
"""Difference between two grays of a PNG file with few of them, by Pillow's name of the packing."""

CHANNELS = (1, 3, 4)

Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels; a pixel begins at a whole number."""


class ImageError(VecaError, ValueError):
    """An image that cannot be used."""


class DataError(VecaError, ValueError):
    """A path, list, shard or dataset that cannot be used."""


Encoded = str | os.PathLike[str] | bytes | bytearray | memoryview | io.IOBase | IO[bytes]
Source = Encoded | Image.Image | NDArray[Any] | Tensor
"""Everything that is accepted as an image; an open file is read from its start."""


@dataclass(frozen=True)
class DecodedImage:
    """Upright, opaque colors in 8 bits or in floats."""

    bands: tuple[Image.Image, ...]
    """One 8-bit 'RGB' image, or one (gray) or three (color) 'F' images within 0..1."""

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width."""
        width, height = self.bands[0].size
        return height, width

    def resampled(self, sides: tuple[int, int], box: Box) -> "DecodedImage":
        """Resize the part inside `box`; pixels around it contribute at its borders."""
        height, width = sides
        left, top, right, bottom = box
        first, last = _support(top, bottom, height)
        first, last = max(0, first), min(self.sides[0], last)  # along x only rows that are needed
        across = (left, float(first), right, float(last))
        down = (0.0, top - first, float(width), bottom - first)
        bands = [_resize(band, (width, last - first), across) for band in self.bands]
        return DecodedImage(tuple(_resize(band, (width, height), down) for band in bands))

    def resampled_beyond(self, sides: tuple[int, int], box: Box) -> "DecodedImage":
        """As `resampled`, with a box that may leave the image, which is mirrored at its borders."""
        height, width = self.sides
        left, top, right, bottom = box
        if left >= 0 and top >= 0 and right <= width and bottom <= height:
            return self.resampled(sides, box)
        first_row, last_row = _support(top, bottom, sides[0])
        first_column, last_column = _support(left, right, sides[1])
        rows = mirrored(first_row, last_row, height)
        columns = mirrored(first_column, last_column, width)
        bands = [Image.fromarray(np.asarray(band)[rows][:, columns]) for band in self.bands]
        inner = (left - first_column, top - first_row, right - first_column, bottom - first_row)
        return DecodedImage(tuple(bands)).resampled(sides, inner)

    def pixels(self) -> Shaped[Tensor, "3 height width"]:
        """Return uint8, or floats within 0..1."""
        if self.bands[0].mode == "RGB":
            return torch.from_numpy(np.array(self.bands[0])).permute(2, 0, 1).contiguous()
        planes = [torch.from_numpy(np.array(band)) for band in self.bands]
        return torch.stack(planes * (3 // len(planes)))

    def thumbnail(self, side: int) -> Image.Image:
        """An 8-bit picture whose long side has this many pixels."""
        height, width = self.sides
        scale = side / max(height, width)
        sides = max(1, round(height * scale)), max(1, round(width * scale))
        pixels = self.resampled(sides, (0.0, 0.0, float(width), float(height))).pixels()
        if pixels.is_floating_point():
            pixels = (pixels * 255).round().byte()
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def decode(
    source: object, max_pixels: int = MAX_PIXELS, min_side: int | None = None
) -> DecodedImage:
    """Decode to upright, opaque colors: the first frame, or the current one of a PIL image.

    With `min_side`, a JPEG is decoded at 1, 1/2, 1/4 or 1/8 of its size, the smallest that has at
    least that many pixels on both sides, which is several times faster for large photographs.
    """
    if isinstance(source, np.ndarray):
        return image_from_array(source)
    if isinstance(source, Tensor):
        return _from_tensor(source)
    if isinstance(source, Image.Image):
        with _strict_pillow(max_pixels):
            return _decode("the image given", source, max_pixels)
    with opened(source, max_pixels) as (name, image):
        _match_transparency(image)
        if min_side is not None:
            image.draft(None, (min_side, min_side))
        return _decode(name, image, max_pixels)


@contextmanager
def opened(
    source: object, max_pixels: int = MAX_PIXELS
) -> Iterator[tuple[str, ImageFile.ImageFile]]:
    """Read the header of a path, bytes or a binary file; yields its name in errors and the image.

    An image that would need too much memory to decode is refused.
    """
    with ExitStack() as stack:
        stack.enter_context(_strict_pillow(max_pixels))
        if isinstance(source, str | os.PathLike):
            name = os.fsdecode(source)
            file: IO[bytes] = stack.enter_context(_open_path(Path(name)))
        elif isinstance(source, bytes | bytearray | memoryview):
            name, file = "the file in memory", io.BytesIO(source)
        elif hasattr(source, "read"):
            name, file = "the open file", cast(IO[bytes], source)
        else:
            raise ImageError(
                f"a {type(source).__name__} is not an image; pass a path, bytes, an open binary "
                "file, a PIL image, a numpy array or a torch tensor."
            )
        image = _read_header(name, file)
        _check_size(name, image, max_pixels)
        yield name, image


def _check_size(name: str, image: Image.Image, max_pixels: int) -> None:
    """Refuse an image that would need too much memory to decode."""
    sizes = {"": image.size}
    if isinstance(image, TiffImageFile):  # each of its tiles is decoded whole
        tile = [image.tag_v2.get(tag, 0) for tag in (TILEWIDTH, TILELENGTH)]
        if all(isinstance(side, int) for side in tile):
            sizes["tiles of "] = (tile[0], tile[1])
    for what, (width, height) in sizes.items():
        if width * height > max_pixels:
            raise ImageError(
                f"{name} has {what}{width} x {height} pixels, but at most {max_pixels:,} are "
                "decoded; shrink it, or pass a higher max_pixels if you trust it."
            )
        if max(width, height) > MAX_SIDE:
            raise ImageError(
                f"{name} has {what}{width} x {height} pixels, but a side may have at most "
                f"{MAX_SIDE:,}; cut it into parts."
            )


def load(name: str, image: Image.Image) -> None:
    """Decode the pixels."""
    try:
        image.load()
    except Exception as error:  # decoders fail in as many ways as files are damaged
        raise ImageError(
            f"{name} cannot be decoded ({reason(error)}); it is damaged or truncated: get it again."
        ) from error


_SETTINGS_LOCK = threading.Lock()


@contextmanager
def _strict_pillow(max_pixels: int) -> Iterator[None]:
    """Refuse truncated files and allow `max_pixels`, whatever Pillow's global settings are.

    Other code may have set `LOAD_TRUNCATED_IMAGES`, which fills missing pixels with gray, or a low
    `MAX_IMAGE_PIXELS`. They are changed only where they stand in the way, so that threads normally
    decode in parallel.
    """
    _SETTINGS_LOCK.acquire()  # also waits for a thread that has changed the settings
    truncated, limit = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    too_low = limit is not None and limit < max_pixels
    if not truncated and not too_low:
        _SETTINGS_LOCK.release()
        yield
        return
    try:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        Image.MAX_IMAGE_PIXELS = max_pixels if too_low else limit
        yield
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS = truncated, limit
        _SETTINGS_LOCK.release()


def reason(error: Exception) -> str:
    """Shorten the message of a library to one line without control characters."""
    text = printable(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:120]}..."


def _open_path(path: Path) -> io.BufferedReader:
    """Open a regular file; a pipe could block forever."""
    try:
        if path.is_file():
            return path.open("rb")
    except (OSError, ValueError) as error:
        raise ImageError(
            f"{path} cannot be opened ({reason(error)}); check the path and its permissions."
        ) from error
    raise ImageError(f"{path} does not exist or is not a regular file; check the path.")


def _read_header(name: str, file: Any) -> ImageFile.ImageFile:  # noqa: ANN401 - no class
    """Identify a file, anything with `read` and `seek`, by its first bytes; read its header."""
    try:
        file.seek(0)
        return Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(
            f"{name} has more pixels than can be decoded safely ({reason(error)}); shrink it."
        ) from error
    except Exception as error:  # headers are damaged, and files misbehave, in many ways
        raise ImageError(
            f"{name} cannot be read as one of the formats {', '.join(FORMATS)} ({reason(error)}); "
            "it is empty, damaged or of another format: get it again, or convert it to PNG."
        ) from error


def _decode(name: str, image: Image.Image, max_pixels: int) -> DecodedImage:
    """Decode an opened image, and make it upright and RGB or float gray."""
    _check_size(name, image, max_pixels)
    load(name, image)
    upright = _upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return DecodedImage((_plane(_gray(name, upright, image)),))
    if image.mode == "CMYK" and image.format in {"JPEG", "MPO"} and "adobe" not in image.info:
        upright = ImageChops.invert(upright)  # Pillow takes every CMYK JPEG for Adobe's, inverted
    try:
        return DecodedImage((_opaque(upright),))
    except Exception as error:  # a mode that has no conversion to RGB, or a broken palette
        raise ImageError(
            f"{name} has colors that cannot be read (mode {image.mode}: {reason(error)}); convert "
            "it to an RGB file, for example with Pillow."
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    """Apply the EXIF orientation; damaged EXIF is ignored.

    Not `ImageOps.exif_transpose`, which copies upright images and fails on damaged EXIF.
    """
    try:
        method = TRANSPOSE.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return image
    return image if method is None else image.transpose(method)


def _opaque(image: Image.Image) -> Image.Image:
    """Convert to RGB, on the background where it is transparent."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")  # convert would copy
    if image.mode == "La":
        image = image.convert("LA")  # Pillow's only conversion from here
    canvas = Image.new("RGBA", image.size, BACKGROUND)
    canvas.alpha_composite(image.convert("RGBA"))
    return canvas.convert("RGB")


def _match_transparency(image: ImageFile.ImageFile) -> None:
    """Scale a PNG file's transparent color as Pillow will scale its pixels.

    Must be called before decoding, when Pillow forgets how the file packs its pixels.
    """
    color = image.info.get("transparency")
    packing = image.tile[0][3] if image.format == "PNG" and image.tile else None
    if packing == "RGB;16B" and isinstance(color, tuple):
        image.info["transparency"] = tuple(part >> 8 for part in color)
    elif isinstance(packing, str) and packing in GRAY_STEPS and isinstance(color, int):
        image.info["transparency"] = color * GRAY_STEPS[packing]


def _gray(name: str, image: Image.Image, opened: Image.Image) -> NDArray[Any]:
    """Convert gray of more than 8 bits to floats in 0..1, as the tags of the opened file say."""
    values = np.asarray(image)
    tags = opened.tag_v2 if isinstance(opened, TiffImageFile) else {}
    if image.mode == "F":
        found = _check_floats(name, values)
    else:
        low, high = int(values.min()), int(values.max())
        if low < 0 or high > MAX_16_BIT:
            raise ImageError(
                f"{name} has integers from {low} to {high}, but gray must lie in "
                f"0..{MAX_16_BIT}; scale it, or store floats in 0..1."
            )
        twelve_bits = tuple(tags.get(BITSPERSAMPLE, ())) == (12,)
        found = values.astype(np.float32) / (4095 if twelve_bits else MAX_16_BIT)
    if tags.get(PHOTOMETRIC_INTERPRETATION) == 0:  # white, which Pillow ignores here
        found = 1 - found
    transparent = image.info.get("transparency")
    return found if transparent is None else np.where(values == transparent, 1.0, found)


def _from_tensor(tensor: Tensor) -> DecodedImage:
    """Take a tensor on any device, channels first."""
    if tensor.ndim == 3 and tensor.shape[0] in CHANNELS:
        tensor = tensor.permute(1, 2, 0)
    elif tensor.ndim != 2:
        raise _wrong_shape("tensor", tensor.shape, "(H, W), (1, H, W), (3, H, W) or (4, H, W)")
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()  # numpy has no bfloat16
    return image_from_array(tensor.numpy())


def image_from_array(array: NDArray[Any]) -> DecodedImage:
    """Take a numpy array, channels last."""
    if array.ndim != 2 and not (array.ndim == 3 and array.shape[2] in CHANNELS):
        raise _wrong_shape("array", array.shape, "(H, W), (H, W, 1), (H, W, 3) or (H, W, 4)")
    if array.size == 0:
        raise ImageError(f"an image of shape {array.shape} is empty; both sides must be >= 1.")
    channels = array.reshape(*array.shape[:2], -1)
    if channels.dtype == np.uint8:
        gray = channels.shape[2] == 1
        return DecodedImage((_opaque(Image.fromarray(channels[..., 0] if gray else channels)),))
    if channels.dtype.kind == "u" and channels.dtype.itemsize == 2:
        floats = channels.astype(np.float32) / MAX_16_BIT
    elif channels.dtype.kind == "f":
        floats = _check_floats("the image given", channels).astype(np.float32)
    else:
        raise ImageError(
            f"an image cannot be of dtype {channels.dtype}; convert it to uint8, uint16 or floats "
            "in 0..1."
        )
    colors = floats[..., :3]
    if floats.shape[2] == 4:
        opacity = floats[..., 3:]
        colors = colors * opacity + (1 - opacity)  # on white, as everywhere
    return DecodedImage(tuple(_plane(colors[..., band]) for band in range(colors.shape[2])))


def _check_floats(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Refuse floats outside 0..1."""
    low, high = float(values.min()), float(values.max())
    if not (low >= -SLACK and high <= 1 + SLACK):  # also refuses NaN
        raise ImageError(
            f"{name} has floats from {low:g} to {high:g}, but colors must lie in 0..1; divide "
            "by the greatest possible value."
        )
    return values


def _wrong_shape(kind: str, shape: tuple[int, ...], allowed: str) -> ImageError:
    """Describe what is not a single image."""
    return ImageError(
        f"the {kind} given has the shape {tuple(shape)}, but one image must be {allowed}; pass "
        "images one by one, with the axes in this order."
    )


def mirrored(first: int, last: int, side: int) -> NDArray[np.int64]:
    """Map positions `first` up to `last` to pixels 0..side-1, mirrored at the borders.

    The outermost pixels are repeated (numpy's 'symmetric' padding), as often as needed.
    """
    places = np.arange(first, last) % (2 * side)
    return np.where(places < side, places, 2 * side - 1 - places)


def _plane(values: NDArray[Any]) -> Image.Image:
    """Make a band of floats, clipped to 0..1."""
    return Image.fromarray(np.clip(values, 0, 1).astype(np.float32, copy=False))


def _support(start: float, end: float, count: int) -> tuple[int, int]:
    """First and last pixel (exclusive) on which `count` resampled pixels of a range depend."""
    reach = 2 * max(1.0, (end - start) / count) + 1  # of the kernel, and one for rounding
    return math.floor(start - reach), math.ceil(end + reach)


def _resize(band: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    """Resample in one pass; Pillow clips uint8 by itself."""
    found = band.resize(size, Image.Resampling.BICUBIC, box)
    return found if band.mode == "RGB" else _plane(np.asarray(found))
