"""`veca info`: size, origin, cost and hash of a model; `veca import`: a model of the authors."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from veca.backbone.cost import cost_rows, parameters
from veca.cli.flags import read_flags
from veca.probe.quality import QUALITY_NAME, read_quality
from veca.probe.rows import ProbeError
from veca.weights.card import NOT_RECORDED, ModelInfo, Provenance, size_name
from veca.weights.checkpoint import model_info, save
from veca.weights.format import WEIGHTS_NAME, WeightsError
from veca.weights.official import load_official

DESCRIPTION = """Show size, origin, cost and hash of a model, and verify its weights.

Example: veca info veca-tiny"""


def info(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    read_flags(_info, words, prog="veca info", description=DESCRIPTION)


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


LICENSES = {"licence": "license", "teacher_licence": "its license"}
"""Rows that do not have the name of the field."""

IMPORT = """Make a model folder of a checkpoint of the authors' release (sizes S, S+, B and L).

The file is read without running code from it. Every command takes the folder as --model, and its
model card says where the weights come from and that no license is known for them.

Example: veca import authors.pt --out authors-base"""


def import_(words: Sequence[str]) -> None:
    """Run `veca import` on the words after its name."""
    read_flags(_import, words, prog="veca import", description=IMPORT)


def _import(
    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
) -> None:
    """Convert a checkpoint and save it.

    Args:
        checkpoint: file of the authors, as linked from the README of github.com/alansong1322/VECA
        out: folder of the model, new or without one
    """
    if (out.expanduser() / WEIGHTS_NAME).exists():
        raise WeightsError(f"{out} already holds a model; give another folder.")
    model = load_official(checkpoint)
    save(model, out)
    size = size_name(model.config) or f"{model.config.layers} layers, width {model.config.width}"
    print(
        f"{out} holds a VECA ({size}, {parameters(model.config) / 1e6:.1f} M parameters, budgets "
        f"{', '.join(map(str, model.config.budgets))}) from {checkpoint}.\n"
        "The authors' release states no license: ask its authors before you redistribute the "
        "weights or what you make of them.\n"
        f"Try: veca demo --model {shlex.quote(str(out))}"
    )


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
        yield LICENSES.get(name, name), str(value)
    if (quality := facts.path.with_name(QUALITY_NAME)).is_file():
        try:
            yield QUALITY_NAME, f"{len(read_quality(quality, facts.digest).rows)} measurements"
        except ProbeError as error:
            yield QUALITY_NAME, str(error)
