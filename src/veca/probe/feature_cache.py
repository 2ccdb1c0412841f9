"""Cache of frozen features on disk: `ShardStore` folders, named by all that features depend on.

Features are computed once, for all settings of a model in one pass over the images, and are shared
by seeds, protocols and later runs. Equal keys give equal bytes, on any number of ranks and wherever
an earlier run was stopped.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from veca.data.images import DataError, ImageError
from veca.data.listing import ImageEntry, one_line, open_image
from veca.data.sets.dataset import Split
from veca.probe.models import FrozenModel, ProbeError
from veca.runtime.device import ResolvedPrecision
from veca.runtime.distributed import Ranks
from veca.runtime.logging import progress
from veca.runtime.shards import ShardStore, Task, fill

FORMAT = 2
"""Increase when features of an equal key would differ."""

SAMPLED_FILES = 16
"""Images and targets whose content is part of a key, since names and sizes may agree by chance."""

SAMPLED_BYTES = 2**16
"""Bytes at the start of each of these images."""


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What all tasks of a run share."""

    cache: Path
    """Folder of the feature caches."""

    ranks: Ranks

    num_workers: int = 2
    """Processes of each rank that decode images; 0 decodes in the rank itself."""

    batch: int = 32
    """Crops that go through a model together, at most."""

    precision: ResolvedPrecision = "fp32"
    """Of the models' computation; the only field that features depend on."""

    log: Callable[[str], None]
    """Receives messages for the user."""

    show_progress: bool = True

    def __post_init__(self) -> None:
        """Validate the counts."""
        if self.batch < 1 or self.num_workers < 0:
            raise ProbeError(
                f"batch={self.batch} with num_workers={self.num_workers} is invalid: batch must "
                "be >= 1, num_workers >= 0."
            )


class FeatureCache(ShardStore):
    """The features of N items (images or crops) at one setting.

    Items of one shape are rows of a tensor for each name; items of varied shapes, such as the patch
    maps of whole images, are tensors of their own, named by `item_name`.
    """

    def item(self, index: int, names: Sequence[str]) -> list[Tensor]:
        """The tensors of an item that has its own."""
        with self.open(index // self.chunk_size) as file:
            return [file.read(item_name(index, name)) for name in names]

    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(self.path(chunk).stat().st_size for chunk in range(self.num_chunks))

    def stack(self, name: str) -> Tensor:
        """The rows of all items."""
        with self.open(0) as file:
            like = file.read(name, [])
        rows = like.new_empty((self.count, *like.shape[1:]))
        for chunk in range(self.num_chunks):
            items = self.items(chunk)
            rows[items.start : items.stop] = self.read(chunk, [name])[name]
        return rows


def item_name(index: int, name: str) -> str:
    """The name of a tensor that belongs to one item."""
    return f"{index}/{name}"


def cache_key(
    content: str, split: Split, model: FrozenModel | None, **facts: object
) -> dict[str, Any]:
    """All that cached tensors depend on; paths and names of models do not count.

    Args:
        content: what is cached.
        split: the images.
        model: what computes the features; None for targets, which no model sees.
        facts: how images are transformed, and the setting.
    """
    found = {"format": FORMAT, "content": content, "images": _image_facts(split), **facts}
    if split.targets and model is None:
        found["targets"] = _target_facts(split)
    if model is not None:
        if model.digest is None:
            raise ProbeError(
                f"features of {model.name} cannot be cached, since it has no digest that "
                "identifies it; give the model one."
            )
        names = ("digest", "stride", "image_width", "patch_width", "precision")
        found["model"] = {name: getattr(model, name) for name in names}
    return json.loads(json.dumps(found))  # tuples become lists


def unreadable(source: ImageEntry, reason: str) -> DataError:
    """The error for an image that cannot be read: results without it would be of another set."""
    return DataError(
        f"{source.name} cannot be read ({reason}), and results on the other images would not be "
        "results on this set; restore the image, or take it out of the set."
    )


def load_target(split: Split, index: int) -> Any:  # noqa: ANN401 - classes or meters
    """The target of an image; an error names its file."""
    try:
        return split.target(index)
    except OSError as error:
        raise DataError(
            f"{split.targets[index]} cannot be read ({one_line(error)}); restore it."
        ) from error


class Group(NamedTuple):
    """Items that are computed together, and the numbers of the caches that lack them."""

    items: range
    caches: tuple[int, ...]


Compute = Callable[[Sequence[Group]], Generator[Sequence[Mapping[str, Tensor]], None, None]]
"""Yields for each group, in order, the tensors for each of its caches."""


def fill_cache(
    caches: Sequence[FeatureCache], group_size: int, compute: Compute, ctx: RunContext
) -> None:
    """Compute what caches of the same items lack, all of them in one pass over the items.

    Chunks are divided among the ranks, and a rank holds one chunk of each cache in memory. Groups
    do not depend on what is cached, so neither do the last bits of features.
    """

    def chunks(tasks: Sequence[Task]) -> Iterator[dict[int, dict[str, Tensor]]]:
        groups = [
            Group(range(start, min(start + group_size, items.stop)), task.stores)
            for task in tasks
            for items in [caches[0].items(task.chunk)]
            for start in range(items.start, items.stop, group_size)
        ]
        ends = {caches[0].items(task.chunk).stop for task in tasks}
        total = sum(len(group.items) for group in groups)
        held: dict[int, dict[str, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
        with (
            progress(total, "images", shown=ctx.show_progress) as tracker,
            closing(compute(groups)) as results,
        ):
            for group, found in zip(groups, results, strict=True):
                for number, tensors in zip(group.caches, found, strict=True):
                    for name, tensor in tensors.items():
                        held[number][name].append(tensor.detach().cpu())
                tracker.advance(len(group.items))
                if group.items.stop in ends:
                    yield {number: _joined(parts) for number, parts in held.items()}
                    held.clear()

    fill(caches, chunks, ctx.ranks)


def _joined(parts: Mapping[str, list[Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat(rows) if len(rows) > 1 else rows[0] for name, rows in parts.items()}


def _image_facts(split: Split) -> dict[str, str]:
    """Names, sizes and some content of the images."""
    sample = hashlib.sha256()
    for index in _sampled(split):
        source = split.image(index)
        try:
            sample.update(hashlib.sha256(_first_bytes(source)).digest())
        except (OSError, ImageError) as error:
            raise unreadable(source, one_line(error)) from error
    return {"names_and_sizes": split.fingerprint(), "sample": sample.hexdigest()}


def _target_facts(split: Split) -> dict[str, str]:
    """Names, sizes and some content of the targets."""
    names, sample = hashlib.sha256(), hashlib.sha256()
    for path in map(Path, split.targets):
        names.update(f"{path.name}\0{path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
    for index in _sampled(split):
        sample.update(load_target(split, index).tobytes())
    return {"names_and_sizes": names.hexdigest(), "sample": sample.hexdigest()}


def _sampled(split: Split) -> list[int]:
    count = min(SAMPLED_FILES, len(split))
    return [number * len(split) // count for number in range(count)]


def _first_bytes(source: ImageEntry) -> bytes:
    """The start of an encoded image."""
    with open_image(source) as file:
        if not isinstance(file, str):
            return file.read(SAMPLED_BYTES)
        with Path(file).open("rb") as opened:
            return opened.read(SAMPLED_BYTES)
