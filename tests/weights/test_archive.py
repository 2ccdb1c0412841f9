"""Hostile checkpoints run nothing, take no memory, and are refused in words."""

import builtins
import io
import math
import os
import pickle
import resource
import struct
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.weights import authors
from veca.weights.format import WeightsError
from veca.weights.official import MOST_PICKLE_BYTES, check_archive, load_official

LAYOUT = authors.Layout(layers=1, width=64, hidden=8)


class Calls:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def saved(content: Any, **options: Any) -> bytes:
    """What torch.save writes."""
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def archived(
    pickled: bytes,
    compression: int = zipfile.ZIP_STORED,
    entries: Mapping[str, bytes] | None = None,
) -> bytes:
    """An archive as torch.save lays it out, around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("student/data.pkl", pickled)
        for name, content in {"version": b"3\n", **(entries or {})}.items():
            archive.writestr(f"student/{name}", content)
    return buffer.getvalue()


class Storage:
    """Stands for numbers that lie in an entry of their own, however many are claimed."""

    def __init__(self, claimed: int) -> None:
        self.address = ("storage", torch.FloatStorage, "0", "cpu", claimed)


class TorchPickler(pickle.Pickler):
    """Writes storages as torch.save does."""

    def persistent_id(self, value: Any) -> Any:
        return value.address if isinstance(value, Storage) else None


def archived_tensor(claimed: int, *shape: int) -> bytes:
    """An archive with one tensor of this shape, on a storage of ten numbers that claims more."""
    strides = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    rebuild = torch._utils._rebuild_tensor_v2
    tensor = Calls(rebuild, Storage(claimed), 0, shape, strides, False, OrderedDict())
    buffer = io.BytesIO()
    TorchPickler(buffer, 2).dump({"patch_embed.proj.weight": tensor})
    return archived(buffer.getvalue(), entries={"byteorder": b"little", "data/0": bytes(40)})


def archived_twice(one: bytes, other: bytes) -> bytes:
    """An archive with two pickles."""
    buffer = io.BytesIO(archived(one))
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("other/data.pkl", other)
    return buffer.getvalue()


def false_sizes(content: bytes) -> bytes:
    """An archive whose directory claims an entry of four gigabytes."""
    place = content.index(b"PK\x01\x02")
    claim = struct.pack("<II", 2**32 - 2, 2**32 - 2)
    return content[: place + 20] + claim + content[place + 28 :]


def state() -> authors.State:
    """The weights of a good checkpoint."""
    return authors.random_state(LAYOUT)


def good() -> bytes:
    """A good checkpoint."""
    return saved(state())


def shell(marker: Path) -> Calls:
    """An object that makes the marker when it is loaded."""
    return Calls(os.system, f"touch {marker}")


def code(marker: Path) -> Calls:
    """Another one."""
    return Calls(builtins.exec, f"open({str(marker)!r}, 'w')")


HOSTILE: dict[str, Callable[[Path], bytes]] = {
    "system": lambda marker: saved(shell(marker)),
    "system beside the student": lambda m: saved({"student": state(), "config": shell(m)}),
    "exec": lambda marker: saved(code(marker)),
    "exec as a tensor": lambda marker: saved(state() | {"final_norm.bias": code(marker)}),
    "nested": lambda marker: saved({"student": {"a": [({"b": (shell(marker),)},)]}}),
    "legacy format": lambda m: saved(shell(m), _use_new_zipfile_serialization=False),
    "legacy format, harmless": lambda _: saved(state(), _use_new_zipfile_serialization=False),
    "plain pickle": lambda marker: pickle.dumps(shell(marker)),
    "newer pickle in an archive": lambda marker: archived(pickle.dumps(shell(marker), 4)),
    "oldest pickle in an archive": lambda marker: archived(pickle.dumps(shell(marker), 0)),
    "code of old instances": lambda _: archived(b"(S'x'\nios\nsystem\n."),
    "memory for bytes": lambda _: archived(pickle.dumps(Calls(bytearray, 10**12), 2)),
    "memory for a tensor": lambda _: archived(pickle.dumps(Calls(torch.Tensor, 10**11), 2)),
    "zip bomb": lambda _: archived(b"\x80\x02}.", zipfile.ZIP_DEFLATED, {"x": bytes(50_000_000)}),
    "zip bomb in the pickle": lambda _: archived(bytes(5_000_000), zipfile.ZIP_BZIP2),
    "false sizes": lambda _: false_sizes(good()),
    "two pickles": lambda marker: archived_twice(b"\x80\x02}.", pickle.dumps(shell(marker), 2)),
    "no pickle": lambda _: archived(b"").replace(b"data.pkl", b"data.pk_"),
    "huge pickle": lambda _: archived(b"\x80\x02" + b"0" * MOST_PICKLE_BYTES),
    "nested archive": lambda marker: archived(archived(pickle.dumps(shell(marker), 2))),
    "junk before": lambda _: b"#!/bin/sh\n" + good(),
    "junk after": lambda _: good() + b"junk",
    "archive after archive": lambda marker: good() + saved(shell(marker)),
    "truncated": lambda _: good()[:5000],
    "end alone": lambda _: b"PK\x05\x06" + bytes(18),
    "broken pickle": lambda _: archived(pickle.dumps({"a": 1}, 2)[:-3]),
    "endless pickle": lambda _: archived(b"\x80\x02" + b"(" * 1_000_000),
    "storage that is missing": lambda _: good().replace(b"data/0", b"data/x"),
    "false storage": lambda _: archived_tensor(10**12, 2, 5, 1, 1),
    "tensor beyond its storage": lambda _: archived_tensor(10, 10**4, 10**4, 10, 10),
    "tensor beyond the file": lambda _: archived_tensor(10**10, 10**4, 10**4, 10, 10),
    "empty": lambda _: b"",
    "text": lambda _: b"not a checkpoint\n" * 100,
    "safetensors": lambda _: b"\x08\0\0\0\0\0\0\0{}      ",
}
"""Files that try to make the marker, or to take all memory, or that are broken."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once_and_runs_nothing(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "student.pt"
    path.write_bytes(HOSTILE[name](marker))
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError) as caught:
        load_official(path)
    assert time.process_time() - start < 5  # it takes 0.3; a zip bomb would take minutes
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
    assert len(str(caught.value)) < 1000
    assert not marker.exists()


def test_the_hostile_files_would_run_code_in_an_ordinary_unpickler(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "student.pt"
    path.write_bytes(HOSTILE["system"](marker))
    careless = "import sys, torch; torch.load(sys.argv[1], weights_only=False)"
    subprocess.run([sys.executable, "-c", careless, path], check=True)
    assert marker.exists()


def test_a_damaged_checkpoint_is_refused_or_read_but_never_crashes(tmp_path: Path) -> None:
    content = good()
    directory = content.index(b"PK\x01\x02")
    path = tmp_path / "student.pt"
    outcomes = set()
    for place in range(0, 200, 5):
        for start in (0, 60, directory, len(content) - 200):
            changed = bytearray(content)
            changed[start + place] ^= 0xFF
            path.write_bytes(changed)
            try:
                load_official(path)
                outcomes.add("read")
            except WeightsError:
                outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_what_torch_saves_of_plain_values_passes(tmp_path: Path) -> None:
    path = tmp_path / "student.pt"
    parameter = torch.nn.Parameter(torch.ones(2))
    content = {
        "student": {"a": torch.ones(2), "b": parameter, "c": torch.ones(2).bfloat16()},
        "config": {"budgets": (8, 16), "rate": 1e-4, "name": "x", "none": None, "yes": True},
        "optimizer": torch.optim.AdamW([parameter]).state_dict(),
        "set": {1, 2},
        "size": torch.Size((1, 2)),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
    }
    torch.save(content, path)
    check_archive(path)
    assert torch.load(path, weights_only=True).keys() == content.keys()


def test_a_type_that_no_checkpoint_needs_is_named(tmp_path: Path) -> None:
    path = tmp_path / "student.pt"
    path.write_bytes(saved({"student": {}, "config": Path("x")}))
    with pytest.raises(WeightsError, match=r"names 'pathlib\.PosixPath'.*the student alone"):
        check_archive(path)
