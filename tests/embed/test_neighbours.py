"""Neighbours are those that comparing every pair gives, in the same order."""

from pathlib import Path

import numpy as np
import pytest

from tests.embed.made_up import WIDTH, content, wanted
from veca.embed import collection as collection_module
from veca.embed.collection import Collection, open_collection
from veca.embed.errors import CollectionError
from veca.embed.neighbours import nearest
from veca.embed.store import CollectionWriter


def collection_of(folder: Path, *shards: np.ndarray) -> Collection:
    """A collection with these vectors."""
    folder.mkdir(exist_ok=True)
    writer = CollectionWriter(folder, wanted())
    for number, vectors in enumerate(shards):
        made = content(number, writer.record.count, count=len(vectors))
        writer.commit(made._replace(vectors=vectors.astype(np.float32)))
    return open_collection(folder)


def brute_force(vectors: np.ndarray, vector: np.ndarray) -> list[tuple[float, int]]:
    """Cosines in double precision, pair by pair, best first."""
    found = []
    for row, other in enumerate(vectors.astype(np.float64)):
        lengths = float(np.linalg.norm(other)) * float(np.linalg.norm(vector))
        found.append((-float(other @ vector) / lengths, row))
    return [(-cosine, row) for cosine, row in sorted(found)]


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("top", [1, 5, 40, 100])
def test_the_order_is_that_of_comparing_every_pair(
    top: int, block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_module, "BLOCK_BYTES", block * 4 * WIDTH)
    random = np.random.default_rng(0)
    vectors = random.normal(size=(40, WIDTH)) * random.uniform(0.1, 9, size=(40, 1))
    vector = random.normal(size=WIDTH)
    found = nearest(collection_of(tmp_path, vectors[:25], vectors[25:]), vector, top)
    expected = brute_force(vectors, vector)[:top]
    assert [neighbour.entry.index for neighbour in found] == [row for _, row in expected]
    assert [neighbour.rank for neighbour in found] == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(
        [neighbour.similarity for neighbour in found], [cosine for cosine, _ in expected], atol=1e-6
    )


def test_a_known_order_comes_out(tmp_path: Path) -> None:
    vectors = np.zeros((5, WIDTH))
    vectors[0, 1] = 1  # at a right angle
    vectors[1, 0] = -2  # opposite
    vectors[2, :2] = 1, 1  # at 45 degrees
    vectors[3, 0] = 100  # the same direction; length does not matter
    wanted_vector = np.eye(WIDTH)[0]  # the last one has no direction at all
    found = nearest(collection_of(tmp_path, vectors), wanted_vector)
    assert [(neighbour.entry.index, round(neighbour.similarity, 4)) for neighbour in found] == [
        (3, 1.0), (2, 0.7071), (0, 0.0), (4, 0.0), (1, -1.0),
    ]  # fmt: skip


def test_equal_pictures_come_in_the_order_of_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection_module, "BLOCK_BYTES", 3 * 4 * WIDTH)
    found = nearest(collection_of(tmp_path, np.ones((10, WIDTH))), np.ones(WIDTH), 4)
    assert [neighbour.entry.index for neighbour in found] == [0, 1, 2, 3]


def test_a_vector_of_another_width_is_refused(tmp_path: Path) -> None:
    opened = collection_of(tmp_path, np.ones((1, WIDTH)))
    with pytest.raises(CollectionError, match=r"shape \(3,\), but those .* \(32,\)"):
        nearest(opened, np.ones(3))


def test_no_neighbours_at_all_are_refused(tmp_path: Path) -> None:
    opened = collection_of(tmp_path, np.ones((1, WIDTH)))
    with pytest.raises(CollectionError, match="top=0 asks for no picture"):
        nearest(opened, np.ones(WIDTH), 0)
