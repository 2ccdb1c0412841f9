"""The lines of a collection's lists come back as they were written."""

import dataclasses
import os

import pytest

from veca.data.listing import UNKNOWN, ImageEntry
from veca.embed.errors import CollectionError
from veca.embed.layout import (
    Entry,
    Skipped,
    entry_of,
    patches_name,
    path_in_line,
    skipped_of,
    vectors_name,
)

FILE = Entry(
    index=7, path="/a\n\u6d77.jpg", shard=1, row=2, grid=(3, 4), width=640, height=480,
    num_bytes=99, member=None, start=UNKNOWN,
)  # fmt: skip
MEMBER = Entry(
    index=8, path="/x.tar#y/s.tar#in/b.jpg", shard=1, row=3, grid=(3, 4), width=1, height=2,
    num_bytes=99, member="in/b.jpg", start=512,
)  # fmt: skip


@pytest.mark.parametrize("entry", [FILE, MEMBER])
def test_an_entry_comes_back_from_its_line(entry: Entry) -> None:
    assert entry_of(entry.line()) == entry
    assert entry.line().count(b"\n") == 1


def test_a_line_is_found_by_its_path() -> None:
    for entry in (FILE, MEMBER):
        assert path_in_line(entry.path) in entry.line()
    tricky = dataclasses.replace(FILE, path='/x", "path": "/a", "shard": ')
    assert path_in_line("/a") not in tricky.line()


def test_an_entry_knows_where_its_picture_is() -> None:
    assert FILE.source == ImageEntry(FILE.path, 99, None, UNKNOWN)
    assert MEMBER.source == ImageEntry(MEMBER.path, 99, "/x.tar#y/s.tar", 512)


def test_names_that_are_no_text_survive() -> None:
    name = os.fsdecode(b"/\xff.jpg")
    skipped = Skipped(name, "is damaged", 5)
    assert skipped_of(skipped.line()) == skipped


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b"{}", b'{"grid": 3}', b'{"grid": [1]}'])
def test_a_line_that_veca_never_wrote_is_refused(line: bytes) -> None:
    with pytest.raises(CollectionError, match=r"index\.jsonl is not as veca wrote it"):
        entry_of(line)
    with pytest.raises(CollectionError, match=r"skipped\.jsonl is not as veca wrote it"):
        skipped_of(line)


def test_shards_sort_by_their_numbers() -> None:
    assert vectors_name(3) == "vectors-00003.safetensors"
    assert sorted(map(patches_name, (10, 9, 99_999))) == list(map(patches_name, (9, 10, 99_999)))
