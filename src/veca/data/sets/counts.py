"""What a set must hold, by its makers, and what is said where it does not.

A number over fewer pictures than the makers' looks like any other number. So every reader tells the
checker what it found; whatever differs is reported at once, not one by one, and by choice the set
is used as it is, marked as partial.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veca.data.errors import DataError
from veca.data.labelled import LabelledSet


class SetError(DataError):
    """A labelled set that is not as its makers published it: what is missing, and what to do."""


class Checker:
    """Collects what is wrong with one set."""

    def __init__(
        self,
        name: str,
        *,
        allow_partial: bool = False,
        instead: Mapping[str, int] | None = None,
    ) -> None:
        """Check a set.

        Args:
            name: the set, for messages.
            allow_partial: whether a set with faults is used, its faults told.
            instead: other numbers than the makers', by what is counted: of a copy that was made
                smaller on purpose.
        """
        self.name = name
        self._allow_partial = allow_partial
        self._instead = dict(instead or {})
        self._problems: list[str] = []

    def expect(self, what: str, found: int, wanted: int) -> None:
        """Compare a number with that of the makers."""
        wanted = self._instead.get(what, wanted)
        if found != wanted:
            self.report(f"{what}: {found:,} were found, {wanted:,} are published")

    def expect_each(self, what: str, labels: NDArray[Any], num_classes: int, wanted: int) -> None:
        """Compare the pictures of every class (N labels) with the number of the makers."""
        wanted = self._instead.get(what, wanted)
        counts = np.bincount(labels, minlength=num_classes)
        others = np.flatnonzero(counts != wanted)
        if len(others):
            self.report(
                f"{what}: {wanted:,} are published for each class, but {len(others):,} of the "
                f"{num_classes:,} classes differ, such as number {others[0]} with "
                f"{counts[others[0]]:,}"
            )

    def report(self, problem: str) -> None:
        """Note anything else, as a clause without a full stop."""
        self._problems.append(problem)

    def require(self, *paths: Path) -> None:
        """Stop where a file or folder is missing without which nothing can be read."""
        missing = [path for path in paths if not path.exists()]
        if missing:
            raise self.lacking(*missing)

    def lacking(self, *paths: Path) -> SetError:
        """The error that such files are missing, with all that was noted before."""
        for path in paths:
            self.report(f"{path} is missing")
        return self._error("without what is missing it cannot be read")

    def find(self, folder: Path, needed: Sequence[str], below: Sequence[str] = ()) -> Path:
        """The folder that holds all that is needed: the one given, or one `below` it."""
        places = [folder, *(folder / name for name in below)]
        for place in places:
            if all((place / name).exists() for name in needed):
                return place
        if not folder.is_dir():
            raise SetError(f"{self.name} was looked for in {folder}, which is no folder.")
        held = [place for place in places if any((place / name).exists() for name in needed)]
        nearest = (held or places)[0]
        if below and not held:
            self.report(f"neither {folder} nor a folder {' or '.join(below)} in it has all below")
        raise self.lacking(*(nearest / name for name in needed if not (nearest / name).exists()))

    def finish(self, found: LabelledSet) -> LabelledSet:
        """The set, if it is whole; with allow_partial the set with its faults.

        Raises:
            SetError: it differs from what was published; or it has no pictures, partial or not.
        """
        parts = [part for part in (found.train, found.held_out, found.test) if part is not None]
        empty = [part.name for part in parts if not len(part)]
        for name in empty:
            self.report(f"{name}: not one picture is there")
        if empty or (self._problems and not self._allow_partial):
            raise self._error(
                "complete it, or allow a partial set (--allow-partial), whose results are marked so"
            )
        return replace(found, missing=(*found.missing, *self._problems))

    def _error(self, advice: str) -> SetError:
        """All problems in one message."""
        problems = "".join(f"\n- {problem}" for problem in self._problems)
        return SetError(f"{self.name} is not what it should be; {advice}:{problems}")
