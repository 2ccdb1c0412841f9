"""What a user chooses: what features to make, and, apart from it, how to go about it."""

from dataclasses import dataclass
from typing import Literal, get_args

from veca.data.transforms import Fit
from veca.embed.errors import CollectionError
from veca.runtime.device import Precision

StoredType = Literal["float16", "float32"]


@dataclass(frozen=True, kw_only=True)
class EmbedConfig:
    """What the numbers of a collection depend on; one collection has one of these."""

    budget: int | None = None
    """Cores to use; by default 16, or all of a model that has fewer."""

    ffn: float | None = None
    """Share of the hidden units to use, for models with nested feed-forward parts."""

    size: int = 256
    """Short side of a prepared picture in pixels; with fit='pad' the long one."""

    fit: Fit = "resize"
    """How pictures come to sides of whole patches: 'resize', 'crop' or 'pad'."""

    precision: Precision = "auto"
    """What the model computes with: 'fp32', 'bf16' (autocast), or 'auto': that of the collection
    which is continued, of a new one bf16 where the device computes it natively, else fp32."""

    dtype: StoredType = "float16"
    """Type of the stored numbers, whatever they were computed with."""

    patches: bool = False
    """Whether to store the patch map of every picture too."""

    def __post_init__(self) -> None:
        """Refuse what no collection can have; what depends on the model is checked with it."""
        if self.precision not in get_args(Precision):
            known = ", ".join(map(repr, get_args(Precision)))
            raise CollectionError(f"precision={self.precision!r} is unknown; use {known}.")
        if self.dtype not in {"float16", "float32"}:
            raise CollectionError(f"dtype={self.dtype!r} is unknown; use 'float16' or 'float32'.")


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """How fast it goes and how much memory it takes; in fp32 the numbers stay the same to 1e-5."""

    batch: int = 16
    """Pictures of one size that go through the model together, at most."""

    workers: int = 2
    """Processes that decode pictures; 0 decodes in this one."""

    device: str = "auto"
    """Where the model runs: 'auto', 'cpu', 'cuda', 'cuda:1'."""

    def __post_init__(self) -> None:
        """Refuse counts that are none."""
        if self.batch < 1:
            raise CollectionError(f"batch={self.batch} holds no picture; use 1 or more.")
        if self.workers < 0:
            raise CollectionError(f"workers={self.workers} is no count; use 0 or more.")
