"""What goes wrong with weights, in words for the person who asked for them."""

from collections.abc import Iterable

MOST_NAMES = 6
"""Names that an error lists before it counts the rest."""


class WeightsError(ValueError):
    """Weights that cannot be read or written: what was got, what is allowed, what to do."""


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """The first few names and the number of the others; quoted, since they come from a file."""
    names = list(names)
    shown = ", ".join(_shortened(name) for name in names[:most])
    rest = len(names) - most
    return f"{shown} and {rest} more" if rest > 0 else shown


def _shortened(name: str, most: int = 60) -> str:
    """A name in quotes, without characters that a terminal would act on."""
    return ascii(name if len(name) <= most else f"{name[:most]}...")
