"""What a benchmark measures, and how thoroughly."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from veca.analysis.contenders import Contender, Setup
from veca.backbone.config import BackboneConfig
from veca.backbone.model import checked_budget, grid_of
from veca.runtime.device import Precision, ResolvedPrecision, pick_device, resolve_precision
from veca.runtime.timing import Effort


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The settings of one run."""

    model: str
    """Name for the report."""

    backbone: BackboneConfig
    """Configuration of the VECA model."""

    weights_sha256: str | None = None
    """Hash of the stored model whose configuration this is, for the report."""

    resolutions: tuple[int, ...] = (256, 512, 1024)
    """Sides of the square images in pixels."""

    budgets: tuple[int, ...] = (8, 16, 32, 64)
    """Numbers of cores."""

    shares: tuple[float, ...] = (0.25, 1.0)
    """Shares of the hidden units; the model is built so that it takes them."""

    batch: int = 1
    """Images in a call."""

    threads: int | None = None
    """Threads of torch; None leaves its choice."""

    device: str = "cpu"
    """Where to run, as `pick_device` takes it."""

    precisions: tuple[Precision, ...] = ("auto",)
    """What all contenders compute with, each in every one of them."""

    memory: bool = True
    """Whether to measure peak memory, with a process for each case."""

    seed: int = 0
    """Decides weights, images and the order of each round."""

    effort: Effort = field(default_factory=Effort)
    """How long to measure."""

    def __post_init__(self) -> None:
        """Refuse at once what would fail after minutes."""
        if self.backbone.attention == "full":
            raise ValueError(
                f"{self.model} is a full-attention model, which every benchmark has beside VECA "
                "anyway; name a VECA model or a size."
            )
        for name in ("resolutions", "budgets", "shares", "precisions"):
            _check_listed(name, getattr(self, name))
        for resolution in self.resolutions:
            grid_of(self.backbone, resolution, resolution)
        for budget in self.budgets:
            checked_budget(self.backbone, budget)
        if any(not 0 < share <= 1 for share in self.shares):
            raise ValueError(f"FFN shares {self.shares} must lie above 0 and not above 1.")
        _ = self.resolved
        if self.batch < 1 or (self.threads is not None and self.threads < 1):
            raise ValueError(
                f"batch={self.batch} and threads={self.threads} must be whole numbers of 1 or more."
            )

    @property
    def resolved(self) -> tuple[ResolvedPrecision, ...]:
        """The precisions without 'auto'."""
        device = pick_device(self.device)
        found = (resolve_precision(precision, device) for precision in self.precisions)
        return tuple(dict.fromkeys(found))

    def setup(self, resolution: int) -> Setup:
        """What all contenders at a resolution share."""
        shares = tuple(sorted({*self.shares, *self.backbone.ffn_shares, 1.0}))
        return Setup(
            backbone=replace(self.backbone, ffn_shares=shares),
            resolution=resolution,
            batch=self.batch,
            device=str(pick_device(self.device)),
            threads=self.threads,
            seed=self.seed,
        )

    def contenders(self) -> list[Contender]:
        """All but token merging, whose rate is not known yet; the reference comes first."""
        shares = sorted(self.shares, reverse=True)
        budgets = sorted(self.budgets)
        once = [
            *(
                Contender(kind="veca", budget=budget, ffn=ffn)
                for ffn in shares
                for budget in budgets
            ),
            *(Contender(kind="plain", budget=budget) for budget in budgets),
            Contender(kind="twin"),
        ]
        return [replace(item, precision=precision) for precision in self.resolved for item in once]


def _check_listed(name: str, values: Sequence[object]) -> None:
    """Refuse lists that are empty or say a thing twice."""
    if not values or len(set(values)) < len(values):
        raise ValueError(f"{name} got {values}; give at least one, and each of them once.")
