"""What a task found: numbers, the head that gave them, and what became of each picture."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from veca.data.sets.dataset import LabeledDataset
from veca.probe.models import FrozenModel
from veca.probe.rows import Role, Setting


@dataclass(frozen=True, kw_only=True)
class FittedHead:
    """What a head on disk holds of its own; see `saved_heads.SavedHead`."""

    tensors: Mapping[str, Tensor]

    facts: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The numbers of one setting and seed on the test part of one set."""

    setting: Setting

    seed: int

    data: LabeledDataset
    """Whose test part was measured: the set of the head, or one that borrows it."""

    metrics: Mapping[str, float]

    units: Mapping[str, str] = field(default_factory=dict)
    """Of metrics that are not in percent."""

    counts: Mapping[str, int]
    """Pictures by 'train' and 'test', by 'held_out' where a set has a part to choose on, and for
    heads of classes by 'fitted': how many of the first and the third it was fitted on."""

    protocol: str

    feature: str

    chosen: Mapping[str, Any] = field(default_factory=dict)

    head: FittedHead | None = None
    """None where it is another one's, or too large to keep."""

    cases: Mapping[str, Tensor] = field(default_factory=dict)
    """What became of each picture, in the order of the test part, for paired comparisons."""


class Measurement(NamedTuple):
    """A model that is measured."""

    role: Role

    asked: str
    """As it was named."""

    model: FrozenModel


class Found(NamedTuple):
    """What a task found of a model, before it becomes rows."""

    who: Measurement

    resolution: int
    """Pixels that were asked for; a model sees the next whole patches below."""

    measured: Measured
