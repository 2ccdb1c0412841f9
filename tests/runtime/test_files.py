"""A file that is replaced is the old one or the new one, and nothing is left behind."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from veca.runtime.files import make_folder, write_atomic, write_file


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that reach the disk, in their order; folders and files told apart."""
    done: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)

        def step(target: object, *rest: object) -> object:
            kind = f"{name} {'folder' if _is_folder(target) else 'file'}"
            done.append(kind)
            return real(target, *rest)

        monkeypatch.setattr(os, name, step)

    for name in ("write", "fsync", "replace"):
        noted(name)
    return done


def _is_folder(target: object) -> bool:
    return isinstance(target, int) and os.path.isdir(f"/proc/self/fd/{target}")  # noqa: PTH112


def test_a_file_is_replaced_by_the_pieces_given(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    write_atomic(path, [b"n", memoryview(b"e"), b"", b"w"])
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads descriptors from /proc")
def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, steps: list[str]
) -> None:
    write_atomic(tmp_path / "file", [b"a", b"b"])
    assert steps == ["write file", "write file", "fsync file", "replace file", "fsync folder"]


def test_a_system_that_takes_a_few_bytes_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    write_atomic(tmp_path / "file", [bytes(range(100))])
    assert (tmp_path / "file").read_bytes() == bytes(range(100))


def test_a_failure_while_the_pieces_are_made_leaves_the_old_file_alone(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise KeyboardInterrupt

    path = tmp_path / "file"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, pieces())
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]  # noqa: PTH208


def test_a_file_has_the_permissions_that_the_user_wants(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_atomic(tmp_path / "file", [b""])
    assert (tmp_path / "file").stat().st_mode == plain.stat().st_mode


def test_a_new_file_never_takes_the_place_of_another(tmp_path: Path) -> None:
    write_file(tmp_path / "file", [b"old"])
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"old"


def test_folders_are_made_with_those_above_them(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder(folder)
    make_folder(folder)
    assert folder.is_dir()
