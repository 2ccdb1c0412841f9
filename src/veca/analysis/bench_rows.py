"""One line of a benchmark: a contender at a resolution, what it took, and how it compares."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

from veca.analysis.contenders import Contender, Work
from veca.runtime.timing import Quartiles, Timing, quartiles, speedup

Rival = Literal["twin", "merging", "plain", "whole", "fp32"]
"""Full attention, full attention with token merging, VECA unfolded, VECA with all that was run, all
in the same precision; and the same contender in fp32."""

RIVALS: tuple[Rival, ...] = get_args(Rival)


class Measured(NamedTuple):
    """What was measured of a contender."""

    contender: Contender
    work: Work
    timing: Timing
    """Of a call, whatever its batch."""

    peak_bytes: int | None
    detail: str = ""


class Row(NamedTuple):
    """One contender at one resolution."""

    resolution: int
    patches: int
    contender: Contender
    work: Work
    milliseconds: Quartiles | None
    """Of one image; None if it could not be run."""

    rounds: int
    peak_mb: float | None
    """Of one call, above the loaded model; None if it was not measured."""

    speedups: Mapping[Rival, Quartiles]
    """How many times faster than a rival, over rounds; without those that make no sense."""

    detail: str
    """How it was set up."""

    note: str
    """What was not measured as asked for."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        return self.contender.name

    def as_json(self) -> dict[str, Any]:
        """Plain values; `budget` is null for the twin."""
        contender, time = self.contender, self.milliseconds
        found = {rival: self.speedups.get(rival) for rival in RIVALS}
        return {
            "resolution": self.resolution,
            "patches": self.patches,
            "name": self.name,
            "contender": contender.kind,
            "budget": contender.budget,
            "ffn": contender.ffn,
            "precision": contender.precision,
            "merged_per_layer": contender.rate if contender.kind == "merging" else None,
            "folded": self.work.folded,
            "ms": time._asdict() if time else None,
            "rounds": self.rounds,
            "peak_mb": self.peak_mb,
            "gflops": self.work.gflops,
            "pairs": self.work.pairs,
            "attention_share": self.work.attention_share,
            "speedup": {name: item._asdict() if item else None for name, item in found.items()},
            "detail": self.detail,
            "note": self.note,
        }


def rows_of(resolution: int, patches: int, batch: int, measured: Sequence[Measured]) -> list[Row]:
    """The lines of one interleaved run, rivals found among them."""
    timings = {item.contender: item.timing for item in measured if item.timing.samples}
    return [
        Row(
            resolution=resolution,
            patches=patches,
            contender=item.contender,
            work=item.work,
            milliseconds=_of_one_image(item.timing, batch),
            rounds=len(item.timing.samples),
            peak_mb=None if item.peak_bytes is None else item.peak_bytes / 1e6,
            speedups=_speedups(item.contender, timings),
            detail=item.detail,
            note=item.timing.note,
        )
        for item in measured
    ]


def rival_of(contender: Contender, rival: Rival, among: Sequence[Contender]) -> Contender | None:
    """The contender that another one is to be compared with, if it takes part."""
    if rival in ("plain", "whole") and contender.kind != "veca":
        return None
    if rival == "fp32":
        like = replace(contender, precision="fp32")
        return like if like != contender and like in among else None
    among = [item for item in among if item.precision == contender.precision]
    if rival == "plain":
        fits = [item for item in among if item.kind == "plain" and _same_mode(item, contender)]
    elif rival == "whole":
        fits = [item for item in among if item.kind == "veca" and item.ffn == 1]
        fits = sorted(fits, key=lambda item: item.budget or 0)[-1:]
    else:
        fits = [item for item in among if item.kind == rival]
    others = [item for item in fits if item != contender]
    return others[0] if others else None


def _speedups(contender: Contender, timings: Mapping[Contender, Timing]) -> dict[Rival, Quartiles]:
    """How a contender compares with its rivals."""
    if contender not in timings:
        return {}
    found: dict[Rival, Quartiles] = {}
    for name in RIVALS:
        rival = rival_of(contender, name, list(timings))
        if rival is not None:
            found[name] = speedup(timings[contender], timings[rival])
    return found


def _same_mode(one: Contender, other: Contender) -> bool:
    """Whether cores and hidden units are the same."""
    return (one.budget, one.ffn) == (other.budget, other.ffn)


def _of_one_image(timing: Timing, batch: int) -> Quartiles | None:
    """Time of an image, if there is one."""
    if not timing.samples:
        return None
    return quartiles([sample / batch for sample in timing.samples])
