"""Which way up a picture is: cameras store it as the sensor lay and note how to turn it."""

import io

from PIL import ExifTags, Image, ImageFile

from veca.data.opening import BinaryFile

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
