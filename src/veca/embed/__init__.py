"""Features of many images as Parquet files, and similarity search among them.

The names below are imported when they are first used: reading and writing Parquet needs pyarrow,
the extra `embed`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from veca.embed.collection import Collection as Collection
    from veca.embed.collection import CollectionError as CollectionError
    from veca.embed.embed import EmbedConfig as EmbedConfig
    from veca.embed.embed import Embedder as Embedder
    from veca.embed.embed import embed_images as embed_images
    from veca.embed.search import nearest as nearest
    from veca.embed.search import query_vector as query_vector

_HOMES = {
    "Collection": "collection",
    "CollectionError": "collection",
    "EmbedConfig": "embed",
    "Embedder": "embed",
    "embed_images": "embed",
    "nearest": "search",
    "query_vector": "search",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
