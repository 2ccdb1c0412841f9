"""Where weights come from: what a user must know before trusting or publishing them."""

from dataclasses import asdict, dataclass, fields
from typing import Any

from veca.weights.errors import WeightsError, listed

NOT_RECORDED = "not recorded"
"""What people are told of a licence that nobody wrote down."""

MOST_CHARACTERS = 10_000
"""Longest text of one field that is read from a file."""


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How weights came to be; what is not known is left out."""

    licence: str | None = None
    """Licence of the weights, as the hub abbreviates it; never guessed, only their maker knows."""

    teacher: str | None = None
    """The model they were distilled from; a hub id where there is one."""

    teacher_licence: str | None = None
    """Licence of the teacher's weights, which may bind these too."""

    data: str | None = None
    """Images they were trained on, with counts."""

    recipe: str | None = None
    """Name of the recipe, or what was done."""

    command: str | None = None
    """The command that made them."""

    seed: int | None = None
    """Seed of the run."""

    date: str | None = None
    """Day they were finished, such as 2026-05-12."""

    notes: str | None = None
    """Anything else, results for example."""

    def __post_init__(self) -> None:
        """Refuse what JSON and a model card cannot hold."""
        for field in fields(self):
            _check_field(field.name, getattr(self, field.name))

    def known(self) -> dict[str, Any]:
        """The fields that say something."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def tells_of_training(self) -> bool:
        """Whether any field says how the weights were trained."""
        return any(value is not None for value in (self.teacher, self.data, self.recipe))


def provenance_from_json(value: object) -> Provenance:
    """Provenance as a file tells it; the file may come from anyone."""
    if not isinstance(value, dict):
        raise WeightsError(f"the provenance is a {type(value).__name__}; it must be an object.")
    unknown = sorted(set(value) - {field.name for field in fields(Provenance)})
    if unknown:
        raise WeightsError(
            f"the provenance has unknown fields {listed(unknown)}; a newer veca may read them."
        )
    for name, item in value.items():
        _check_field(name, item)
    told: dict[str, Any] = {name: _cleaned(item) for name, item in value.items()}
    return Provenance(**told)


def _check_field(name: str, value: object) -> None:
    """Refuse what JSON and a model card cannot hold."""
    wanted = int if name == "seed" else str
    if isinstance(value, bool) or not isinstance(value, wanted | None):
        raise WeightsError(
            f"{name}={ascii(value)[:80]} is no provenance; give it as {wanted.__name__}, or leave "
            "it out."
        )
    if name == "licence" and value == "":
        raise WeightsError(
            "licence is empty; name one such as 'apache-2.0', or 'other' and tell it in notes, or "
            "leave it out."
        )


def _cleaned(value: object) -> object:
    """Text without characters that a terminal or a page would act on, and of bounded length."""
    if not isinstance(value, str):
        return value
    text = "".join(letter if letter.isprintable() else " " for letter in value[:MOST_CHARACTERS])
    return text.strip()
