"""Kept teacher outputs on disk: whole and verified, or not there.

DIR/efficientnet-lite2-0123456789abcdef/   one teacher with all its outputs depend on (`cache_key`)
    manifest.json                          these facts, and the hash of the projection
    projection.safetensors                 where patches are projected
    128px/manifest.json                    records, steps of int8, what was measured of them
    128px/chunk-00000.bin                  records (`cache_records`) of some views, then a hash

A view's number is `place of the image * crops + crop`; chunks hold views in their order. Each file
is written in one step, and speaks of what was written before it: a chunk ends with a SHA-256 over
the hash of its manifest, its number and its records; the manifest has one over itself and the
manifest above it. So a chunk of another place, or of another fit, does not verify.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from veca.distill.cache_records import RecordLayout, Records
from veca.distill.projection import Projection
from veca.runtime import VERSION, VecaError
from veca.runtime.files import TEMPORARY_SUFFIX, dumps_strict, make_folder, write_atomic
from veca.runtime.tensors import read_tensors, tensor_pieces
from veca.teacher.teacher import Targets

MANIFEST = "manifest.json"
PROJECTION = "projection.safetensors"

CHUNK_IMAGES = 512
"""Images whose views make a chunk, unless these are too large."""

CHUNK_BYTES = 256 * 2**20
"""Bytes that a chunk has at most, unless one image has more."""

DIGEST_BYTES = hashlib.sha256().digest_size

READ_BYTES = 1 << 20
"""Bytes that are hashed at a time."""


class CacheError(VecaError, ValueError):
    """Kept teacher outputs that cannot be used or made."""


class Measured(NamedTuple):
    """Mean cosine between outputs as they are kept and as the teacher gives them."""

    image: float
    patches: float


@dataclass(frozen=True, kw_only=True)
class TeacherFolder:
    """The folder of one teacher."""

    path: Path
    facts: dict[str, Any]

    def write(self, projection: Projection | None) -> str:
        """Begin the folder: the projection, and then the manifest, whose hash is returned."""
        make_folder(self.path)
        digest = None
        if projection is not None:
            file = self.path / PROJECTION
            write_atomic(file, tensor_pieces(projection.state_dict()))
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
        content = {**self.facts, "projection_sha256": digest, "veca_version": VERSION}
        return _write_checked(self.path / MANIFEST, content)

    def read(self) -> tuple[Projection | None, str] | None:
        """The projection and the hash of the manifest; None where nothing was begun."""
        manifest = _read_checked(self.path / MANIFEST)
        if manifest is None:
            return None
        wanted = manifest.content["projection_sha256"]
        if wanted is None:
            return None, manifest.digest
        file = self.path / PROJECTION
        try:
            if hashlib.sha256(file.read_bytes()).hexdigest() != wanted:
                raise _damaged(file)
            return Projection(**read_tensors(file)), manifest.digest
        except (OSError, SafetensorError) as error:
            raise _damaged(file) from error


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Outputs of one teacher at one resolution, as far as they are there."""

    folder: Path
    records: Records
    chunks: "Chunks"
    measured: Measured
    digest: str
    """Hash of the manifest."""

    def path(self, chunk: int) -> Path:
        """The file of a chunk."""
        return self.folder / f"chunk-{chunk:05}.bin"

    def write(self, chunk: int, records: Iterable[NDArray[Any]]) -> None:
        """Write a chunk, whose records may come part by part and are made meanwhile."""
        digest = self._digest(chunk)

        def pieces() -> Iterator[bytes | memoryview]:
            for some in records:
                piece = some.view(np.uint8).data
                digest.update(piece)
                yield piece
            yield digest.digest()

        write_atomic(self.path(chunk), pieces())

    def problem(self, chunk: int) -> str | None:
        """What is wrong with a chunk; None if it is as it was written."""
        path, size = self.path(chunk), self.chunks.num_bytes(chunk)
        digest, buffer = self._digest(chunk), memoryview(bytearray(READ_BYTES))
        try:
            with path.open("rb", buffering=0) as file:
                if (found := path.stat().st_size) != size + DIGEST_BYTES:
                    return f"has {found:,} bytes instead of {size + DIGEST_BYTES:,}"
                while size and (count := file.readinto(buffer[: min(size, READ_BYTES)])):
                    digest.update(buffer[:count])
                    size -= count
                same = file.read() == digest.digest()
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        return None if same else "was changed after it was written"

    def read(self, views: NDArray[np.int64], device: torch.device) -> Targets:
        """The outputs of views by their numbers.

        Files are read, not mapped: what the system keeps in memory of them then does not count as
        this process's, and a file that is cut off meanwhile is an error and not a crash.
        """
        kind = self.records.layout.kind
        found = np.empty(len(views), kind)
        target = found.view(np.uint8).reshape(len(views), kind.itemsize)
        chunks, rows = np.divmod(views, self.chunks.views_of_one)
        for chunk in np.unique(chunks).tolist():
            places = np.flatnonzero(chunks == chunk)
            self._read_rows(chunk, rows[places], target, places)
        return self.records.unpack(found, device)

    def _read_rows(
        self,
        chunk: int,
        rows: NDArray[np.int64],
        target: NDArray[np.uint8],
        places: NDArray[np.int64],
    ) -> None:
        """Read records of a chunk into their places in an array of bytes."""
        num_bytes = target.shape[1]
        try:
            with self.path(chunk).open("rb", buffering=0) as file:
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    file.seek(row * num_bytes)
                    if file.readinto(target[place].data) != num_bytes:
                        raise OSError("it was cut off")
        except OSError as error:
            raise CacheError(
                f"{self.path(chunk)} cannot be read any more ({error}); start again, which "
                "computes what is missing."
            ) from error

    def _digest(self, chunk: int) -> "hashlib._Hash":
        """The hash of a chunk before its records."""
        return hashlib.sha256(f"{self.digest}/{chunk}/".encode())


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """How views are dealt to files."""

    views: int
    views_of_one: int
    """Views of every chunk but the last."""
    record_bytes: int

    @classmethod
    def plan(cls, images: int, crops: int, layout: RecordLayout) -> "Chunks":
        """Chunks of whole images that are neither too large nor too many."""
        record = layout.kind.itemsize
        together = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // (crops * record)))
        return cls(views=images * crops, views_of_one=together * crops, record_bytes=record)

    @property
    def count(self) -> int:
        """Chunks in all."""
        return -(-self.views // self.views_of_one)

    def numbers(self, chunk: int) -> range:
        """The views of a chunk."""
        start = chunk * self.views_of_one
        return range(start, min(start + self.views_of_one, self.views))

    def num_bytes(self, chunk: int) -> int:
        """Bytes of a chunk's records."""
        return len(self.numbers(chunk)) * self.record_bytes


@dataclass(frozen=True, kw_only=True)
class ResolutionFolder:
    """The folder of one resolution, within that of a teacher."""

    path: Path
    layout: RecordLayout
    chunks: Chunks

    def write(self, records: Records, measured: Measured, above: str) -> None:
        """Begin the folder; `above` is the hash of the manifest above."""
        make_folder(self.path)
        content = {
            "record": asdict(self.layout),
            "views": self.chunks.views,
            "views_of_a_chunk": self.chunks.views_of_one,
            "scales": None if records.scales is None else records.scales.tolist(),
            "mean_cosine_of_kept_and_live": measured._asdict(),
            "above": above,
        }
        _write_checked(self.path / MANIFEST, content)

    def read(self, above: str) -> Kept | None:
        """What is kept; None where nothing was begun, or with another fit above."""
        manifest = _read_checked(self.path / MANIFEST)
        if manifest is None or manifest.content["above"] != above:
            return None
        content = manifest.content
        scales = None if content["scales"] is None else torch.tensor(content["scales"])
        chunks = Chunks(
            views=self.chunks.views,
            views_of_one=content["views_of_a_chunk"],
            record_bytes=self.chunks.record_bytes,
        )
        return Kept(
            folder=self.path,
            records=Records(layout=self.layout, scales=scales),
            chunks=chunks,
            measured=Measured(**content["mean_cosine_of_kept_and_live"]),
            digest=manifest.digest,
        )


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process had not finished, in a teacher's folder and those below it."""
    for path in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
        path.unlink()


def folder_name(teacher: str, key: str) -> str:
    """The name of a teacher's folder, for people and machines."""
    word = re.sub(r"[^A-Za-z0-9.-]+", "-", teacher).strip("-.")[-40:]
    return f"{word or 'teacher'}-{key[:16]}"


class _Manifest(NamedTuple):
    """A manifest that was read."""

    content: dict[str, Any]
    digest: str


def _write_checked(path: Path, content: dict[str, Any]) -> str:
    """Write a manifest with a hash over itself, which is returned."""
    digest = _content_digest(content)
    write_atomic(path, [json.dumps({**content, "sha256": digest}, indent=2).encode(), b"\n"])
    return digest


def _read_checked(path: Path) -> _Manifest | None:
    """A manifest as it was written; None where there is none."""
    try:
        content = json.loads(path.read_bytes())
        digest = content.pop("sha256")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path) from error
    if digest != _content_digest(content):
        raise _damaged(path)
    return _Manifest(content, digest)


def _content_digest(content: dict[str, Any]) -> str:
    """A hash over what a manifest says, however it is written."""
    text = dumps_strict(json.loads(json.dumps(content, sort_keys=True)), "the manifest")
    return hashlib.sha256(text.encode()).hexdigest()


def _damaged(path: Path) -> CacheError:
    """A file on which others depend is not as it was written."""
    return CacheError(
        f"{path} is damaged or missing, and what lies beside it cannot be used without it; restore "
        f"it, or remove {path.parent}, which is then computed again."
    )
