"""Outputs of one teacher on their way to being complete, verified and trusted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from veca.distill.cache_company import Company
from veca.distill.cache_fill import LiveOutputs, as_kept, draw_sample, fill, fit_records
from veca.distill.cache_key import cache_facts, kept_channels, key_of
from veca.distill.cache_records import RecordLayout
from veca.distill.cache_store import (
    CacheError,
    Chunks,
    Kept,
    ResolutionFolder,
    TeacherFolder,
    folder_name,
    remove_leftovers,
)
from veca.distill.projection import Projection
from veca.distill.validation import StoppedError
from veca.runtime.logging import progress

COMPARED_VIEWS = 8
"""Kept outputs that are compared with live ones at each opening."""

FARTHEST = 0.3
"""Distance between a kept and a live output, in lengths of the live one, up to which they agree:
int8 gives a hundredth, bfloat16 some hundredths, another image or teacher about one."""

SHOWN_BYTES = 2**30
"""Verifying less than this is not worth a progress bar."""


@dataclass(kw_only=True)
class TeacherOutputs:
    """Outputs of one teacher on their way to being complete."""

    folder: TeacherFolder
    resolutions: dict[int, ResolutionFolder]
    """Largest first: there the projection is fitted."""
    channels: int | None
    live: LiveOutputs
    company: Company
    projection: Projection | None = None
    kept: dict[int, Kept] = field(default_factory=dict)
    missing: dict[int, list[int]] = field(default_factory=dict)
    """Chunks that are not there, or damaged."""

    @classmethod
    def of(
        cls, root: Path, live: LiveOutputs, sizes: Sequence[int], company: Company
    ) -> "TeacherOutputs":
        """What is wanted of one teacher."""
        facts = cache_facts(
            live.teacher,
            index=live.index,
            images=live.images,
            config=live.config,
            views=live.views,
            sizes=sizes,
            patch_size=live.patch_size,
            precision=live.precision,
            margin=live.margin,
        )
        folder = root / folder_name(live.teacher.name, key_of(facts))
        channels = kept_channels(live.teacher, live.config)
        resolutions = {}
        for size in sorted(set(sizes), reverse=True):
            rows, columns = live.grid(size)
            layout = RecordLayout(
                image_width=live.teacher.image_width,
                patches=rows * columns,
                channels=channels or live.teacher.patch_width,
                dtype=live.config.dtype,
            )
            chunks = Chunks.plan(len(live.images), live.config.crops, layout)
            path = folder / f"{size}px"
            resolutions[size] = ResolutionFolder(path=path, layout=layout, chunks=chunks)
        return cls(
            folder=TeacherFolder(path=folder, facts=facts),
            resolutions=resolutions,
            channels=channels,
            live=live,
            company=company,
        )

    def survey(self) -> None:
        """Find out what is missing, and say what is damaged."""
        self._read()
        for size, folder in self.resolutions.items():
            kept = self.kept.get(size)
            if kept is None:
                self.missing[size] = list(range(folder.chunks.count))
            else:
                self.missing[size] = self._absent(kept, list(range(kept.chunks.count)))

    def complete(self) -> None:
        """Compute what is missing, after a look at whether the rest can be trusted."""
        if any(self.missing.values()):
            with self.company.alone_in(self.folder.path):
                self.company.first_does(self._begin)
                self._read()
                # Another run may have been at it since the survey.
                self.missing = {
                    size: self._absent(kept, self.missing[size]) for size, kept in self.kept.items()
                }
                self.company.first_does(self._compare)
                self._fill()
        else:
            self.company.first_does(self._compare)
        for size, kept in self.kept.items():
            self.company.say(self._summary(size, kept))

    def _read(self) -> str | None:
        """Read the manifests that are there; the hash of the first."""
        found = self.folder.read()
        if found is None:
            return None
        self.projection, digest = found
        if self.projection is not None:
            self.projection.to(self.live.device)
        for size, folder in self.resolutions.items():
            if (kept := folder.read(digest)) is not None:
                self.kept[size] = kept
        return digest

    def _absent(self, kept: Kept, chunks: list[int]) -> list[int]:
        """Which of these chunks are not there as they were written; each process hashes a share."""
        workers = self.company.workers
        flags = torch.zeros(len(chunks), dtype=torch.int32)
        shown = self.live.shown and sum(map(kept.chunks.num_bytes, chunks)) >= SHOWN_BYTES
        mine = range(workers.rank, len(chunks), workers.world_size)
        stopped = False
        with progress(len(mine), "chunks verified", shown=shown) as tracker:
            for place in mine:
                stopped = stopped or self.live.asked_to_stop()
                if not stopped:
                    flags[place] = kept.problem(chunks[place]) is not None
                    tracker.advance()
        if workers.any(stopped):
            raise StoppedError
        absent = [chunks[place] for place in workers.all_reduce(flags).nonzero().flatten().tolist()]
        for chunk in absent:
            if kept.path(chunk).exists():
                self.company.say(f"{kept.path(chunk)} {kept.problem(chunk)}; it is computed again.")
        return absent

    def _begin(self) -> None:
        """Fit what was not fitted yet, and write it down for every later run."""
        remove_leftovers(self.folder.path)
        sample, digest = None, self._read()
        if digest is None:
            projection = None
            if self.channels is not None:
                sample = draw_sample(self.live, max(self.resolutions))
                projection = Projection.fit([sample.patches], self.channels)
            digest = self.folder.write(projection)
        self._read()
        for size, folder in self.resolutions.items():
            if size not in self.kept:
                sample = sample or draw_sample(self.live, size)
                folder.write(*fit_records(sample, self.projection, folder.layout), digest)
            sample = None  # it was that of the largest

    def _compare(self) -> None:
        """Refuse outputs that the teacher would not give for these images today."""
        for size, kept in self.kept.items():
            views = spread_views(kept, self.missing[size])
            if not len(views):
                continue
            lots = self.live.lots(views, size)
            for lot, live in zip(lots, self.live.targets(lots, size, num_workers=0), strict=True):
                for found, wanted in zip(
                    kept.read(lot, self.live.device), as_kept(live, self.projection), strict=True
                ):
                    distance = (found - wanted).flatten(1).norm(dim=1)
                    if (distance > FARTHEST * wanted.flatten(1).norm(dim=1)).any():
                        raise CacheError(
                            f"what {kept.folder} holds is not what the teacher "
                            f"{self.live.teacher.name} gives for these images now: the images, the "
                            "teacher, or a library that they go through has changed; remove "
                            f"{self.folder.path}, or give --cache-teacher another folder."
                        )

    def _fill(self) -> None:
        """Compute the chunks that are missing."""
        for size, kept in self.kept.items():
            fill(
                kept,
                self.missing[size],
                self.live,
                resolution=size,
                projection=self.projection,
                workers=self.company.workers,
            )

    def _summary(self, size: int, kept: Kept) -> str:
        """What is kept, and how good it is."""
        projected = "" if self.projection is None else f"; {self.projection.describe()}"
        return (
            f"Kept outputs of {self.live.teacher.name} at {size} px: {kept.chunks.views:,} views "
            f"as {kept.records.layout.dtype}, mean cosine with live ones "
            f"{kept.measured.image:.4f} (image), {kept.measured.patches:.4f} (patches){projected}."
        )


def spread_views(kept: Kept, missing: Sequence[int]) -> NDArray[np.int64]:
    """Some views, spread over the chunks that are there."""
    there = [
        kept.chunks.numbers(chunk) for chunk in sorted(set(range(kept.chunks.count)) - set(missing))
    ]
    ends = np.cumsum([0, *map(len, there)])
    count = min(COMPARED_VIEWS, int(ends[-1]))
    places = np.arange(count) * ends[-1] // max(1, count)
    chunks = np.searchsorted(ends, places, side="right") - 1
    found = [
        there[chunk][place] for chunk, place in zip(chunks, places - ends[chunks], strict=True)
    ]
    return np.array(found, np.int64)
