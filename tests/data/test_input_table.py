"""The table of inputs gives back what was put in, in a few bytes each."""

import os
import pickle

import numpy as np

from veca.data.listing import UNKNOWN, ImageEntry, ImageTable, KeyedRows, TableBuilder


def table_of(*names: str) -> ImageTable:
    builder = TableBuilder()
    for name in names:
        builder.add_file(name)
    return builder.table()


def test_inputs_come_back_as_they_were_added() -> None:
    builder = TableBuilder()
    builder.add_file("/photos/\u6d77.jpg", 5)
    builder.add_member("/s.tar", "in/b#c.jpg", 7, 512)
    builder.add_file("", 0)
    table = builder.table()
    assert len(builder) == len(table) == 3
    assert table[0] == ImageEntry("/photos/\u6d77.jpg", 5, None, UNKNOWN)
    assert table[1] == ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512)
    assert table[2] == ImageEntry("", 0, None, UNKNOWN)


def test_a_member_knows_its_name_in_the_shard() -> None:
    assert ImageEntry("/s.tar#in/b#c.jpg", 7, "/s.tar", 512).member == "in/b#c.jpg"
    assert ImageEntry("/a.jpg", 7, None, UNKNOWN).member is None


def test_names_that_are_no_text_come_back_byte_for_byte() -> None:
    name = os.fsdecode(b"/photos/\xff\xfe.jpg")
    assert table_of(name)[0].name == name


def test_a_name_counts_at_its_first_place_only() -> None:
    assert table_of("c", "a", "c", "b", "a").first_of_each().tolist() == [0, 1, 3]


def test_a_table_without_rows_has_a_length() -> None:
    assert len(table_of()) == len(table_of().first_of_each()) == 0


def test_a_table_takes_some_bytes_for_each_name_and_travels_to_other_processes() -> None:
    table = table_of(*(f"/photos/{number:07}.jpg" for number in range(10_000)))
    copy = pickle.loads(pickle.dumps(table))
    assert copy[9_999].name == "/photos/0009999.jpg"
    assert len(pickle.dumps(table)) < 10_000 * (len("/photos/0000000.jpg") + 41)


def test_rows_are_found_by_key() -> None:
    rows = KeyedRows(np.array([7, 3, 7, 2**63], np.uint64))
    wanted = np.array([2**63, 4, 7, 3, 0], np.uint64)
    assert rows.find(wanted).tolist() == [3, -1, 0, 1, -1]
    assert KeyedRows(np.empty(0, np.uint64)).find(wanted).tolist() == [-1] * 5
