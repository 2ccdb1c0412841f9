"""The ranks that open a cache of teacher outputs: they take the same steps, and fail together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from veca.distill.cache_store import CacheError
from veca.runtime.distributed import Ranks
from veca.runtime.files import LockedError


@dataclass(frozen=True, kw_only=True)
class Company:
    """Who opens a cache."""

    workers: Ranks

    tell: Callable[[str], None]

    def say(self, text: str) -> None:
        """Log on rank 0 only."""
        if self.workers.is_main:
            self.tell(text)

    def first_does(self, work: Callable[[], None]) -> None:
        """Let rank 0 do something; every rank raises its error."""
        try:
            self.workers.on_main(work)
        except LockedError:
            raise
        except OSError as error:
            raise _unwritable(error) from error

    @contextmanager
    def alone_in(self, folder: Path) -> Iterator[None]:
        """Create a folder and lock it."""
        lock = self.workers.locked(folder)
        try:
            lock.__enter__()
        except LockedError:
            raise
        except OSError as error:
            raise _unwritable(error) from error
        try:
            yield
        finally:
            lock.__exit__(None, None, None)


def _unwritable(error: OSError) -> CacheError:
    return CacheError(
        f"cannot write the teacher cache ({error}); give --cache-teacher a writable folder on a "
        "disk with free space."
    )
