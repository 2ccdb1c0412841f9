"""Embedding: from image files to a collection of features.

`embed_images` is the whole flow. Images are listed and cut into shards; worker processes decode
them, in order; the `Embedder` takes batches of equal size through the model; each finished shard is
written as one file.
"""

import dataclasses
import hashlib
import io
import itertools
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
import torch
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from veca.backbone.config import BackboneConfig, use_plain_numbers
from veca.backbone.model import VECA, Features, check_ffn
from veca.data.images import ImageError, decode
from veca.data.listing import (
    UNKNOWN,
    ImageEntry,
    ImageList,
    KeyedRows,
    absolute,
    list_images,
    one_line,
    open_image,
)
from veca.data.loader import worker_loader
from veca.data.transforms import Fit, Geometry, check_result, fitted, padded, resampled
from veca.embed.collection import (
    CollectionError,
    CollectionMeta,
    CollectionWriter,
    DamagedShardError,
    ImageRow,
    check_folder,
    read_shard,
    shard_files,
)
from veca.export.session import Runtime, Session, SessionFeatures, session
from veca.runtime.device import Precision, cpu_threads, pick_device, resolve_precision
from veca.runtime.files import lock_folder, make_folder
from veca.runtime.logging import progress
from veca.weights.card import is_trained
from veca.weights.checkpoint import load_or_build
from veca.weights.format import config_from_json, weights_hash

logger = logging.getLogger("veca")

SHARD_ROWS = 512
"""Images of a shard: what an interrupted run loses at most."""

MAX_MAP_BYTES = 2**28
"""Patch maps of a shard, estimated from the settings; they are in memory until it is written."""

MAX_WAITING_BYTES = 2**28
"""Decoded images that wait until their batch is full; beyond that, batches run as they are."""

Place = Literal["torch", "onnx", "openvino"]
"""What runs the model: torch, or a runtime that opens what `veca export onnx` wrote."""

ModelSource = VECA | str | os.PathLike[str]
"""A model, or its name: a folder, .safetensors file, bundled name, hub name, or size."""

StoredType = Literal["float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """Everything the features of a collection depend on, except the model."""

    budget: int | None = None
    """Number of cores; None is the model's default, or all cores if it has none."""

    ffn: float | None = None
    """Share of the hidden units to use, for models with nested feed-forward layers."""

    size: int = 256
    """Short side of a prepared image in pixels; with fit='pad' the long side."""

    fit: Fit = "resize"
    """How sides become multiples of the patch size: 'resize', 'crop' or 'pad'."""

    precision: Precision = "auto"
    """'fp32', 'bf16' (autocast), or 'auto': the precision of an existing collection, otherwise bf16
    where the device computes it natively, else fp32."""

    runtime: Place = "torch"
    """'torch', or 'onnx' or 'openvino' for a model that `veca export onnx` wrote."""

    dtype: StoredType = "float16"
    """Type of the stored features, whatever they were computed in."""

    patches: bool = False
    """Whether to store patch maps as well."""

    def __post_init__(self) -> None:
        """Check what nothing else does."""
        use_plain_numbers(self)
        if self.dtype not in get_args(StoredType):
            allowed = " or ".join(map(repr, get_args(StoredType)))
            raise CollectionError(f"dtype={self.dtype!r} is invalid; use {allowed}.")


@dataclass(kw_only=True)
class EmbedSummary:
    """Result of a run, and the state of the collection."""

    folder: Path
    meta: CollectionMeta
    ignored: int
    """Files that are not images by their names."""

    changed: int
    """Images that were embedded again because their files have changed."""

    embedded: int = 0
    """Images that this run embedded, those that have changed included."""

    failed: int = 0
    """Images that this run could not read."""

    errors: list[str] = field(default_factory=list)
    """Why, for the first three of them."""

    images: int = 0
    """Features in the collection."""

    unreadable: int = 0
    """Rows with an error in the collection."""

    seconds: float = 0.0


class PreparedImage(NamedTuple):
    """An image on its way to the model."""

    row: ImageRow
    """Without a feature."""

    pixels: Shaped[np.ndarray, "3 height width"]
    """Bytes, or floats within 0..1 of images with more than 8 bits; not padded."""

    geometry: Geometry


@dataclass(frozen=True)
class ImageDecoder(Dataset[list[PreparedImage | ImageRow]]):
    """Decodes rows of a list of images; every worker process has a copy."""

    images: ImageList
    config: EmbedConfig
    patch_size: int

    def __getitem__(self, rows: NDArray[np.int64]) -> list[PreparedImage | ImageRow]:
        """Decode some rows; an image that cannot be read becomes a row with an error."""
        found: list[PreparedImage | ImageRow] = []
        for row in rows.tolist():
            image = self.images.table[row]
            try:
                if row in self.images.problems:
                    raise ImageError(self.images.problems[row])
                found.append(decode_image(image, self.config, self.patch_size))
            except (ImageError, OSError, MemoryError) as error:
                found.append(unread(image)._replace(error=one_line(error)))
        return found


def decode_image(image: ImageEntry, config: EmbedConfig, patch_size: int) -> PreparedImage:
    """Decode an image and resample it to whole patches."""
    with open_image(image) as file:
        picture = decode(file)
        geometry = fitted(picture.sides, config.size, config.fit, patch_size)
        check_result(geometry)
        with io.FileIO(file) if isinstance(file, str) else file as stream:
            stream.seek(0)
            digest = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    height, width = geometry.original
    row = unread(image)._replace(width=width, height=height, sha256=digest)
    return PreparedImage(row, resampled(picture, geometry).numpy(), geometry)


def unread(image: ImageEntry) -> ImageRow:
    """The row of an image of which only the place is known."""
    return ImageRow(
        image.name,
        None if image.num_bytes == UNKNOWN else image.num_bytes,
        None if image.shard is None else image.start,
    )


class Embedder:
    """A model with its settings: decoded images in, rows with features out.

    With torch it can be pickled, so that other processes can embed with it.
    """

    def __init__(
        self, model: ModelSource, config: EmbedConfig | None = None, device: str = "auto"
    ) -> None:
        """Load a model by name, or take one; check that it can do what `config` asks for."""
        config = config or EmbedConfig()
        self.run: Callable[..., Features | SessionFeatures]
        if config.runtime != "torch":
            if device not in {"auto", "cpu"}:
                raise CollectionError(
                    f"device={device!r} cannot be used with runtime={config.runtime!r}, which "
                    "chooses its own; omit it."
                )
            self._open_file(model, config)
            return
        place = pick_device(device)
        if isinstance(model, VECA):
            name, state = None, model.state_dict()
            sha256 = weights_hash(model.config, state)
            trained = is_trained(state)
            model = model.to(place).eval()
        else:
            name = os.fspath(model)
            model, _, trained, sha256 = load_or_build(name, device=place)
            name = absolute(name) if Path(name).expanduser().exists() else name
        config = _resolved(config, model.config, model.chosen_budget, place)
        model.precision = config.precision
        self.run, self.backbone, self.config = model, model.config, config
        self.input = model.final_norm.weight.data
        self.meta = self._described(name, sha256, trained)

    def _open_file(self, model: ModelSource, config: EmbedConfig) -> None:
        """Take an exported file instead of a model."""
        if isinstance(model, VECA):
            raise CollectionError(
                f"runtime={config.runtime!r} takes a file of `veca export onnx`, not a model."
            )
        name = absolute(os.fspath(model))
        opened = session(name, cast(Runtime, config.runtime))
        facts = opened.metadata
        self.backbone = config_from_json(facts["backbone"], name)
        wanted = {"image", "patches"} if config.patches else {"image"}
        if facts["resize_to"] is not None or not wanted <= set(facts["outputs"]):
            raise CollectionError(
                f"{name} cannot be used: it must be exported without --preprocess, and with the "
                f"outputs {' and '.join(sorted(wanted))}."
            )
        same_precision = config.precision in {"auto", facts["precision"]}
        if config.ffn not in {None, facts["ffn"]} or not same_precision:
            raise CollectionError(
                f"{name} was exported with ffn={facts['ffn']} and precision {facts['precision']}, "
                "which cannot change; omit both flags, or export again."
            )
        config = dataclasses.replace(config, precision="fp32", ffn=facts["ffn"])
        config = _resolved(config, self.backbone, opened.chosen_budget, torch.device("cpu"))
        self.config = dataclasses.replace(config, precision=facts["precision"])
        self.run, self.input = partial(_run_file, opened), torch.empty(0)
        self.meta = self._described(name, facts["weights_sha256"], not facts["untrained"])

    def _described(self, name: str | None, sha256: str, trained: bool) -> CollectionMeta:
        """What a collection says of its model."""
        settings = asdict(self.config)
        if settings["runtime"] == "torch":
            del settings["runtime"]  # collections of earlier versions have none
        return CollectionMeta(
            model=name,
            model_sha256=sha256,
            untrained=not trained,
            backbone=asdict(self.backbone),
            settings=settings,
        )

    @torch.inference_mode()
    def __call__(self, images: Sequence[PreparedImage]) -> list[ImageRow]:
        """Rows with features and, if asked for, patch maps; the images must have one grid."""
        pixels = [padded(torch.from_numpy(image.pixels), image.geometry) for image in images]
        batch = torch.stack(pixels).to(self.input.device, self.input.dtype)
        found = self.run(batch, self.config.budget, self.config.ffn)
        features = self._stored(found.image)
        maps = self._stored(found.patch_map) if self.config.patches else [None] * len(images)
        return [
            image.row._replace(feature=feature, patch_map=patch_map)
            for image, feature, patch_map in zip(images, features, maps, strict=True)
        ]

    def _stored(self, values: Tensor | NDArray[np.floating] | None) -> NDArray[np.floating]:
        """Values in the stored type, if it can hold them."""
        values = torch.as_tensor(values)
        stored = values.to(getattr(torch, self.config.dtype))
        if not bool(stored.isfinite().all()):
            if bool(values.isfinite().all()):
                raise CollectionError("features are too large for float16; use dtype float32.")
            raise CollectionError("features are not finite; check the model with `veca info`.")
        return stored.cpu().numpy()


def _run_file(file: Session, batch: Tensor, budget: int | None, _: float | None) -> SessionFeatures:
    """Call an exported file like a model."""
    return file(batch.numpy(), None if file.metadata["budget"] else budget)


def _resolved(
    config: EmbedConfig,
    backbone: BackboneConfig,
    chosen_budget: Callable[[int | None], int | None],
    device: torch.device,
) -> EmbedConfig:
    """The settings with the defaults of the model; what it cannot do is refused."""
    budget = config.budget
    if backbone.in_channels != 3:
        raise CollectionError(
            f"the model takes images of {backbone.in_channels} channels, but image files have 3; "
            "use a model with in_channels=3."
        )
    fitted((config.size, config.size), config.size, config.fit, backbone.patch_size)
    check_ffn(backbone, config.ffn)
    if budget is not None or backbone.attention != "full":
        budget = chosen_budget(budget)
    return dataclasses.replace(
        config,
        budget=budget,
        ffn=None if config.ffn == 1 else config.ffn,
        precision=resolve_precision(config.precision, device),
    )


def embed_images(  # noqa: PLR0913 - the public entry point
    paths: Sequence[str | os.PathLike[str]],
    model: ModelSource,
    out: str | os.PathLike[str],
    config: EmbedConfig | None = None,
    *,
    num_workers: int = 2,
    batch_size: int = 16,
    device: str = "auto",
    command: str | None = None,
    show_progress: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> EmbedSummary:
    """Store the features of images in the folder `out`.

    An interrupted run continues when it is repeated; new images are added, images whose files have
    changed and damaged shards are computed again.

    Args:
        paths: files, folders, .txt or .lst files with a path per line, .tar files, patterns.
        model: a model, a name that `veca.load` takes, or a size for an untrained model.
        out: a new or empty folder, or a collection made with the same model and settings.
        config: what to compute and store.
        num_workers: processes that decode images; 0 decodes in this process.
        batch_size: images of equal size that go through the model together, at most. Neither
            changes the features beyond 1e-5 in fp32.
        device: 'auto', 'cpu', 'cuda', 'cuda:1'.
        command: stored as the command that made the collection.
        show_progress: whether to show progress on stderr.
        stop: asked after every image; KeyboardInterrupt is raised where it returns True.
    """
    started = time.monotonic()
    if batch_size < 1 or num_workers < 0:
        raise CollectionError(
            f"batch={batch_size}, workers={num_workers} is invalid; use a batch of at least 1 and "
            "0 or more workers."
        )
    folder = Path(out).expanduser()
    check_folder(folder)
    images = list_images(paths, exclude=folder)
    embedder = Embedder(model, _continued(config or EmbedConfig(), folder), device)
    if embedder.meta.untrained:
        logger.warning("warning: the model is untrained; its features are not meaningful")
    make_folder(folder)
    with lock_folder(folder):
        writer = CollectionWriter(folder, embedder.meta, command)
        for problem in writer.damaged():
            logger.warning("warning: %s", problem)
        tasks, changed = _plan(images, writer, _shard_rows(embedder))
        summary = EmbedSummary(
            folder=folder, meta=embedder.meta, ignored=images.others, changed=changed
        )
        decoded = _decoded(
            images, tasks, embedder, batch_size, num_workers, show_progress=show_progress, stop=stop
        )
        with closing(decoded):
            for number, rows in tasks:
                found = _embedded(itertools.islice(decoded, len(rows)), embedder, batch_size)
                _write(writer, number, _source_folder(paths), found, summary)
    return _finished(summary, writer, time.monotonic() - started)


ShardTask = tuple[int, NDArray[np.int64]]
"""The number of a shard, and the rows of the table of images to compute for it."""


def _plan(
    images: ImageList, writer: CollectionWriter, shard_rows: int
) -> tuple[list[ShardTask], int]:
    """Shards to write, and how many of their images have changed."""
    keys, sizes = images.table.keys[images.rows], images.table.sizes[images.rows]
    known_keys, known_sizes, known_shards = writer.known()
    places = KeyedRows(known_keys).find(keys)
    there = np.flatnonzero(places >= 0)
    differs = sizes[there] != known_sizes[places[there]]
    changed = there[differs & (sizes[there] != UNKNOWN)]
    shards = known_shards[places[changed]]
    tasks = [
        (number, images.rows[changed[shards == number]]) for number in np.unique(shards).tolist()
    ]
    new = images.rows[places < 0]
    chunks = [new[start : start + shard_rows] for start in range(0, len(new), shard_rows)]
    return [*tasks, *zip(writer.plan(len(chunks)), chunks, strict=True)], len(changed)


def _decoded(  # noqa: PLR0913 - what `embed_images` is given
    images: ImageList,
    tasks: Sequence[ShardTask],
    embedder: Embedder,
    batch_size: int,
    num_workers: int,
    *,
    show_progress: bool,
    stop: Callable[[], bool],
) -> Generator[PreparedImage | ImageRow, None, None]:
    """The images of all tasks in order, decoded ahead."""
    chunks = [
        rows[start : start + batch_size]
        for _, rows in tasks
        for start in range(0, len(rows), batch_size)
    ]
    total = len(images.rows)
    done = total - sum(map(len, chunks))
    decoder = ImageDecoder(images, embedder.config, embedder.backbone.patch_size)
    with (
        cpu_threads(num_workers),
        closing(worker_loader(decoder, chunks, num_workers if chunks else 0)) as stream,
        progress(total, "images", done=done, shown=show_progress) as tracker,
    ):
        for image in itertools.chain.from_iterable(stream):
            if stop():
                raise KeyboardInterrupt
            tracker.advance()
            yield image


def _embedded(
    images: Iterable[PreparedImage | ImageRow], embedder: Embedder, batch_size: int
) -> list[ImageRow]:
    """Embed the images of a shard in batches of one grid; rows come in the order of images."""
    rows: dict[int, ImageRow] = {}
    buckets: defaultdict[tuple[int, int], dict[int, PreparedImage]] = defaultdict(dict)
    square = max(1, embedder.config.size // embedder.backbone.patch_size) ** 2
    waiting = 0

    def flush(grid: tuple[int, int]) -> None:
        nonlocal waiting
        bucket = buckets.pop(grid)
        rows.update(zip(bucket, embedder(list(bucket.values())), strict=True))
        waiting -= sum(image.pixels.nbytes for image in bucket.values())

    for place, image in enumerate(images):
        if isinstance(image, ImageRow):
            rows[place] = image
            continue
        grid = image.geometry.grid
        buckets[grid][place] = image
        waiting += image.pixels.nbytes
        # At most twice the patches of a batch of squares.
        if len(buckets[grid]) >= min(batch_size, 2 * batch_size * square // (grid[0] * grid[1])):
            flush(grid)
        elif waiting > MAX_WAITING_BYTES:
            for other in list(buckets):
                flush(other)
    for grid in list(buckets):
        flush(grid)
    return [rows[place] for place in sorted(rows)]


def _write(
    writer: CollectionWriter,
    number: int,
    source: str,
    rows: list[ImageRow],
    summary: EmbedSummary,
) -> None:
    """Write a shard; of an existing one, other rows stay."""
    errors = [row.error for row in rows if row.error is not None]
    summary.embedded += len(rows) - len(errors)
    summary.failed += len(errors)
    summary.errors += errors[: 3 - len(summary.errors)]
    if shard := writer.shards.get(number):  # some of its images have changed
        source = shard.source
        new = {row.path: row for row in rows}
        rows = [new.get(row.path, row) for row in shard.whole_rows()]
    try:
        writer.write(number, source, rows)
    except OSError as error:
        done = sum(shard.images for shard in writer.shards.values())
        raise CollectionError(
            f"{writer.folder} cannot be written to ({error.strerror or error}); the {done:,} "
            "images embedded so far are intact: free some space, then run the same command again."
        ) from error


def _finished(summary: EmbedSummary, writer: CollectionWriter, seconds: float) -> EmbedSummary:
    """The summary of a run that ended; an error if the collection cannot be searched."""
    if damaged := writer.damaged():
        raise CollectionError(damaged[0])
    shards = writer.shards.values()
    summary.images = sum(shard.images for shard in shards)
    summary.unreadable = sum(shard.failures for shard in shards)
    summary.seconds = seconds
    if not summary.images:
        rows = itertools.chain.from_iterable(shard.rows() for shard in shards)
        raise CollectionError(
            f"none of the {summary.unreadable:,} images could be read; the first error: "
            f"{next(row.error for row in rows)}"
        )
    return summary


def _shard_rows(embedder: Embedder) -> int:
    """Images of a shard; fewer than 512 where their patch maps would take too much memory."""
    if not embedder.config.patches:
        return SHARD_ROWS
    backbone, number_bytes = embedder.backbone, np.dtype(embedder.config.dtype).itemsize
    patches = 2 * max(1, embedder.config.size // backbone.patch_size) ** 2  # twice as wide as high
    return max(1, min(SHARD_ROWS, MAX_MAP_BYTES // (patches * backbone.width * number_bytes)))


def _continued(config: EmbedConfig, folder: Path) -> EmbedConfig:
    """The settings, with 'auto' precision replaced by that of an existing collection."""
    for path in shard_files(folder) if config.precision == "auto" else ():
        with suppress(DamagedShardError):
            found = read_shard(path).meta.settings["precision"]
            return dataclasses.replace(config, precision=found)
    return config


def _source_folder(paths: Sequence[str | os.PathLike[str]]) -> str:
    """The common folder of what the user named."""
    folders = []
    for path in map(absolute, paths):
        while not os.path.isdir(path):  # noqa: PTH112 - of a file, a pattern, a member of a tar file
            path = os.path.dirname(path)  # noqa: PTH120, PLW2901
        folders.append(path)
    return os.path.commonpath(folders)
