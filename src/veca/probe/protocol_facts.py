"""What stands behind the name of a protocol: its content by a hash, and on what it chooses."""

import hashlib
import json
from dataclasses import asdict
from typing import Any

from veca.data.labelled import LabelledSet
from veca.probe.dense_config import DenseProtocol
from veca.probe.dense_protocols import (
    dense_knn_protocol,
    depth_protocol,
    for_model,
    segmentation_protocol,
)
from veca.probe.frozen import ProbeModel
from veca.probe.protocols import knn_protocol, linear_protocol, logistic_protocol
from veca.probe.rows import Task

CHOSEN_ON = {
    "test": "the reported part",
    "test-best-step": "the reported part",
    "held-out": "held-out pictures",
}
"""By the selection of a protocol; what chooses nothing is not here."""


def protocol_hash(task: Task, name: str, data: LabelledSet, model: ProbeModel | None = None) -> str:
    """SHA-256 over every number of a protocol as it is for a set, since names outlive numbers.

    With a model it is over the numbers for that one, which a row tells as resolution and feature.
    """
    found = _protocol(task, name, data)
    if model is not None and isinstance(found, DenseProtocol):
        found = for_model(found, model)
    content = asdict(found)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def chosen_on(task: Task, name: str, data: LabelledSet) -> str | None:
    """What a protocol chooses on: the reported part is a mild optimism; None chooses nothing."""
    if task == "logistic":
        return CHOSEN_ON["held-out"]
    return CHOSEN_ON.get(getattr(_protocol(task, name, data), "selection", "none"))


def _protocol(task: Task, name: str, data: LabelledSet) -> Any:  # noqa: ANN401 - of six kinds
    """The protocol of a name."""
    if task == "knn":
        return knn_protocol(name)
    if task == "logistic":
        return logistic_protocol(name, data, 0)
    if task == "linear":
        return linear_protocol(name, data)
    if task == "dense-knn":
        return dense_knn_protocol(name)
    return depth_protocol(name, data) if task == "depth" else segmentation_protocol(name, data)
