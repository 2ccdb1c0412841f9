"""How much of an elastic model a feature was computed with."""

from typing import NamedTuple


class Setting(NamedTuple):
    """Cores and share of the hidden units; both None for a model without such a choice."""

    budget: int | None = None

    ffn: float | None = None

    @property
    def label(self) -> str:
        """Short and fit for a file name: 'c8', 'c64-f0.5', 'whole'."""
        parts = [f"c{self.budget}"] if self.budget is not None else []
        parts += [f"f{self.ffn:g}"] if self.ffn is not None else []
        return "-".join(parts) or "whole"
