"""Golden numbers: written down once, so that a refactor can be shown to move none of them.

`VECA_WRITE_GOLDENS=1` renews a file of `tests/goldens` from what its test computes.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor

FOLDER = Path(__file__).parent / "goldens"

PICKED = 7
"""Values of a fingerprint before its sums."""

Numbers = Mapping[str, Sequence[float]]


def fingerprint(values: Tensor | NDArray[Any]) -> list[float]:
    """A few values from all over an array, and two sums that any change moves."""
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    flat = array.astype(np.float64).ravel()
    picked = flat[np.arange(PICKED) * (len(flat) - 1) // (PICKED - 1)].tolist()
    return [*picked, float(np.abs(flat).sum()), float(np.square(flat).sum())]


def golden(name: str, found: Any) -> Any:
    """What is written down under a name, as JSON; it is renewed first if that is asked for."""
    file = FOLDER / f"{name}.json"
    if os.environ.get("VECA_WRITE_GOLDENS"):
        file.write_text(json.dumps(found, indent=1) + "\n")
    return json.loads(file.read_text())


def assert_unmoved(
    found: Numbers, written: Numbers, rel: float = 1e-5, loose: Mapping[str, float] | None = None
) -> None:
    """Same names in the same order, same numbers; fingerprints up to rounding of their values.

    Args:
        found: what the code computes now.
        written: what it computed before.
        rel: relative difference that is allowed.
        loose: others, for names that contain one of these words.
    """
    assert list(found) == list(written)
    for name, values in found.items():
        allowed = next((more for word, more in (loose or {}).items() if word in name), rel)
        # Single values near zero are differences of larger ones.
        scale = max(map(abs, written[name][:PICKED])) if len(values) == PICKED + 2 else 0.0
        assert values == pytest.approx(written[name], rel=allowed, abs=allowed * scale), name
