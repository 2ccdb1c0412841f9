"""`veca info`: size, origin, cost and hash of a model."""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from veca.backbone.cost import cost_rows, parameters
from veca.probe.quality import QUALITY_NAME, QualityError, read_quality
from veca.weights.card import NOT_RECORDED, ModelInfo, Provenance, size_name
from veca.weights.checkpoint import model_info

DESCRIPTION = """Show size, origin, cost and hash of a model, and verify its weights.

Example: veca info runs/small --json"""


def info(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    tyro.cli(_info, prog="veca info", description=DESCRIPTION, args=words)


def _info(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")],
    /,
    *,
    as_json: Annotated[bool, tyro.conf.arg(name="json"), tyro.conf.FlagCreatePairsOff] = False,
    revision: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
) -> None:
    """Print what is known of a model.

    Args:
        model: a folder, a .safetensors file, a bundled name, or a name on the hub
        as_json: print JSON, for programs
        revision: branch, tag or commit of a model on the hub
    """
    facts = model_info(model, revision)
    if as_json:
        print(json.dumps(facts.as_json(), indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200  # so that a hash stays in one piece
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _rows(facts):
        table.add_row(name, Text(value))  # plain, since some values come from a file
    costs = Table(box=None, pad_edge=False)
    for title in ("cores", "pixels", "pairs of a block", "GFLOPs"):
        costs.add_column(title, justify="right")
    for row in cost_rows(facts.config):
        cores = "all" if row.budget is None else str(row.budget)
        costs.add_row(cores, f"{row.side} x {row.side}", f"{row.pairs:,}", f"{row.gflops:.2f}")
    console.print(table, "", costs, sep="\n")
    for note in facts.notes:
        console.print(Text(f"\nNote: {note}"))


def _rows(facts: ModelInfo) -> Iterator[tuple[str, str]]:
    """Architecture, file and origin."""
    config = facts.config
    yield "size", size_name(config) or "has no name"
    yield "attention", config.attention
    yield "layers", str(config.layers)
    yield "width", f"{config.width} in {config.heads} heads"
    yield "hidden units", f"{config.hidden} (shares {', '.join(map(str, config.ffn_shares))})"
    yield "patches", f"{config.patch_size} pixels, {config.in_channels} channels"
    if config.attention == "full":
        yield "prefix tokens", str(config.prefix_tokens)
    else:
        yield "budgets", ", ".join(map(str, config.budgets))
    yield "parameters", f"{parameters(config):,}"
    yield "numbers", f"{facts.dtype}, {facts.file_bytes / 1e6:,.1f} MB"
    yield "sha256", facts.digest
    yield "training", facts.training_status
    provenance = facts.provenance or Provenance()
    rows: dict[str, object] = {"licence": NOT_RECORDED} | provenance.known()
    for name, value in rows.items():
        yield "its licence" if name == "teacher_licence" else name, str(value)
    if (quality := facts.path.with_name(QUALITY_NAME)).is_file():
        try:
            yield QUALITY_NAME, f"{len(read_quality(quality, facts.digest).rows)} measurements"
        except QualityError as error:
            yield QUALITY_NAME, str(error)
