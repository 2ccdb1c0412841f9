"""Of 200 damages to what veca stores, none changes a result silently and none gives a traceback.

Each kind of file is written once. A damaged copy is read as a user would read it: that must raise
an error of ours that names the file. A run that can do without it (another checkpoint, a cache that
is filled again) logs a warning instead. The hash of weights covers configuration and tensors, but
not two fixed words of the header: where one of these is damaged, the model is the same.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import veca
from tests.data.pictures import saved_model
from tests.embed.test_collection import made_up_rows, written
from veca.embed.collection import Collection
from veca.probe.heads import SavedHead, load_head, save_head
from veca.probe.rows import Setting
from veca.runtime import VecaError
from veca.runtime.distributed import Ranks
from veca.runtime.shards import ShardStore, Task, fill
from veca.runtime.tensors import bytes_of
from veca.train.checkpoint import CheckpointManager

DAMAGES_PER_KIND = 40
ALONE = Ranks(device=torch.device("cpu"))


class Stored(NamedTuple):
    """Files of one kind."""

    files: Sequence[Path]
    read: Callable[[], object]
    """All that a user gets from them, in a form that can be compared."""

    older: object = None
    """What a user may get instead, with a warning."""


def numbers(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Tensors by name, with type, shape and bits."""
    return {
        name: (tensor.dtype, tensor.shape, bytes(bytes_of(tensor)))
        for name, tensor in tensors.items()
    }


def sample(seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(4, 6, generator=draw), "step": torch.tensor(seed)}


def collection(folder: Path) -> Stored:
    """Three shards with patch maps."""
    written(folder / "out", [made_up_rows(number) for number in range(3)])

    def read() -> object:
        found = Collection.open(folder / "out")
        maps = [found.patch_map(path).tobytes() for path in found.paths]
        return found.meta, list(found.rows()), found.features().tobytes(), maps

    return Stored(sorted((folder / "out").iterdir()), read)


def head(folder: Path) -> Stored:
    """A classifier."""
    path = folder / "head.safetensors"
    fields: dict[str, Any] = {
        "task": "knn", "data": "photos", "classes": ("a", "b"), "model": "tiny",
        "weights": "d" * 64, "setting": Setting(8, 0.5), "resolution": 64, "protocol": "paper",
        "seed": 3, "facts": {"mean": 0.5}, "metrics": {"top1": 71.5}, "tensors": sample(1),
    }  # fmt: skip
    save_head(SavedHead(**fields), path)

    def read() -> object:
        found = vars(load_head(path))
        return {**found, "tensors": numbers(found["tensors"])}

    return Stored([path], read)


def cache(folder: Path) -> Stored:
    """Cached features; the next run computes damaged chunks again."""
    facts = {"model": "abc", "size": 224}
    contents = [{**sample(chunk), "image": torch.ones(3, 2) * chunk} for chunk in range(4)]

    def compute(tasks: Sequence[Task]) -> Iterator[dict[int, dict[str, Tensor]]]:
        return ({0: contents[task.chunk]} for task in tasks)

    def read() -> object:
        store = ShardStore(folder, facts, count=12, chunk_size=3)
        fill([store], compute, ALONE)
        return [numbers(store.read(chunk, contents[chunk])) for chunk in range(4)]

    read()
    return Stored(sorted(folder.glob("*/chunk-*")), read)


def checkpoints(folder: Path) -> Stored:
    """Two checkpoints, of which the newest whole one is loaded."""

    def read() -> object:
        found = CheckpointManager(folder).latest()
        return found and (found.step, numbers(found.tensors), found.metadata)

    manager = CheckpointManager(folder)
    manager.save(10, sample(10), {"config": {"width": 32}, "loss": 0.5})
    older = read()
    return Stored([manager.save(20, sample(20), {"loss": 0.25})], read, older)


def weights(folder: Path) -> Stored:
    """A model; it does not depend on config.json, which is for people and may be edited."""
    saved_model(folder / "model")

    def read() -> object:
        model = veca.load(folder / "model")
        return model.config, numbers(model.state_dict())

    return Stored([folder / "model" / "model.safetensors"], read)


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The content after a random damage."""
    start, length = draw.randrange(len(content)), draw.choice((1, 2, 8, 64, 512))
    head, part, rest = content[:start], content[start : start + length], content[start + length :]
    match draw.choice(("flip", "cut", "remove", "zeros", "swap", "edit", "edit")):
        case "flip":
            return head + bytes([part[0] ^ 1 << draw.randrange(8)]) + part[1:] + rest
        case "cut":
            return head
        case "remove":
            return head + rest
        case "zeros":
            return head + bytes(len(part)) + rest
        case "swap":
            return rest + part + head
    # Another digit or letter in a value of the metadata.
    places = [found.end() - 1 for found in re.finditer(rb'"\w+\\?":\s?[\\"\[{]*[0-9a-z]', content)]
    place = draw.choice(places)
    return content[:place] + bytes([draw.choice(b"0123456789abxyz")]) + content[place + 1 :]


@pytest.mark.parametrize(
    "kind", [collection, head, cache, checkpoints, weights], ids=lambda kind: kind.__name__
)
def test_no_damage_is_silent_and_none_is_a_traceback(
    kind: Callable[[Path], Stored], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored = kind(tmp_path)
    whole, contents = stored.read(), {path: path.read_bytes() for path in stored.files}
    draw = random.Random(kind.__name__)
    for _ in range(DAMAGES_PER_KIND):
        path = draw.choice(stored.files)
        while (data := damaged(contents[path], draw)) == contents[path]:
            pass
        path.write_bytes(data)
        caplog.clear()
        try:
            found = stored.read()
        except VecaError as error:
            found, told = whole, str(error)
        else:
            told = " ".join(caplog.messages)
        assert path.name in told or kind is weights
        assert found in (whole, stored.older)
        path.write_bytes(contents[path])
    assert stored.read() == whole
