"""Collections: the features of many images, as Parquet files that any data tool can read.

    shard-00000.parquet           one row per image: path, size, error, hash, feature
    _patches-00000.safetensors    patch maps of the same images, if they were asked for

A shard holds up to 512 images and is complete when it has its final name. Everything about the
model and the settings is in its schema metadata, as JSON under `veca`. Next to it, `veca_sha256` is
the SHA-256 of the whole file, in which its own 64 digits count as zeros: it covers rows and
metadata, so any changed byte is detected before a file is parsed. Tools that skip it still find a
checksum in every page.
"""

import hashlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from veca.data.listing import UNKNOWN, ImageEntry, key, possible_names, split_member
from veca.runtime import VERSION, VecaError
from veca.runtime.device import usable_processors
from veca.runtime.files import LOCK_NAME, TEMPORARY_SUFFIX, write_atomic
from veca.runtime.tensors import TensorFile, remove_temporary_files, save_tensors

Item = TypeVar("Item")
Result = TypeVar("Result")


class CollectionError(VecaError, ValueError):
    """A collection that cannot be written or read."""


class DamagedShardError(CollectionError):
    """A shard that is not what was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} is damaged: {reason}; repeat `veca embed` with its images to compute it "
            "again, or delete it."
        )


try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise CollectionError(
        "collections are Parquet files, which need pyarrow; run `pip install 'veca[embed]'`."
    ) from error

FORMAT = 2
"""Raised whenever older versions of veca could misread a shard."""

SHARD_NAME = re.compile(r"shard-(\d{5,})\.parquet")
PATCHES_NAME = re.compile(r"_patches-(\d{5,})\.safetensors")

METADATA_KEY = "veca"
DIGEST_KEY = "veca_sha256"
NO_DIGEST = b"0" * 64
DIGEST_MARK = DIGEST_KEY.encode() + b"\x18\x40"
"""Bytes before the digest in a Parquet footer: its key, a field header and the length 64."""

MAX_FOOTER_BYTES = 1_000_000
"""Where the digest is looked for, from the end of a file."""

TO_PRIVATE = {0xDC00 + byte: 0xF700 + byte for byte in range(128, 256)}
"""File names that are not UTF-8: their bytes as private characters, since Parquet text is UTF-8."""
FROM_PRIVATE = {private: byte for byte, private in TO_PRIVATE.items()}

COLUMNS = {
    "path": pa.string(), "num_bytes": pa.int64(), "tar_offset": pa.int64(), "width": pa.int32(),
    "height": pa.int32(), "error": pa.string(), "sha256": pa.string(),
}  # fmt: skip
"""All columns but `feature`, whose type depends on the model and the settings."""


class ImageRow(NamedTuple):
    """One image of a collection; where there is an error, all from `width` on are None."""

    path: str
    """Absolute; of a member of a tar file `<path of the tar file>#<name in it>`."""

    num_bytes: int | None
    """Size of the encoded image; an image whose size has changed is embedded again."""

    tar_offset: int | None
    """First byte in the tar file; None for an image that is a file."""

    width: int | None = None
    """Of the upright original, in pixels."""

    height: int | None = None
    error: str | None = None
    sha256: str | None = None
    """Of the encoded image."""

    feature: Float[np.ndarray, " D"] | None = None
    patch_map: Float[np.ndarray, "D rows columns"] | None = None

    @property
    def source(self) -> ImageEntry:
        """Where the image is."""
        inside = split_member(self.path) if self.tar_offset is not None else None
        num_bytes = UNKNOWN if self.num_bytes is None else self.num_bytes
        start = UNKNOWN if self.tar_offset is None else self.tar_offset
        return ImageEntry(self.path, num_bytes, inside[0] if inside else None, start)


@dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Model and settings of all features of a collection."""

    model: str | None
    """Name or path; None for a model that existed in memory only."""

    model_sha256: str
    """Of configuration and weights, as shown by `veca info`."""

    untrained: bool

    backbone: dict[str, Any]
    """Fields of the `BackboneConfig`."""

    settings: dict[str, Any]
    """Fields of the `EmbedConfig`, resolved: never 'auto'."""

    def check_same(self, other: "CollectionMeta", where: object) -> None:
        """Refuse to mix features that cannot be compared; `where` names what has these."""
        names = [name for name, value in self.settings.items() if value != other.settings[name]]
        if self.model_sha256 != other.model_sha256:
            names.insert(0, "model")
        if names:
            raise CollectionError(
                f"{where} was made with {self._shown(names)}, not with {other._shown(names)}; use "
                "the same model and settings, or another folder."
            )

    def _shown(self, names: Sequence[str]) -> str:
        model = f"{self.model or 'in memory'} (SHA-256 {self.model_sha256[:12]}...)"
        values = {"model": model, **self.settings}
        return ", ".join(f"{name} {values[name]}" for name in names)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One verified file of a collection."""

    path: Path
    number: int
    meta: CollectionMeta
    source: str
    """Folder that the paths of the file are relative to."""

    planned: int
    """Shards of the collection, once the run that wrote this one has ended."""

    images: int
    """Rows with a feature."""

    failures: int
    """Rows with an error."""

    patches_sha256: str | None
    """Identifies the file of patch maps."""

    @property
    def patches_path(self) -> Path:
        """The file of patch maps."""
        return self.path.parent / f"_patches-{self.number:05}.safetensors"

    def table(self, *columns: str) -> Any:  # noqa: ANN401 - pyarrow is untyped
        """Read columns, and verify the checksums of their pages."""
        try:
            with pq.ParquetFile(self.path, page_checksum_verification=True) as file:
                return file.read(list(columns), use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DamagedShardError(self.path, str(error)) from error

    def features(self) -> Float[np.ndarray, "n D"]:
        """Features of the images that could be read, in the order of the rows."""
        column = self.table("feature")["feature"].combine_chunks()
        flat: NDArray[np.floating] = column.flatten().to_numpy()  # leaves out nulls
        return flat.reshape(-1, self.meta.backbone["width"]).copy()  # Arrow memory is read-only

    def rows(self) -> list[ImageRow]:
        """Every row without its feature and patch map."""
        return [
            ImageRow(**{**fields, "path": absolute_name(self.source, fields["path"])})
            for fields in self.table(*COLUMNS).to_pylist()
        ]

    def whole_rows(self) -> list[ImageRow]:
        """Every row with its feature and, if the shard has them, patch map."""
        maps: dict[str, NDArray[np.floating]] = {}
        if self.patches_sha256 is not None:
            with TensorFile(self.patches_path) as file:
                maps = {name: file.read(name).numpy() for name in file.specs}
        features = iter(self.features())
        return [
            row._replace(feature=next(features), patch_map=maps.get(str(place)))
            if row.error is None
            else row
            for place, row in enumerate(self.rows())
        ]

    def verify_patches(self) -> None:
        """Compare the file of patch maps with its hashes and with this shard."""
        if self.patches_sha256 is None:
            return
        try:
            with TensorFile(self.patches_path) as file:
                file.verify()
                if file.sha256 != self.patches_sha256:
                    raise DamagedShardError(self.patches_path, "it belongs to another shard")
        except OSError as error:
            reason = getattr(error, "reason", "it is missing")
            raise DamagedShardError(self.patches_path, reason) from error


def read_shard(path: Path) -> Shard:
    """Verify every byte of a shard, then read what it says about itself."""
    data = memoryview(path.read_bytes())
    place = bytes(data[-MAX_FOOTER_BYTES:]).rfind(DIGEST_MARK)
    if place < 0:
        raise DamagedShardError(path, "it has no SHA-256")
    start = max(0, len(data) - MAX_FOOTER_BYTES) + place + len(DIGEST_MARK)
    digest = hashlib.sha256(data[:start])
    digest.update(NO_DIGEST)
    digest.update(data[start + len(NO_DIGEST) :])
    if digest.hexdigest().encode() != data[start : start + len(NO_DIGEST)]:
        raise DamagedShardError(path, "it does not match its SHA-256")
    metadata = pq.read_metadata(pa.BufferReader(data)).metadata
    content = json.loads(metadata[METADATA_KEY.encode()])
    if content.pop("format") != FORMAT:
        raise CollectionError(f"{path} was written by another version of veca; use that one.")
    if path.name != shard_name(content["number"]):
        raise DamagedShardError(path, f"it is a copy of shard {content['number']}")
    del content["veca_version"], content["command"]
    meta = CollectionMeta(**content.pop("meta"))
    return Shard(path=path, meta=meta, **content)


def shard_name(number: int) -> str:
    """The name of the file of a shard."""
    return f"shard-{number:05}.parquet"


def absolute_name(source: str, path: str) -> str:
    """The path of an image from the column `path`."""
    parent = os.pardir + os.sep
    while path.startswith(parent):
        source, path = os.path.dirname(source), path.removeprefix(parent)  # noqa: PTH120 - text
    return os.path.join(source, path.translate(FROM_PRIVATE))  # noqa: PTH118


def relative_name(source: str, name: str, tar: str | None) -> str:
    """The value of the column `path`; a name in a tar file is not a path and stays as it is."""
    file = tar or name
    return f"{os.path.relpath(file, source)}{name[len(file) :]}".translate(TO_PRIVATE)


class Collection:
    """The images of a folder that `veca embed` wrote, and their features.

    A collection may be larger than memory: opening it verifies every shard, but keeps none.
    """

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self.folder = folder
        self.shards = shards
        self.meta = shards[0].meta
        for shard in shards:
            shard.meta.check_same(self.meta, shard.path)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Collection":
        """Open and verify a collection."""
        path = Path(folder).expanduser()
        files = shard_files(path)
        if not files:
            raise CollectionError(
                f"{path} has no collection (no file shard-*.parquet); make one with `veca embed`."
            )
        return cls(path, in_threads(read_shard, files))

    def __len__(self) -> int:
        """Images with a feature."""
        return sum(shard.images for shard in self.shards)

    @property
    def missing(self) -> int:
        """Shards that an interrupted run has not written, or that were deleted."""
        return max(shard.planned for shard in self.shards) - len(self.shards)

    @property
    def paths(self) -> list[str]:
        """Absolute paths of the images with a feature."""
        return [row.path for row in self.rows() if row.error is None]

    def features(self) -> Float[np.ndarray, "n D"]:
        """All features in memory, in the order of `paths`."""
        return np.concatenate([shard.features() for shard in self.shards])

    def rows(self) -> Iterator[ImageRow]:
        """Every row without its feature, those with an error included."""
        for shard in self.shards:
            yield from shard.rows()

    def find(self, image: str | os.PathLike[str]) -> tuple[Shard, int] | None:
        """The shard and the row of an image, found by its path."""
        names = [(name, split_member(name)) for name in possible_names(image)]
        for shard in self.shards:
            column = shard.table("path")["path"]
            for name, member in names:
                path = relative_name(shard.source, name, member[0] if member else None)
                row: int = column.index(path).as_py()
                if row >= 0:
                    return shard, row
        return None

    def patch_map(self, image: str | os.PathLike[str]) -> Float[np.ndarray, "D rows columns"]:
        """The patch map of an image, found by its path."""
        if not self.meta.settings["patches"]:
            raise CollectionError(
                f"{self.folder} has no patch maps; embed the images with --patches into another "
                "folder."
            )
        found = self.find(image)
        if found is None:
            raise CollectionError(f"{self.folder} has no image {image}; check the path.")
        shard, row = found
        shard.verify_patches()
        with TensorFile(shard.patches_path) as file:
            patch_map: NDArray[np.floating] = file.read(str(row)).numpy()
        return patch_map


def in_threads(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """The results of independent work, in order; reading and hashing release the GIL."""
    with ThreadPoolExecutor(usable_processors()) as pool:
        return list(pool.map(work, items))


def shard_files(folder: Path) -> list[Path]:
    """The shards of a folder by their numbers, in order."""
    paths = filter(lambda path: SHARD_NAME.fullmatch(path.name), folder.glob("shard-*.parquet"))
    return sorted(paths, key=lambda path: int(path.stem.removeprefix("shard-")))


def check_folder(folder: Path) -> None:
    """Refuse a folder with other files than those of a collection."""
    if folder.exists() and not folder.is_dir():
        raise CollectionError(f"{folder} is a file; give a folder for the collection.")
    if not folder.exists() or shard_files(folder):
        return
    for path in sorted(folder.iterdir()):
        if not (path.name == LOCK_NAME or path.suffix == TEMPORARY_SUFFIX
                or PATCHES_NAME.fullmatch(path.name)):  # fmt: skip
            raise CollectionError(
                f"{folder} has other files ({path.name}) and no collection; give a new or an empty "
                "folder."
            )


class CollectionWriter:
    """Adds shards to a folder that no other process writes to."""

    def __init__(self, folder: Path, meta: CollectionMeta, command: str | None = None) -> None:
        """Verify the shards of a folder; damaged ones are overwritten by the next `write`."""
        self.folder = folder
        self.meta = meta
        self.shards: dict[int, Shard] = {}
        self._damaged: dict[Path, str] = {}
        self._command = command
        self._planned = 0
        remove_temporary_files(folder)
        files = shard_files(folder)
        for path, found in zip(files, in_threads(_whole_shard, files), strict=True):
            if isinstance(found, Shard):
                found.meta.check_same(meta, folder)
                self.shards[found.number] = found
            else:
                self._damaged[path] = found

    def damaged(self) -> list[str]:
        """Problems of shards that are not overwritten yet."""
        whole = {shard.path for shard in self.shards.values()}
        return [problem for path, problem in self._damaged.items() if path not in whole]

    def known(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        """Key, size and shard of every image, those with an error included."""
        parts = [(np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64))]
        for number, shard in self.shards.items():
            table = shard.table("path", "num_bytes")
            names = table["path"].to_pylist()
            keys = np.array([key(absolute_name(shard.source, name)) for name in names], np.uint64)
            sizes = table["num_bytes"].fill_null(UNKNOWN).to_numpy()
            parts.append((keys, sizes, np.full(len(names), number)))
        keys, sizes, numbers = map(np.concatenate, zip(*parts, strict=True))
        return keys, sizes, numbers

    def plan(self, count: int) -> list[int]:
        """Numbers for new shards: gaps first, then the next ones."""
        free = (number for number in itertools.count() if number not in self.shards)
        numbers = list(itertools.islice(free, count))
        self._planned = max((*numbers, *self.shards), default=-1) + 1
        return numbers

    def write(self, number: int, source: str, rows: Sequence[ImageRow]) -> None:
        """Write a shard atomically; paths are stored relative to the folder `source`."""
        failures = sum(row.error is not None for row in rows)
        content: dict[str, Any] = {
            "format": FORMAT,
            "veca_version": VERSION,
            "command": self._command,
            "meta": asdict(self.meta),
            "number": number,
            "source": source,
            "planned": self._planned,
            "images": len(rows) - failures,
            "failures": failures,
            "patches_sha256": None,
        }
        if self.meta.settings["patches"]:
            maps = {
                str(at): row.patch_map for at, row in enumerate(rows) if row.patch_map is not None
            }
            path = self.folder / f"_patches-{number:05}.safetensors"
            content["patches_sha256"] = save_tensors(path, maps, {"number": number})
        path = self.folder / shard_name(number)
        write_atomic(path, [_encoded(self._table(source, rows), content)])
        self.shards[number] = read_shard(path)

    def _table(self, source: str, rows: Sequence[ImageRow]) -> Any:  # noqa: ANN401
        """The rows as Arrow sees them."""
        element = pa.from_numpy_dtype(self.meta.settings["dtype"])
        # A third faster to read without nulls within a feature.
        element = pa.field("element", element, nullable=False)
        feature = pa.list_(element, self.meta.backbone["width"])
        values = {name: [getattr(row, name) for row in rows] for name in (*COLUMNS, "feature")}
        values["path"] = [relative_name(source, row.path, row.source.shard) for row in rows]
        kinds = {**COLUMNS, "feature": feature}
        return pa.table({name: pa.array(values[name], kind) for name, kind in kinds.items()})


def _whole_shard(path: Path) -> Shard | str:
    """A shard whose patch maps are verified too, or what is wrong with it."""
    try:
        shard = read_shard(path)
        shard.verify_patches()
    except DamagedShardError as error:
        return str(error)
    return shard


def _encoded(table: Any, content: dict[str, Any]) -> bytes:  # noqa: ANN401
    """A Parquet file that holds its own SHA-256."""
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(content)})
    sink = pa.BufferOutputStream()
    # Features do not compress. Statistics would repeat rows in the footer.
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="none",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({DIGEST_KEY: NO_DIGEST.decode()})
    data: bytes = sink.getvalue().to_pybytes()
    head, mark, rest = data.rpartition(DIGEST_MARK + NO_DIGEST)
    digest = hashlib.sha256(data).hexdigest().encode()
    return b"".join((head, mark.removesuffix(NO_DIGEST), digest, rest))
