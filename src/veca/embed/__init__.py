"""Features of whole collections of pictures, and search among them."""

from veca.embed.collection import Collection as Collection
from veca.embed.collection import open_collection as open_collection
from veca.embed.config import Efficiency as Efficiency
from veca.embed.config import EmbedConfig as EmbedConfig
from veca.embed.errors import CollectionError as CollectionError
from veca.embed.neighbours import Neighbour as Neighbour
from veca.embed.neighbours import nearest as nearest
from veca.embed.run import Summary as Summary
from veca.embed.run import embed_collection as embed_collection
