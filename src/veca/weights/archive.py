"""A door before `torch.load`: is this file the plain archive that `torch.save` writes?

`torch.load(weights_only=True)` runs no foreign code, but a hostile file can still ask it for more
memory than there is. `torch.save` writes a zip archive that compresses nothing and a pickle that
names a handful of types. Whatever else is in a file did not come from there, and is refused before
torch sees it. Nothing is unpickled here.
"""

import pickletools
import re
import zipfile
from pathlib import Path

from veca.weights.errors import WeightsError, listed

MOST_PICKLE_BYTES = 2_000_000
"""The pickle holds names and shapes, some hundred bytes for each of about two thousand tensors."""

MOST_ENTRIES = 100_000
"""Each tensor is an entry of the archive."""

PLAIN_TYPES = re.compile(
    r"collections (OrderedDict|Counter)|torch\._utils _rebuild_(tensor_v2|parameter)|"
    r"torch (Size|device)|__builtin__ set|"
    r"torch (Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)Storage|"
    r"torch (float|int|uint|bfloat)\d+|torch bool"
)
"""What a checkpoint of plain containers, numbers and tensors names in its pickle."""

NAMING_CODES = {"STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX"}
"""Codes of a pickle that name or make types in ways that `torch.save` does not use."""


def check_archive(path: Path) -> None:
    """Refuse a file that `torch.save` would not have written."""
    size = path.stat().st_size
    if not _is_whole_zip(path, size):
        raise WeightsError(
            f"{path} is no checkpoint that torch.save wrote (a zip archive from its first byte to "
            "its last); it is cut short, in a format older than torch 1.6, or something else: get "
            "it again, or save it again with a newer torch."
        )
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = _checked_pickle(archive, path, size)
    except WeightsError:
        raise
    except Exception as error:  # the readers of damaged archives raise errors of every kind
        raise WeightsError(f"{path} is a damaged checkpoint ({error}); get it again.") from error
    _check_types(pickled, path)


def _is_whole_zip(path: Path, size: int) -> bool:
    """Whether the archive is the whole file, so that all readers see the same one."""
    if size < 22:
        return False
    with path.open("rb") as file:
        first = file.read(4)
        file.seek(size - 22)
        last = file.read()
    return first == b"PK\x03\x04" and last[:4] == b"PK\x05\x06" and last[-2:] == b"\0\0"


def _checked_pickle(archive: zipfile.ZipFile, path: Path, size: int) -> bytes:
    """The pickle of an archive whose entries are stored as they are."""
    entries = archive.infolist()
    squeezed = [
        entry.filename
        for entry in entries
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size
    ]
    if squeezed:
        raise WeightsError(
            f"{path} has compressed entries ({listed(squeezed)}), which torch.save never writes; "
            "do not trust it, get the checkpoint from its authors."
        )
    if len(entries) > MOST_ENTRIES or sum(entry.file_size for entry in entries) > size:
        raise WeightsError(
            f"{path} claims more content than its {size} bytes can hold; do not trust it, get the "
            "checkpoint from its authors."
        )
    pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
    if len(pickles) != 1 or pickles[0].filename.split("/")[1:] != ["data.pkl"]:
        raise WeightsError(
            f"{path} has the pickles {listed(entry.filename for entry in pickles)}, but a "
            "checkpoint has one data.pkl; a scripted model or another archive cannot be read."
        )
    if pickles[0].file_size > MOST_PICKLE_BYTES:
        raise WeightsError(
            f"{path} has {pickles[0].file_size} bytes of pickle, but names and shapes need fewer "
            f"than {MOST_PICKLE_BYTES}; save the state dict of the student alone."
        )
    return archive.read(pickles[0])


def _check_types(pickled: bytes, path: Path) -> None:
    """Refuse a pickle that names anything but plain containers, numbers and tensors."""
    foreign = set()
    try:
        for code, argument, _ in pickletools.genops(pickled):
            if code.name in NAMING_CODES:
                foreign.add(code.name)
            elif code.name == "GLOBAL" and not PLAIN_TYPES.fullmatch(str(argument)):
                foreign.add(str(argument).replace(" ", "."))
    except Exception as error:
        raise WeightsError(f"{path} holds a damaged pickle ({error}); get it again.") from error
    if foreign:
        raise WeightsError(
            f"{path} names {listed(sorted(foreign))}, which no plain checkpoint needs, so nothing "
            "was read; if you trust its author, save the state dict of the student alone."
        )
