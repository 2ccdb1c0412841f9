"""A folder of blocks: which items lie in which file, and what all of them depend on.

FOLDER/0123456789abcdef/       named after all that its content depends on
    facts.json                 this, for people
    block-00000.safetensors    the items of some numbers (`block_file.py`)
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from veca.probe.block_file import StoreError, block_problem, write_block
from veca.runtime.files import TEMPORARY_SUFFIX, replace_file
from veca.runtime.plain_json import plain_json

FORMAT = 1
"""Rises when older readers would misunderstand a folder."""

FACTS = "facts.json"


class BlockFolder:
    """The blocks of N items."""

    def __init__(
        self,
        folder: Path,
        facts: Mapping[str, Any],
        count: int,
        block: int = 64,
        *,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        """Name it; nothing is read or written yet.

        Args:
            folder: where it lies, beside others.
            facts: plain values that tell everything on which the tensors depend.
            count: number of items.
            block: items of one file, all of which are in memory while it is written.
            notes: what else people are told in the folder; the tensors do not depend on it.
        """
        if count < 1 or block < 1:
            raise StoreError(
                f"{count} items in blocks of {block} cannot be stored; use 1 or more of both."
            )
        about = {"format": FORMAT, "count": count, "block": block, "facts": dict(facts)}
        plain = json.loads(json.dumps(about, sort_keys=True))
        self.key = hashlib.sha256(plain_json(plain, "facts of a store").encode()).hexdigest()
        self.folder = folder / self.key[:16]
        self.count = count
        self.block = block
        self.is_whole = False
        """Whether every block was seen to be there."""
        self._told = {**plain, "notes": dict(notes or {})}

    @property
    def num_blocks(self) -> int:
        """Files of a full store."""
        return -(-self.count // self.block)

    def numbers(self, block: int) -> range:
        """The items of a block."""
        return range(block * self.block, min((block + 1) * self.block, self.count))

    def path(self, block: int) -> Path:
        """The file of a block."""
        return self.folder / f"block-{block:05}.safetensors"

    def problem(self, block: int) -> str | None:
        """What is wrong with a block; None if it is as it was written."""
        return block_problem(self.path(block), self._seal(block))

    def write(self, block: int, content: Mapping[str, Sequence[Tensor]]) -> None:
        """Write a block."""
        write_block(self.path(block), self._seal(block), content)

    def begin(self) -> None:
        """Remove what a killed process had not finished, and say in clear text what this is."""
        for path in self.folder.glob(f".*{TEMPORARY_SUFFIX}"):
            path.unlink()
        replace_file(self.folder / FACTS, [f"{json.dumps(self._told, indent=2)}\n".encode()])

    def confirm(self) -> None:
        """Note that every block is there, after a look."""
        there: set[str] = set()
        with suppress(FileNotFoundError):
            there.update(os.listdir(self.folder))  # noqa: PTH208 - names, no paths
        for block in range(self.num_blocks):
            if self.path(block).name not in there:
                raise StoreError(
                    f"{self.path(block)} was written by another process, but is not to be seen in "
                    "this one; give a folder that all processes share."
                )
        self.is_whole = True

    def _seal(self, block: int) -> str:
        """What a block belongs to."""
        return f"{self.key}/{block}"
