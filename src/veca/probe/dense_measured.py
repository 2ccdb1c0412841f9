"""Dense tasks by the name of a protocol, with results in the form that all tasks share."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor

from veca.data.labelled import LabelledSet
from veca.probe.dense_config import DenseProtocol
from veca.probe.dense_neighbours import run_dense_knn
from veca.probe.dense_protocols import (
    dense_knn_protocol,
    depth_protocol,
    for_model,
    segmentation_protocol,
)
from veca.probe.depth import DepthResult, run_depth
from veca.probe.depth_metrics import UNITS
from veca.probe.features import Place
from veca.probe.measured import FittedHead, Measured
from veca.probe.models import ProbeModel
from veca.probe.segmentation import SegmentationResult, run_segmentation
from veca.probe.setting import Setting

DenseFeature = Literal["patches", "patches+image"]
"""What a dense head sees: each patch feature, alone or followed by the image feature."""

Chosen = TypeVar("Chosen", bound=DenseProtocol)

Results = (
    Mapping[tuple[Setting, int], SegmentationResult] | Mapping[tuple[Setting, int], DepthResult]
)


@dataclass(frozen=True, kw_only=True)
class DenseProbe:
    """A model on a set of masks or depth."""

    model: ProbeModel

    settings: Sequence[Setting]

    data: LabelledSet

    resolution: int | None
    """Short side of test pictures; None leaves it to protocol and model."""

    feature: DenseFeature | None = None
    """None leaves it to protocol and model."""

    place: Place


def measure_segmentation(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = _adjusted(segmentation_protocol(name, probe.data), probe)
    run = partial(
        run_segmentation, probe.model, probe.settings, probe.data, protocol, seeds, probe.place
    )
    return protocol.resolution, _all(probe, run, protocol.name, _feature(protocol))


def measure_depth(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = _adjusted(depth_protocol(name, probe.data), probe)
    run = partial(run_depth, probe.model, probe.settings, probe.data, protocol, seeds, probe.place)
    return protocol.resolution, _all(probe, run, protocol.name, _feature(protocol))


def measure_dense_knn(
    probe: DenseProbe, name: str, seeds: Sequence[int]
) -> tuple[int, Iterator[Measured]]:
    """The resolution, and the numbers of every setting and seed, once they are asked for."""
    protocol = dense_knn_protocol(name)
    if probe.feature not in {None, "patches"}:
        raise ValueError(f"dense-knn compares patches alone, not {probe.feature}; drop --feature.")
    if probe.resolution is not None:
        protocol = replace(protocol, resolution=probe.resolution)
    run = partial(
        run_dense_knn, probe.model, probe.settings, probe.data, protocol, seeds, probe.place
    )
    return protocol.resolution, _all(probe, run, protocol.name, "patches")


def _adjusted(protocol: Chosen, probe: DenseProbe) -> Chosen:
    """A protocol as it is for the model, with what the probe asks for instead."""
    protocol = for_model(protocol, probe.model)
    if probe.resolution is not None:
        protocol = replace(protocol, resolution=probe.resolution)
    if probe.feature is None:
        return protocol
    return replace(protocol, append_image=probe.feature == "patches+image")


def _feature(protocol: DenseProtocol) -> DenseFeature:
    """What the heads of a protocol see."""
    return "patches+image" if protocol.append_image else "patches"


def _all(
    probe: DenseProbe, run: Callable[[], Results], protocol: str, feature: str
) -> Iterator[Measured]:
    """Results in the shared form; the run begins when the first one is asked for."""
    for (setting, seed), result in run().items():
        depth = isinstance(result, DepthResult)
        yield Measured(
            setting=setting,
            seed=seed,
            data=probe.data,
            metrics=result.metrics,
            units=UNITS if depth else {},
            counts=result.counts,
            protocol=protocol,
            feature=feature,
            chosen=result.chosen,
            head=FittedHead(tensors=result.tensors, facts=result.facts),
            cases=_cases(result),
        )


def _cases(result: SegmentationResult | DepthResult) -> dict[str, Tensor]:
    """What became of each picture."""
    if isinstance(result, SegmentationResult):
        names = ("intersections", "unions", "objects")
        return {name: getattr(result, name) for name in names}
    return {name: torch.from_numpy(values) for name, values in result.errors.items()}
