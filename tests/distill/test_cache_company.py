"""Processes that open a cache fail together and keep others out."""

from pathlib import Path

import pytest
import torch

from tests.runtime.held_folder import held
from veca.distill.cache_company import Company
from veca.distill.cache_store import CacheError
from veca.distill.validation import StoppedError
from veca.runtime.distributed import Ranks

CPU = torch.device("cpu")


def company(rank: int = 0, said: list[str] | None = None) -> Company:
    """One process that opens a cache."""
    said = [] if said is None else said
    return Company(workers=Ranks(rank=rank, device=CPU), tell=said.append)


def test_only_the_first_process_works_and_speaks() -> None:
    done: list[int] = []
    said: list[str] = []
    for rank in (0, 1):
        company(rank, said).first_does(lambda: done.append(1))
        company(rank, said).say("done")
    assert done == [1]
    assert said == ["done"]


def failing(error: Exception) -> None:
    """Raise an error."""
    raise error


def test_a_stop_and_errors_reach_everybody_in_words() -> None:
    with pytest.raises(StoppedError):
        company().first_does(lambda: failing(StoppedError()))
    with pytest.raises(CacheError, match=r"^no room$"):
        company().first_does(lambda: failing(CacheError("no room")))
    with pytest.raises(CacheError, match=r"cannot be kept \(.*full.*\); give --cache-teacher"):
        company().first_does(lambda: failing(OSError(28, "disk full")))
    with pytest.raises(RuntimeError, match="a fault of ours"):
        company().first_does(lambda: failing(RuntimeError("a fault of ours")))


def test_a_folder_in_which_another_process_writes_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "outputs"
    with company().alone_in(folder):
        assert folder.is_dir()
    with (
        held(folder),
        pytest.raises(CacheError, match=f"another process is writing into {folder}; wait"),
        company().alone_in(folder),
    ):
        pytest.fail("the folder was taken")
    with company().alone_in(folder):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(CacheError, match=r"teacher outputs cannot be kept \(.*file"),
        company().alone_in(tmp_path / "file"),
    ):
        pytest.fail("a file was taken for a folder")
