"""The whole corpus in a process of its own: at once, and in bounded memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import measure
from tests.data.corpus import GOOD
from tests.data.refused import BAD

MOST_SECONDS = 0.2
MOST_GROWTH = 300 * 2**20
CONTENTS = {good.name: good.content for good in GOOD} | {bad.name: bad.content for bad in BAD}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak of memory")
def test_every_file_is_answered_at_once_and_in_bounded_memory(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        (tmp_path / name).write_bytes(content)
    command = [sys.executable, str(Path(measure.__file__)), str(tmp_path)]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)

    outcomes = {file["name"]: file["outcome"] for file in answer["files"]}
    assert len(outcomes) == len(GOOD) + len(BAD)
    assert all(outcomes[case.name].startswith("(3, ") for case in GOOD), outcomes
    assert all(outcomes[case.name].startswith("ImageError: ") for case in BAD), outcomes
    slow = [file for file in answer["files"] if file["seconds"] > MOST_SECONDS]
    assert not slow
    assert answer["growth"] < MOST_GROWTH
