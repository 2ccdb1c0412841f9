"""Parts of a set, put together picture by picture in a few flat arrays."""

import os
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from veca.data.input_table import Input, TableBuilder
from veca.data.labelled import Split
from veca.data.names import absolute
from veca.data.sets.counts import Checker, SetError


class PartBuilder:
    """Collects the pictures of one part; those that are not there are told of and left out."""

    def __init__(self, name: str, folder: Path) -> None:
        """Begin a part.

        Args:
            name: as its makers call it.
            folder: that of the set, below which pictures are named.
        """
        self.name = name
        self._folder = absolute(folder)
        self._table = TableBuilder()
        self._keys: list[str] = []
        self._labels = array("q")
        self._missing = 0
        self._first_missing = ""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: str, label: int) -> None:
        """Add a file by its name below the folder."""
        path = f"{self._folder}{os.sep}{key}"
        try:
            num_bytes = os.stat(path).st_size  # noqa: PTH116 - a million times
        except OSError:
            self._first_missing = self._first_missing or path
            self._missing += 1
            return
        self._table.add_file(path, num_bytes)
        self._keep(key, label)

    def add_found(self, source: Input, label: int) -> None:
        """Add a picture that was found below the folder, perhaps in a tar shard."""
        if source.member is not None and source.shard is not None:
            self._table.add_member(source.shard, source.member, source.num_bytes, source.start)
        else:
            self._table.add_file(source.name, source.num_bytes)
        self._keep(source.name[len(self._folder) + 1 :], label)

    def split(
        self, num_classes: int, checker: Checker, numbers: Sequence[int] | None = None
    ) -> Split:
        """The part; files that are missing are reported.

        Args:
            num_classes: how many classes there are.
            checker: of the set.
            numbers: the class that each label stands for; None where a label is the class.

        Raises:
            SetError: a label is none of the classes.
        """
        if self._missing:
            checker.report(
                f"{self.name}: {self._missing:,} of {self._missing + len(self):,} pictures are not "
                f"there, such as {self._first_missing}"
            )
        labels = np.array(self._labels, np.int64)
        if numbers is not None:
            labels = np.array(numbers, np.int64)[labels]
        if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
            raise SetError(
                f"{checker.name}: labels of {self.name} run from {labels.min()} to {labels.max()}, "
                f"but there are {num_classes:,} classes; get its lists again."
            )
        return Split(
            name=self.name, pictures=self._table.table(), keys=tuple(self._keys), labels=labels
        )

    def _keep(self, key: str, label: int) -> None:
        """Remember name and label of a picture that is in the table."""
        self._keys.append(key)
        self._labels.append(label)
