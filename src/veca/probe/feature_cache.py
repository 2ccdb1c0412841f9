"""Cache of frozen features on disk: `ShardStore` folders, named by all that features depend on.

Features are computed once, for all settings of a model in one pass over the images, and are shared
by seeds, protocols and later runs. Equal keys give equal bytes, on any number of ranks and wherever
an earlier run was stopped.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from veca.data.images import DataError, ImageError
from veca.data.listing import ImageEntry, one_line, open_image
from veca.data.loader import worker_loader
from veca.data.sets.dataset import Split, Target
from veca.probe.models import FrozenModel
from veca.probe.rows import ProbeError, Setting
from veca.runtime.device import ResolvedPrecision, usable_processors
from veca.runtime.distributed import Ranks
from veca.runtime.logging import progress
from veca.runtime.shards import ShardStore, Task, fill

FORMAT = 2
"""Increase when features of an equal key would differ."""

SAMPLED_FILES = 16
"""Images and targets whose content is part of a key, since names and sizes may agree by chance."""

SAMPLED_BYTES = 2**16
"""Bytes at the start of each of these images."""

MAX_PARALLEL = 4
"""Settings that are computed at the same time; each of them takes memory of its own."""

Sample = TypeVar("Sample")


@dataclass(frozen=True, kw_only=True)
class ProbeContext:
    """Settings of a run, the same for all of its tasks."""

    cache: Path
    """Folder of the feature caches."""

    ranks: Ranks

    num_workers: int = 2
    """Processes of each rank that decode images; 0 decodes in the rank itself."""

    batch: int = 32
    """Crops that go through a model together, at most."""

    precision: ResolvedPrecision = "fp32"
    """Of the models' computation; the only field that features depend on."""

    show_progress: bool = True

    def __post_init__(self) -> None:
        """Validate the counts."""
        if self.batch < 1 or self.num_workers < 0:
            raise ProbeError(
                f"batch={self.batch} with num_workers={self.num_workers} is invalid: batch must "
                "be >= 1, num_workers >= 0."
            )


class Variant(NamedTuple):
    """One of the features of an image."""

    setting: Setting
    flipped: bool = False
    """Whether they are of its mirror image."""


def cache_key(
    content: str, split: Split, model: FrozenModel | None, **facts: object
) -> dict[str, Any]:
    """All that cached tensors depend on; paths and names of models do not count.

    No model sees targets. `facts` are the setting and how images are transformed.
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


def fill_cache(  # noqa: PLR0913, PLR0917
    model: FrozenModel,
    caches: Mapping[Any, ShardStore],
    group_size: int,
    load: Callable[[range], Sample],
    forward: Callable[[range, Sample, Any], Mapping[str, Tensor]],
    ctx: ProbeContext,
) -> None:
    """Compute what caches of the same items lack, all of them in one pass over the items.

    Chunks are divided among the ranks, and a rank holds one chunk of each cache in memory. Groups
    do not depend on what is cached, so neither do the last bits of features.

    Caches are given by `Variant`, that of targets by None. `load` loads the items of a group in a
    worker process, so it is a partial of a function of a module; `forward` returns the tensors to
    cache for them at a variant.
    """
    variants, stores = list(caches), list(caches.values())

    def groups(task: Task) -> list[range]:
        items = stores[0].items(task.chunk)
        starts = range(items.start, items.stop, group_size)
        return [range(start, min(start + group_size, items.stop)) for start in starts]

    def compute(tasks: Sequence[Task]) -> Iterator[dict[int, dict[str, Tensor]]]:
        every = [items for task in tasks for items in groups(task)]
        samples = read_in_workers(load, every, ctx.num_workers)
        with (
            progress(sum(map(len, every)), "images", shown=ctx.show_progress) as tracker,
            map_settings(model, len(variants), ctx.num_workers) as run,
            closing(samples),
        ):
            for task in tasks:
                lacking = [variants[number] for number in task.stores]
                parts: list[dict[str, list[Tensor]]] = [defaultdict(list) for _ in lacking]
                for items in groups(task):
                    found = run(partial(forward, items, next(samples)), lacking)
                    for part, tensors in zip(parts, found, strict=True):
                        for name, tensor in tensors.items():
                            part[name].append(tensor.detach().cpu())
                    tracker.advance(len(items))
                joined = [{name: torch.cat(rows) for name, rows in p.items()} for p in parts]
                yield dict(zip(task.stores, joined, strict=True))

    fill(stores, compute, ctx.ranks)


@contextmanager
def map_settings(
    model: FrozenModel, count: int, num_workers: int
) -> Iterator[Callable[..., list[Any]]]:
    """A function that maps work over variants, on the CPU in parallel threads.

    Threads that share a matrix product wait for the slowest of them, which a data loader easily
    slows down. With a setting per thread, two processors computed 76 instead of 37 crops per second
    at three budgets of tiny.
    """
    threads, parallel = torch.get_num_threads(), 1
    if model.kind == "veca" and model.device.type == "cpu":  # others may not be thread-safe
        parallel = max(1, min(count, MAX_PARALLEL, threads, usable_processors()))
    torch.set_num_threads(max(1, min(threads, (usable_processors() - num_workers) // parallel)))

    def cost(variant: Variant | None) -> int:
        return variant.setting.budget or 0 if variant else 0

    def run(work: Callable[[Variant | None], Any], variants: Sequence[Variant | None]) -> list[Any]:
        slowest_first = sorted(variants, key=cost, reverse=True)
        futures = {variant: pool.submit(work, variant) for variant in slowest_first}
        return [futures[variant].result() for variant in variants]

    try:
        with ThreadPoolExecutor(parallel) as pool:
            yield run
    finally:
        torch.set_num_threads(threads)


def read_in_workers(
    load: Callable[[Any], Sample], tasks: Iterable[Any], num_workers: int
) -> Generator[Sample, None, None]:
    """The sample of each task, in order, loaded by worker processes; errors are raised here.

    Samples hold numpy arrays: these go through a pipe, while tensors would need shared memory, of
    which containers often have little.
    """
    with closing(worker_loader(_Loader(load), tasks, num_workers)) as answers:
        for sample, problem in answers:
            if problem is not None:
                raise DataError(problem)
            yield sample


class _Loader(Dataset[tuple[Any, str | None]]):
    """Loads samples in a worker process; errors come back as messages."""

    def __init__(self, load: Callable[[Any], Any]) -> None:
        self._load = load

    def __getitem__(self, task: Any) -> tuple[Any, str | None]:  # noqa: ANN401 - as `load` takes it
        try:
            return self._load(task), None
        except (OSError, ValueError) as error:
            return None, one_line(error)


def unreadable(source: ImageEntry, reason: str) -> DataError:
    """The error for an image that cannot be read: results without it would be of another set."""
    return DataError(
        f"{source.name} cannot be read ({reason}), and results on the other images would not be "
        "results on this set; restore the image, or take it out of the set."
    )


def load_target(split: Split, index: int) -> Target:
    """The mask or depth of an image; an error names its file."""
    try:
        return split.target(index)
    except OSError as error:
        raise DataError(
            f"{split.targets[index]} cannot be read ({one_line(error)}); restore it."
        ) from error


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
