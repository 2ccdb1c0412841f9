"""What is written about a command can be typed again."""

import pytest

from veca.cli.flags import command_line

WORDS = ["knn", "my photos", "--out", "probes"]


@pytest.mark.parametrize(
    ("given", "before"),
    [
        ({}, ""),
        ({"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}, ""),
        ({"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "torchrun --nproc-per-node 2 -m -- "),
        (
            {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"},
            "torchrun --nnodes 2 --nproc-per-node 4 -m -- ",
        ),
        ({"WORLD_SIZE": "many"}, ""),
    ],
)
def test_a_command_is_told_with_the_processes_that_ran_it(
    given: dict[str, str], before: str
) -> None:
    assert command_line("probe", WORDS, given) == f"{before}veca probe knn 'my photos' --out probes"
