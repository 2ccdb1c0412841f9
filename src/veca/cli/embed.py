"""`veca embed`: features of whole collections."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from veca.cli.flags import command_line
from veca.data.transforms import Fit
from veca.embed.config import Efficiency, EmbedConfig, StoredType
from veca.embed.layout import SKIPPED_NAME
from veca.embed.models import find_model
from veca.embed.run import Summary, embed_collection
from veca.runtime.device import Precision, pick_device
from veca.runtime.logging import duration

DESCRIPTION = """Store the features of many pictures: files, folders, .tar shards, lists, patterns.

A list is a .txt or .lst file with a path a line, relative to the list. Pictures that cannot be read
are skipped, counted and listed in skipped.jsonl; the exit code is 0 as long as the collection holds
any picture. A run that was stopped continues when the command is repeated, and new inputs are added
behind the old ones.

Example: veca embed photos more.tar --model tiny --budget 16 --out features"""


Paths = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="PATHS...", help_behavior_hint="(one or more)"),
]
Budget = Annotated[
    int | None, tyro.conf.arg(metavar="INT", help_behavior_hint="(default: 16, or all if fewer)")
]
Share = Annotated[float | None, tyro.conf.arg(metavar="SHARE", help_behavior_hint="(default: all)")]


def embed(words: Sequence[str]) -> None:
    """Run the command on the words after its name."""
    command = command_line("embed", words)

    def run(  # noqa: PLR0913 - the flags of the command
        paths: Paths,
        /,
        *,
        model: Annotated[str, tyro.conf.arg(metavar="M")],
        out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
        budget: Budget = None,
        patches: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
        ffn: Share = None,
        size: int = EmbedConfig.size,
        fit: Fit = EmbedConfig.fit,
        precision: Precision = EmbedConfig.precision,
        dtype: StoredType = EmbedConfig.dtype,
        batch: int = Efficiency.batch,
        workers: int = Efficiency.workers,
        device: str = Efficiency.device,
    ) -> None:
        """Embed a collection.

        Args:
            paths: pictures, folders, .tar shards, .txt or .lst lists, patterns in quotes
            model: a folder, .safetensors file, bundled name, hub name, or a size (untrained)
            out: folder of the collection, new or to be continued
            budget: cores to use
            patches: store the patch map of every picture too
            ffn: share of the hidden units to use, of models with nested feed-forward parts
            size: short side of a prepared picture in pixels; with --fit pad the long one
            fit: how pictures come to sides of whole patches
            precision: what the model computes with; auto is that of a collection that is
                continued, else bf16 where the device computes it natively, else fp32
            dtype: type of the stored numbers
            batch: pictures of one size that go through the model together, at most
            workers: processes that decode pictures; 0 decodes in the main one
            device: where the model runs: auto, cpu, cuda, cuda:1
        """
        config = EmbedConfig(
            budget=budget,
            ffn=ffn,
            size=size,
            fit=fit,
            precision=precision,
            dtype=dtype,
            patches=patches,
        )
        efficiency = Efficiency(batch=batch, workers=workers, device=device)
        _embed(paths, model, out, config, efficiency, command)

    tyro.cli(run, prog="veca embed", description=DESCRIPTION, args=words)


def _embed(  # noqa: PLR0913, PLR0917 - the flags of the command
    paths: Sequence[str],
    model: str,
    out: Path,
    config: EmbedConfig,
    efficiency: Efficiency,
    command: str,
) -> None:
    """Embed, and tell what was done."""
    chosen = find_model(model, pick_device(efficiency.device))
    if chosen.untrained:
        print(
            f"The weights of {model} are untrained: these features mean nothing, and are good for "
            "trying things out only."
        )
    try:
        summary = embed_collection(
            paths, chosen, out, config, efficiency, command=command, show_progress=True
        )
    except KeyboardInterrupt:
        print("Finished shards are kept; repeat the command to continue.", file=sys.stderr)
        raise
    for line in _told(summary, out):
        print(line)


def _told(summary: Summary, out: Path) -> list[str]:
    """What a run did, in sentences."""
    record = summary.record
    stored = (
        f"{record.count:,} vectors of {record.model.config.width} numbers ({record.config.dtype}, "
        f"computed in {record.config.precision})"
    )
    if summary.embedded or summary.skipped:
        rate = (summary.embedded + summary.skipped) / max(summary.seconds, 1e-9)
        lines = [
            f"Embedded {summary.embedded:,} pictures in {duration(summary.seconds)}, "
            f"{rate:,.1f} images/s; {out} holds {stored}."
        ]
    else:
        lines = [f"Nothing to do: every picture is in {out}, which holds {stored}."]
    if record.skipped:
        lines.append(
            f"Skipped {record.skipped:,} that could not be read ({summary.skipped:,} of them now); "
            f"{out / SKIPPED_NAME} tells why."
        )
    if summary.changed:
        lines.append(
            f"{summary.changed:,} files have changed since they were embedded and keep their old "
            "vectors; embed them into another folder to renew them."
        )
    if summary.others:
        lines.append(f"Left out {summary.others:,} files that are not named like pictures.")
    return lines
