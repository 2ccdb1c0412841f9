"""Memory does not grow with the collection."""

from pathlib import Path

import pytest

from tests.embed.memory import FLAGS, IMAGES, measure, summary

MOST_GROWTH = 30
"""Megabytes, after the first two windows."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_memory_is_bounded_over_twenty_thousand_pictures(tmp_path: Path) -> None:
    found = summary(measure(tmp_path, IMAGES, FLAGS), IMAGES, FLAGS)
    for name in ("main", "main_own", "workers", "workers_own"):
        assert found[name]["growth_of_largest_mb"] < MOST_GROWTH
