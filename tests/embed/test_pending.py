"""A run does what is new, tries again what changed, and refuses what belongs elsewhere."""

from pathlib import Path

import pytest

from tests.data.pictures import encoded, write_pictures, write_shard
from tests.embed.made_up import content, wanted
from veca.data.listing import ImageEntry, ImageList, list_images
from veca.embed.errors import CollectionError
from veca.embed.layout import Entry, Skipped
from veca.embed.pending import find_pending
from veca.embed.store import CollectionWriter


def entry_for(source: ImageEntry, index: int) -> Entry:
    return Entry(
        index=index, path=source.name, shard=0, row=index, grid=(1, 1), width=1, height=1,
        num_bytes=source.num_bytes, member=source.member, start=source.start,
    )  # fmt: skip


def writer_with(
    folder: Path, done: ImageList, skipped: ImageList | None = None
) -> CollectionWriter:
    """A collection that has dealt with some inputs."""
    folder.mkdir()
    writer = CollectionWriter(folder, wanted())
    made = content(0, 0, count=len(done.table))
    sources = [skipped.table[row] for row in range(len(skipped.table))] if skipped else []
    writer.commit(
        made._replace(
            entries=[entry_for(done.table[row], row) for row in range(len(done.table))],
            skipped=[Skipped(source.name, "is empty", source.num_bytes) for source in sources],
        )
    )
    return writer


def test_only_new_inputs_are_left_in_their_order(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 6)
    writer = writer_with(tmp_path / "out", list_images([paths[1], paths[4]]))
    found = find_pending(list_images(paths[::-1]), writer)
    assert found.rows.tolist() == [0, 2, 3, 5]
    assert found.changed == 0


def test_what_was_skipped_stays_skipped_until_it_changes(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 4)
    writer = writer_with(tmp_path / "out", list_images(paths[:2]), list_images(paths[2:]))
    assert not len(find_pending(list_images(paths), writer).rows)
    paths[3].write_bytes(encoded(3) + b"more")
    found = find_pending(list_images(paths), writer)
    assert found.rows.tolist() == [3]
    assert len(found.again) == 1


def test_what_was_embedded_and_changed_is_counted_and_left_alone(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 3)
    writer = writer_with(tmp_path / "out", list_images(paths))
    paths[1].write_bytes(encoded(1) + b"more")
    found = find_pending(list_images(paths), writer)
    assert (len(found.rows), found.changed) == (0, 1)


def test_other_inputs_are_refused_with_one_that_is_missing(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 3)
    writer = writer_with(tmp_path / "out", list_images(paths))
    others = write_pictures(tmp_path / "others", 3)
    with pytest.raises(CollectionError, match=r"other inputs, such as .*0000\.png, .*give all"):
        find_pending(list_images(others), writer)
    assert len(find_pending(list_images([*paths, *others]), writer).rows) == 3


def test_files_that_vanished_are_no_other_inputs(tmp_path: Path) -> None:
    paths = write_pictures(tmp_path / "photos", 3)
    writer = writer_with(tmp_path / "out", list_images(paths))
    paths[0].unlink()
    assert not len(find_pending(list_images(paths[1:]), writer).rows)


def test_members_that_left_their_shard_are_no_other_inputs(tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "s.tar", [("a.png", encoded(0)), ("b.png", encoded(1))])
    writer = writer_with(tmp_path / "out", list_images([shard]))
    write_shard(shard, [("b.png", encoded(1)), ("c.png", encoded(2))])
    found = list_images([shard])
    (row,) = find_pending(found, writer).rows.tolist()
    assert found.table[row].member == "c.png"
    other = write_shard(tmp_path / "t.tar", [("a.png", encoded(0))])
    with pytest.raises(CollectionError, match="other inputs"):
        find_pending(list_images([other]), writer)
