"""The processes that open a cache of teacher outputs: they go the same way, and fail together."""

from collections.abc import Callable
from dataclasses import dataclass

from veca.distill.cache_store import CacheError
from veca.distill.validation import StoppedError
from veca.runtime import distributed as company


def _unwritable(error: OSError) -> str:
    """The sentence for a disk that does not take them."""
    return (
        f"teacher outputs cannot be kept ({error}); give --cache-teacher a folder that can be "
        "written, on a disk with room."
    )


@dataclass(frozen=True, kw_only=True)
class Company(company.Company):
    """Who opens a cache."""

    tell: Callable[[str], None]

    refusal: type[ValueError] = CacheError

    unwritable: Callable[[OSError], str] = _unwritable

    def say(self, text: str) -> None:
        """Tell something once, not once for each process."""
        if self.workers.is_main:
            self.tell(text)

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process do something; if it fails or is stopped, so are all of them."""
        stopped = False

        def stoppable() -> None:
            nonlocal stopped
            try:
                work()
            except StoppedError:
                stopped = True

        super().first_does(stoppable)
        if self.workers.share(stopped):
            raise StoppedError
