"""An untrained model by name."""

from dataclasses import fields, replace
from typing import Any

from veca.backbone.config import BackboneConfig
from veca.backbone.model import VECA
from veca.backbone.sizes import SIZES


def build(size: str, **overrides: Any) -> VECA:  # noqa: ANN401 - the types stand in BackboneConfig
    """Build an untrained model of a named size; any field of `BackboneConfig` can be overridden.

    `veca.build("base", budgets=(4, 8, 16))` has the width and depth of base and 16 cores.
    """
    if size not in SIZES:
        raise ValueError(f"size {size!r} is not known; pick one of {', '.join(SIZES)}.")
    known = [field.name for field in fields(BackboneConfig)]
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(
            f"{', '.join(unknown)} cannot be overridden; the fields of a model are "
            f"{', '.join(known)}."
        )
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in overrides.items()
    }
    return VECA(replace(SIZES[size], **given))
