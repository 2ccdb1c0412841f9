"""Embedding a collection: from paths to shards of features.

`embed_collection` is the whole way. Windows of inputs are planned from their headers
(`windows.py`), decoded by worker processes (`decoding.py`), taken through the model here, brought
back into order (`gathering.py`) and committed as shards (`store.py`).
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from veca.backbone.config import BackboneConfig
from veca.backbone.features import Features
from veca.backbone.model import VECA, checked_budget, checked_units
from veca.data.listing import ImageList, list_images
from veca.data.loader import has_shared_memory
from veca.data.transforms import fitted
from veca.embed.config import Efficiency, EmbedConfig
from veca.embed.decoding import Decoder, Group, decoded_batches
from veca.embed.errors import CollectionError
from veca.embed.gathering import Gathering
from veca.embed.layout import SKIPPED_NAME
from veca.embed.models import CollectionModel, ModelSource, find_model
from veca.embed.pending import find_pending
from veca.embed.record import RECORD_NAME, ModelRecord, Record, read_record
from veca.embed.store import CollectionWriter, check_folder
from veca.embed.windows import LENGTHY, Planner, Task
from veca.runtime.device import (
    Precision,
    ResolvedPrecision,
    cpu_threads,
    pick_device,
    resolve_precision,
)
from veca.runtime.files import lock_folder, make_folder
from veca.runtime.logging import progress

USUAL_BUDGET = 16
"""Cores to use where the user does not say; fewer where a model has fewer."""


class Summary(NamedTuple):
    """What a run did."""

    embedded: int
    """Pictures that this run added."""

    skipped: int
    """ImageList that this run could not read."""

    changed: int
    """ImageList that changed after an earlier run embedded them; their features are the old ones."""

    others: int
    """Files in folders and shards that were left out for their names."""

    seconds: float

    record: Record
    """What the collection is now."""


def embed_collection(  # noqa: PLR0913 - the door
    paths: Sequence[str | os.PathLike[str]],
    model: ModelSource,
    out: str | os.PathLike[str],
    config: EmbedConfig | None = None,
    efficiency: Efficiency | None = None,
    *,
    command: str | None = None,
    show_progress: bool = False,
) -> Summary:
    """Store the features of every picture that the paths mean in the folder `out`.

    A run that was stopped continues; new inputs are added behind the others.

    Args:
        paths: files, folders, .txt or .lst files with a path a line, .tar shards, patterns.
        model: a model, a name that `veca.load` takes, or a size, for an untrained model.
        out: folder of the collection; new, empty, or one that was made with the same settings.
        config: what to compute and store.
        efficiency: how to go about it.
        command: what to note as the command that made the collection.
        show_progress: whether to tell on stderr how far it has come.
    """
    started = time.monotonic()
    efficiency = efficiency or Efficiency()
    folder = Path(out).expanduser()
    check_folder(folder)
    inputs = list_images(paths, exclude=folder)
    chosen = find_model(model, pick_device(efficiency.device))
    config = _checked(config or EmbedConfig(), chosen.model.config)

    make_folder(folder)
    with lock_folder(folder):
        precision = _precision(folder, config.precision, chosen.model)
        config = dataclasses.replace(config, precision=precision)
        chosen.model.precision = precision
        writer = CollectionWriter(folder, _record(chosen, config, command))
        pending = find_pending(inputs, writer)
        writer.forget_skipped(pending.again.tolist())
        before = writer.record
        if len(pending.rows):
            _Run(inputs, chosen, config, efficiency, writer).embed(pending.rows, show_progress)
        writer.finish()
    if not writer.record.count:
        raise _nothing(writer)
    return Summary(
        embedded=writer.record.count - before.count,
        skipped=writer.record.skipped - before.skipped,
        changed=pending.changed,
        others=inputs.others,
        seconds=time.monotonic() - started,
        record=writer.record,
    )


class _Run:
    """The loop, and what every turn of it needs."""

    def __init__(
        self,
        inputs: ImageList,
        chosen: CollectionModel,
        config: EmbedConfig,
        efficiency: Efficiency,
        writer: CollectionWriter,
    ) -> None:
        self.inputs = inputs
        self.model = chosen.model
        self.config = config
        self.efficiency = efficiency
        self.writer = writer
        self.gatherings: dict[int, Gathering] = {}
        """The windows under way: the one whose batches arrive, and the next."""

    def embed(self, rows: NDArray[np.int64], show_progress: bool) -> None:
        """Take inputs through the model and commit them, window by window."""
        total = len(self.inputs.rows)
        tracker = progress(total, "images", done=total - len(rows), shown=show_progress)
        batches = decoded_batches(self._decoder(), self._tasks(rows), self.efficiency.workers)
        threads = cpu_threads(self.efficiency.workers)
        with threads, tracker as told, contextlib.closing(batches):
            for decoded in batches:
                gathering = self.gatherings[decoded.window]
                features = [self._features(group) for group in decoded.groups]
                told.advance(gathering.add(decoded, features))
                if gathering.is_full():
                    self._commit(self.gatherings.pop(decoded.window))

    def _tasks(self, rows: NDArray[np.int64]) -> Iterator[Task]:
        """The batches of every window."""
        backbone = self.model.config
        number_bytes = np.dtype(self.config.dtype).itemsize
        planner = Planner(
            table=self.inputs.table,
            problems=self.inputs.problems,
            size=self.config.size,
            fit=self.config.fit,
            patch_size=backbone.patch_size,
            batch=self.efficiency.batch,
            map_bytes=backbone.width * number_bytes if self.config.patches else 0,
        )
        for window in planner.windows(rows):
            gathering = Gathering(window, self.inputs.table, self.config, backbone.width)
            self.gatherings[window.number] = gathering
            yield from window.tasks()

    def _decoder(self) -> Decoder:
        """What the workers do."""
        largest = 3 * 4 * LENGTHY * self.efficiency.batch * self.config.size**2
        return Decoder(
            table=self.inputs.table,
            size=self.config.size,
            fit=self.config.fit,
            patch_size=self.model.config.patch_size,
            shares_memory=has_shared_memory(largest, self.efficiency.workers),
        )

    @torch.inference_mode()
    def _features(self, group: Group) -> Features:
        """Take pictures of one size through the model."""
        weight = next(self.model.parameters())
        images = torch.as_tensor(group.images).to(weight.device, weight.dtype)
        return self.model(images, self.config.budget, self.config.ffn)

    def _commit(self, gathering: Gathering) -> None:
        """Put a full window on the disk."""
        record = self.writer.record
        try:
            self.writer.commit(gathering.content(len(record.shards), record.count))
        except OSError as error:
            raise CollectionError(
                f"{self.writer.folder} cannot be written to ({error.strerror}); the "
                f"{record.count:,} pictures embedded so far are whole: make room, then run the "
                "same command again."
            ) from error


def _checked(config: EmbedConfig, backbone: BackboneConfig) -> EmbedConfig:
    """The choices as the model understands them; what it cannot do is refused."""
    if backbone.in_channels != 3:
        raise CollectionError(
            f"the model takes images of {backbone.in_channels} channels, but pictures have 3; use "
            "a model with in_channels=3."
        )
    fitted((config.size, config.size), config.size, config.fit, backbone.patch_size)
    checked_units(backbone, config.ffn)
    budget = config.budget
    if backbone.attention != "full":
        usual = backbone.default_budget or min(USUAL_BUDGET, backbone.cores)
        budget = checked_budget(backbone, usual if budget is None else budget)
    elif budget is not None:
        checked_budget(backbone, budget)
    ffn = None if config.ffn == 1 else config.ffn
    return dataclasses.replace(config, budget=budget, ffn=ffn)


def _precision(folder: Path, asked: Precision, model: VECA) -> ResolvedPrecision:
    """What to compute with; 'auto' continues a collection in its own, on any machine."""
    if asked == "auto" and (folder / RECORD_NAME).exists():
        asked = read_record(folder).config.precision
    return resolve_precision(asked, model.final_norm.weight.device)


def _record(chosen: CollectionModel, config: EmbedConfig, command: str | None) -> Record:
    """What the collection will be."""
    model = ModelRecord(
        name=chosen.name,
        digest=chosen.digest,
        untrained=chosen.untrained,
        config=chosen.model.config,
    )
    return Record(model=model, config=config, command=command)


def _nothing(writer: CollectionWriter) -> CollectionError:
    """The error for inputs none of which is a picture."""
    first = next(writer.skipped_inputs())
    return CollectionError(
        f"none of the {writer.record.skipped:,} inputs could be read; the reasons stand in "
        f"{writer.folder / SKIPPED_NAME}, the first: {first.reason}"
    )
