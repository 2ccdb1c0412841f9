"""What a stored model is, without building it."""

from veca.weights.facts import Facts, shows_training
from veca.weights.identity import check_hash, identify
from veca.weights.sources import Source, locate
from veca.weights.tensor_file import WeightsHash, names_of_types, open_weights


def describe(source: Source, revision: str | None = None) -> Facts:
    """The facts of a model that `veca.load` would load; its hash is verified, tensor by tensor."""
    place = locate(source, revision)
    untrained = True
    with open_weights(place.weights) as file:
        identity = identify(file, place.config)
        found = WeightsHash(identity.config)
        for name, tensor in file.tensors():
            found.add(name, tensor)
            untrained = untrained and not shows_training(name, tensor)
        dtype = names_of_types(file.dtypes.values())
    check_hash(found.text(), identity, place.weights)
    return Facts(
        config=identity.config,
        path=place.weights,
        dtype=dtype,
        file_bytes=place.weights.stat().st_size,
        digest=found.text(),
        untrained=untrained,
        provenance=identity.provenance,
        notes=identity.notes,
    )
