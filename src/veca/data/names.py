"""What an input is called: the one name by which a collection knows it, from run to run."""

import hashlib
import os

MEMBER_MARK = "#"
"""Between the path of a tar shard and the name of its member."""


def absolute(path: str | os.PathLike[str]) -> str:
    """The name of a file: its absolute path, links kept, so that it means one file anywhere."""
    return os.path.abspath(os.path.expanduser(path))  # noqa: PTH100, PTH111 - as text, links kept


def member_name(shard: str, member: str) -> str:
    """The name of a picture in a tar shard, such as `photos.tar#beach/1.jpg`."""
    return f"{shard}{MEMBER_MARK}{member}"


def split_member(name: str) -> tuple[str, str] | None:
    """The path of the tar shard, absolute, and the member that a name means; None for a file."""
    place = name.lower().find(f".tar{MEMBER_MARK}")
    if place < 0:
        return None
    end = place + len(".tar")
    return absolute(name[:end]), name[end + len(MEMBER_MARK) :]


def possible_names(word: str | os.PathLike[str]) -> list[str]:
    """The names that a user's word for a picture can mean."""
    text = os.fspath(word)
    names = [absolute(text)]
    if parts := split_member(text):
        names.append(member_name(*parts))
    return names


def key(name: str | bytes) -> int:
    """64 bits that stand for a name; any two of a million names share them by a chance of 3e-8."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(name), digest_size=8).digest(), "little")
