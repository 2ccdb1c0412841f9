"""The processes that open a cache of teacher outputs: they go the same way, and fail together."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veca.distill.cache_store import CacheError
from veca.distill.validation import StoppedError
from veca.runtime.files import make_folder
from veca.runtime.lock import OccupiedError, occupy
from veca.runtime.workers import Workers


@dataclass(frozen=True, kw_only=True)
class Company:
    """Who opens a cache."""

    workers: Workers
    tell: Callable[[str], None]

    def say(self, text: str) -> None:
        """Tell something once, not once for each process."""
        if self.workers.first:
            self.tell(text)

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process do something; if that fails, it fails in all of them."""
        outcome: dict[str, Any] = {}
        if self.workers.first:
            try:
                work()
            except StoppedError:
                outcome = {"stopped": True}
            except (CacheError, OccupiedError) as error:
                outcome = {"reason": str(error)}
            except OSError as error:
                outcome = {
                    "reason": f"teacher outputs cannot be kept ({error}); give --cache-teacher a "
                    "folder that can be written, on a disk with room."
                }
        outcome = self.workers.share(outcome)
        if "stopped" in outcome:
            raise StoppedError
        if "reason" in outcome:
            raise CacheError(outcome["reason"])

    @contextmanager
    def alone_in(self, folder: Path) -> Iterator[None]:
        """Keep other runs out of a folder, or be kept out by them."""
        with ExitStack() as stack:

            def enter() -> None:
                make_folder(folder)
                stack.enter_context(occupy(folder))

            self.first_does(enter)
            yield
