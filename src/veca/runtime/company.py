"""What the first process does for all: where it fails, it fails in all of them, in one sentence."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from veca.runtime.files import make_folder
from veca.runtime.lock import OccupiedError, occupy
from veca.runtime.workers import Workers


@dataclass(frozen=True, kw_only=True)
class Company:
    """The processes of a run, which write into folders together."""

    workers: Workers

    refusal: type[ValueError]
    """What is raised in every process; of this kind are also the mistakes that work may tell."""

    unwritable: Callable[[OSError], str]
    """The sentence for what cannot be written."""

    def first_does(self, work: Callable[[], None]) -> None:
        """Let the first process do something; if that fails, it fails in all of them."""
        reason = None
        if self.workers.first:
            try:
                work()
            except (self.refusal, OccupiedError) as error:
                reason = str(error)
            except OSError as error:
                reason = self.unwritable(error)
        reason = self.workers.share(reason)
        if reason is not None:
            raise self.refusal(reason)

    @contextmanager
    def alone_in(self, *folders: Path) -> Iterator[None]:
        """Make folders and keep other runs out of them, or be kept out by them."""
        with ExitStack() as stack:

            def enter() -> None:
                for folder in folders:
                    make_folder(folder)
                    stack.enter_context(occupy(folder))

            self.first_does(enter)
            yield
