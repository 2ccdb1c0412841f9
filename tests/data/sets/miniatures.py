"""What the tests of readers share: small copies of layouts, and looks at what was read of them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from veca.data.sets.dataset import DatasetChecks, DatasetError, LabeledDataset, Split

Reader = Callable[[Path, DatasetChecks], LabeledDataset]
Maker = Callable[[Path], Path]


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Files by their names below a folder, which is returned."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def touch(folder: Path, *names: str) -> Path:
    """Files that only have to be there, each of another size."""
    return write(folder, {name: b"x" * (place + 1) for place, name in enumerate(names)})


def part(reader: Reader, folder: Path) -> LabeledDataset:
    """What is read of a copy that is allowed to be partial."""
    checker = DatasetChecks("the set", allow_partial=True)
    return checker.finish(reader(folder, checker))


def complete(reader: Reader, folder: Path, counts: Mapping[str, int]) -> LabeledDataset:
    """What is read of a copy that holds all it has to by other counts than the makers'."""
    checker = DatasetChecks("the set", instead=counts)
    found = checker.finish(reader(folder, checker))
    assert found.missing == ()
    return found


def complaint(reader: Reader, folder: Path) -> str:
    """What is said of a copy that has to be as its makers published the set."""
    checker = DatasetChecks("the set")
    with pytest.raises(DatasetError) as told:
        checker.finish(reader(folder, checker))
    return str(told.value)


def labels(split: Split | None) -> dict[str, int]:
    """Label by name; every picture must be where the part says it is."""
    assert split is not None
    for row, name in enumerate(split.keys):
        source = split.image(row)
        assert Path(source.name).as_posix().endswith(f"/{name}")
        if source.shard is None:
            assert Path(source.name).stat().st_size == source.num_bytes
    return dict(zip(split.keys, np.asarray(split.labels).tolist(), strict=True))
