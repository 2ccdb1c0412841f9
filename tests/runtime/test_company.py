"""What the first process cannot do, none can, in the same words; folders are one run's alone."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.runtime.held_folder import held
from veca.runtime.distributed import Company, Ranks

CPU = torch.device("cpu")


class RefusedError(ValueError):
    """What those who ask raise."""


class Told(Ranks):
    """A process to which the first one has told something."""

    def share(self, value: object) -> object:
        """What the first one says."""
        del value
        return "no room"


def company(workers: Ranks | None = None) -> Company:
    """A process that raises `RefusedError`."""
    return Company(
        workers=workers or Ranks(device=CPU),
        refusal=RefusedError,
        unwritable=lambda error: f"cannot be kept ({error.strerror})",
    )


def failing(error: Exception) -> Callable[[], None]:
    """Work that fails."""

    def work() -> None:
        raise error

    return work


def test_only_the_first_process_works() -> None:
    done: list[int] = []
    for rank in (0, 1):
        company(Ranks(rank=rank, device=CPU)).first_does(lambda: done.append(1))
    assert done == [1]


def test_what_the_first_one_tells_is_raised_in_the_others() -> None:
    done: list[int] = []
    with pytest.raises(RefusedError, match=r"^no room$"):
        company(Told(rank=1, device=CPU)).first_does(lambda: done.append(1))
    assert not done


def test_mistakes_and_disks_are_refused_in_words_and_faults_are_left_as_they_are() -> None:
    with pytest.raises(RefusedError, match=r"^no such thing$"):
        company().first_does(failing(RefusedError("no such thing")))
    with pytest.raises(RefusedError, match=r"^cannot be kept \(disk full\)$"):
        company().first_does(failing(OSError(28, "disk full")))
    for fault in (RuntimeError("a fault of ours"), ValueError("another one")):
        with pytest.raises(type(fault), match=str(fault)) as raised:
            company().first_does(failing(fault))
        assert raised.value is fault


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(RefusedError, match=r"^cannot be kept \(File exists\)$"),
        company().alone_in(tmp_path / "file"),
    ):
        pytest.fail("a file was taken for a folder")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such locks")
def test_all_folders_are_had_or_none_is_held(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "deep" / "two"
    with company().alone_in(one, two):
        assert one.is_dir()
        assert two.is_dir()
    with held(two):
        with (
            pytest.raises(RefusedError, match=f"another process is writing into {two}; wait"),
            company().alone_in(one, two),
        ):
            pytest.fail("a folder of another was taken")
        with held(one):  # it was let go, so that another can have it
            pass
    with company().alone_in(one, two):
        pass
