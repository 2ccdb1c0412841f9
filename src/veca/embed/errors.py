"""What goes wrong with collections, in words for the person who embeds or searches them."""

from veca.runtime import VecaError


class CollectionError(VecaError, ValueError):
    """A collection that cannot be made or read: what was got, what is allowed, what to do."""
