"""The state of a run on disk: whole and verified, or not there.

A checkpoint is a folder `step-000000120` with tensors, facts and a manifest. It is written under a
hidden name: first the files, then the manifest with their sizes and hashes, each brought to the
disk. Only then does the folder get its name, and one that no other has, so that nothing is ever
overwritten: beside an older checkpoint of the same step the new one is `step-000000120-2`. What is
deleted loses its name before its files. A process that is killed, or a disk that is full, at
whatever moment so leaves every earlier checkpoint as it was, and at most a hidden folder, which the
next save removes.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from veca.runtime import VecaError
from veca.runtime.files import (
    TEMPORARY_SUFFIX,
    dumps_strict,
    fsync_dir,
    make_folder,
    write_file,
)
from veca.runtime.tensors import read_tensors, tensor_pieces

FORMAT = 1
"""Rises when older readers would misunderstand a checkpoint."""

TENSORS, FACTS, MANIFEST = "tensors.safetensors", "facts.json", "manifest.json"

SPARE = 1.2
"""Room that must be on the disk, as a multiple of what will be written."""

NAME = re.compile(r"step-(\d{9,})(?:-(\d+))?")


class SnapshotError(VecaError, ValueError):
    """A state that cannot be saved, or a checkpoint that is not whole."""


class _DamageError(Exception):
    """Why a checkpoint is not whole."""


class _Name(NamedTuple):
    """The name of a checkpoint; newer ones are greater."""

    step: int
    attempt: int

    def __str__(self) -> str:
        return f"step-{self.step:09d}" + (f"-{self.attempt}" if self.attempt > 1 else "")


def _parsed(text: str) -> _Name | None:
    """The name that is written so, if it is one."""
    found = NAME.fullmatch(text)
    name = _Name(int(found[1]), int(found[2] or 1)) if found else None
    return name if str(name) == text else None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A checkpoint whose files have the sizes and hashes of its manifest."""

    step: int
    folder: Path
    facts: dict[str, Any]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors, in memory of their own."""
        try:
            return read_tensors(self.folder / TENSORS)
        except (OSError, SafetensorError) as error:
            raise SnapshotError(
                f"{self.folder / TENSORS} was whole and is not any more ({error}); use another "
                "checkpoint."
            ) from error


def read_snapshot(folder: Path) -> Snapshot:
    """One checkpoint by its folder; an error where it is not whole."""
    try:
        return _read(folder)
    except _DamageError as damage:
        raise SnapshotError(f"{folder} is no whole checkpoint: {damage}; use another.") from damage


class Snapshots:
    """The checkpoints of a run, of which the newest `keep` whole ones stay.

    Anyone may read them; one process at a time may save, which is for the caller to see to.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        if keep < 2:
            raise ValueError(
                f"keep={keep} would leave no checkpoint to fall back to when the newest is "
                "damaged; keep 2 or more."
            )
        self.folder = folder
        self.keep = keep
        self._verified: set[_Name] = set()

    def save(
        self,
        step: int,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        *,
        may_be_infinite: Collection[str] = (),
    ) -> Path:
        """Save the state after so many steps; when this returns, it is on the disk to stay.

        A SnapshotError means that the state may not be saved, and that older ones are as they were.
        Numbers that are not finite are refused, except in the tensors `may_be_infinite`.
        """
        refuse_non_finite(tensors, may_be_infinite)
        pieces = tensor_pieces({tensor: tensors[tensor] for tensor in sorted(tensors)})
        try:
            content = dumps_strict(dict(facts), "facts").encode()
        except ValueError as error:
            raise SnapshotError(f"the state of step {step} is not saved: {error}") from error
        try:
            make_folder(self.folder)
            self._sweep()
            self._refuse_full_disk(len(content) + sum(tensor.nbytes for tensor in tensors.values()))
            name = self._free_name(step)
            self._commit(name, {TENSORS: pieces, FACTS: [content]})
        except OSError as error:
            raise SnapshotError(
                f"the state of step {step} could not be saved in {self.folder} ({error}); older "
                "checkpoints are whole: see to the disk."
            ) from error
        self._verified.add(name)
        self._prune(name)
        return self.folder / str(name)

    def newest(self, tell: Callable[[str], None]) -> Snapshot | None:
        """The newest whole checkpoint; `tell` gets a sentence about each one passed over."""
        for name in sorted(self._names(), reverse=True):
            folder = self.folder / str(name)
            try:
                snapshot = _read(folder)
                if snapshot.step != name.step:
                    raise _DamageError(f"its manifest says step {snapshot.step}")
            except _DamageError as damage:
                tell(f"{folder} is no whole checkpoint: {damage}; it is passed over.")
            else:
                self._verified.add(name)
                return snapshot
        return None

    def _names(self) -> list[_Name]:
        """Every checkpoint, whole or not."""
        with suppress(FileNotFoundError):
            found = map(_parsed, os.listdir(self.folder))  # noqa: PTH208 - names, no paths
            return [name for name in found if name is not None]
        return []

    def _free_name(self, step: int) -> _Name:
        """The name of a new checkpoint, above all others of its step."""
        taken = (name.attempt for name in self._names() if name.step == step)
        return _Name(step, max(taken, default=0) + 1)

    def _hidden(self, name: _Name) -> Path:
        """A folder that nobody takes for a checkpoint."""
        return self.folder / f".{name}.{secrets.token_hex(8)}{TEMPORARY_SUFFIX}"

    def _commit(self, name: _Name, files: Mapping[str, Iterable[bytes | memoryview]]) -> None:
        """Write a checkpoint and then name it."""
        hidden, entries = self._hidden(name), {}
        try:
            hidden.mkdir()
            for file, pieces in files.items():
                summed = _Summed()
                write_file(hidden / file, summed.passing(pieces))
                entries[file] = summed.entry()
            write_file(hidden / MANIFEST, [_manifest(name.step, entries)])
            fsync_dir(hidden)
            hidden.rename(self.folder / str(name))
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        fsync_dir(self.folder)

    def _prune(self, saved: _Name) -> None:
        """Delete what is older than the newest `keep` whole ones; what cannot be deleted stays."""
        with suppress(OSError):
            present = set(self._names())
            superseded = {name for name in present if name.step == saved.step} - {saved}
            self._verified &= present - superseded
            kept = sorted(self._verified, reverse=True)[: self.keep]
            for name in present - {saved}:
                if name in superseded or (len(kept) == self.keep and name < kept[-1]):
                    self._delete(name)

    def _delete(self, name: _Name) -> None:
        """Delete a checkpoint, or leave it whole."""
        hidden = self._hidden(name)
        with suppress(OSError):
            (self.folder / str(name)).rename(hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what killed processes have left."""
        for path in self.folder.glob(f".step-*{TEMPORARY_SUFFIX}"):
            shutil.rmtree(path, ignore_errors=True)

    def _refuse_full_disk(self, size: int) -> None:
        """Leave a disk alone that has no room for the state."""
        needed, free = int(SPARE * size), shutil.disk_usage(self.folder).free
        if free < needed:
            raise SnapshotError(
                f"the state is not saved: it needs {needed / 1e6:,.1f} MB on the disk of "
                f"{self.folder}, where {free / 1e6:,.1f} MB are free; make room."
            )


class _Summed:
    """Size and hash of what passes by."""

    def __init__(self) -> None:
        self._size = 0
        self._hash = hashlib.sha256()

    def passing(self, pieces: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        """The pieces as they are."""
        for piece in pieces:
            self._size += memoryview(piece).nbytes
            self._hash.update(piece)
            yield piece

    def entry(self) -> dict[str, Any]:
        """What the manifest says of a file."""
        return {"sha256": self._hash.hexdigest(), "size": self._size}


def _manifest(step: int, files: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The manifest, which verifies itself: the same content is always written the same way."""
    about = {"files": files, "format": FORMAT, "step": step}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"{json.dumps({**about, 'sha256': digest}, sort_keys=True, indent=1)}\n".encode()


def _read(folder: Path) -> Snapshot:
    """A checkpoint, verified from its manifest on."""
    step, files = _read_manifest(folder / MANIFEST)
    for name in (TENSORS, FACTS):
        _verify(folder / name, files.get(name))
    facts = json.loads((folder / FACTS).read_bytes())
    return Snapshot(step=step, folder=folder, facts=facts)


def _read_manifest(path: Path) -> tuple[int, dict[str, Any]]:
    """Step and files of a manifest."""
    try:
        content = path.read_bytes()
        about = json.loads(content)
        written_by, step, files = about["format"], about["step"], dict(about["files"])
        whole = isinstance(step, int) and content == _manifest(step, files)
    except OSError as error:
        raise _DamageError(_words(path, error)) from error
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise _DamageError(f"{MANIFEST} is damaged") from error
    if written_by != FORMAT:
        raise _DamageError(f"its format is {written_by}, and this version of veca reads {FORMAT}")
    if not whole:
        raise _DamageError(f"{MANIFEST} is damaged")
    return step, files


def _verify(path: Path, entry: object) -> None:
    """Hold a file against what the manifest says of it."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not isinstance(entry, dict) or entry.get("size") != size:
                raise _DamageError(
                    f"{path.name} has {size:,} bytes, not as many as its manifest says"
                )
            if entry.get("sha256") != hashlib.file_digest(file, "sha256").hexdigest():
                raise _DamageError(f"{path.name} is not what was written")
    except OSError as error:
        raise _DamageError(_words(path, error)) from error


def _words(path: Path, error: OSError) -> str:
    """Why a file cannot be read."""
    missing = isinstance(error, FileNotFoundError)
    return f"{path.name} is missing" if missing else f"{path.name} cannot be read ({error})"


def refuse_non_finite(tensors: Mapping[str, Tensor], except_in: Collection[str] = ()) -> None:
    """Never save a state that training cannot go on from."""
    for name, tensor in tensors.items():
        if name in except_in or not tensor.is_floating_point() or not tensor.numel():
            continue
        # The extremes show every NaN and infinity and need no memory.
        if not all(torch.isfinite(extreme) for extreme in torch.aminmax(tensor.detach())):
            raise SnapshotError(
                f"the state is not saved: the tensor {name!r} has numbers that are not finite; go "
                "back to the last checkpoint, and lower the learning rate if it happens again."
            )
