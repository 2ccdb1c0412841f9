"""A TOML list of jobs, run one after the other; jobs whose rows are in the report are skipped.

    [defaults]
    model = "runs/tiny"
    teacher = "efficientnet-lite2"
    budgets = [8, 64]

    [[jobs]]
    task = ["knn", "logistic"]
    data = "data/pets"
    resolution = 128
    seeds = [0, 1, 2]

A field of a job that `PRODUCT` names may be a list; every combination is then a job. A job that
cannot be run, for example because its dataset is missing, does not stop the others.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from veca.probe.report import add_rows, read_report
from veca.probe.rows import TASKS, ProbeError, Row
from veca.probe.run import Evaluator, Job
from veca.runtime.logging import logger

FIELDS: Mapping[str, type] = {
    "task": str,
    "data": str,
    "model": str,
    "teacher": str,
    "protocol": str,
    "feature": str,
    "resolution": int,
    "seed": int,
    "allow_partial": bool,
    "baseline": str,
    "also": str,
    "budgets": int,
    "ffn": float,
}
"""The fields of a job."""

PRODUCT = ("task", "data", "model", "protocol", "resolution", "seed")
"""Fields of which a list means several jobs."""

LISTS = ("baseline", "also", "budgets", "ffn")
"""Fields with a list within one job."""

ALIASES = {"resolutions": "resolution", "seeds": "seed"}
"""Fields by the names of the command's flags."""

KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def read_suite(path: Path) -> list[Job]:
    """The jobs of a file, all combinations, each once."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ProbeError(f"{path} cannot be read ({error.strerror}); check the path.") from error
    except ValueError as error:
        raise ProbeError(f"{path} is not valid TOML ({error}); correct it.") from error
    entries = content.get("jobs")
    if content.keys() - {"defaults", "jobs"} or not isinstance(entries, list) or not entries:
        raise ProbeError(
            f"{path} has the entries {', '.join(content) or 'nothing'}; it needs [[jobs]] with "
            "task, data and model, and may have [defaults]."
        )
    defaults = _fields(content.get("defaults", {}), f"[defaults] of {path}")
    jobs: list[Job] = []
    for number, entry in enumerate(entries, start=1):
        where = f"job {number} of {path}"
        jobs += _expand(defaults | _fields(entry, where), where)
    return list(dict.fromkeys(jobs))


def _fields(entry: object, where: str) -> dict[str, Any]:
    """The fields of an entry by their own names."""
    if not isinstance(entry, dict):
        raise ProbeError(f"{where} is {entry!r}; it needs named fields, such as task.")
    found: dict[str, Any] = {}
    for name, value in entry.items():
        own = ALIASES.get(name, name.replace("-", "_"))
        if own not in FIELDS or own in found:
            problem = "twice" if own in found else f"as the unknown field {name!r}"
            raise ProbeError(f"{where} has {own} {problem}; the fields are {', '.join(FIELDS)}.")
        found[own] = value
    return found


def _expand(fields: Mapping[str, Any], where: str) -> Iterator[Job]:
    """Every combination of an entry."""
    for name in ("task", "data", "model"):
        if name not in fields:
            raise ProbeError(f"{where} has no {name}; add it there or to [defaults].")
    choices = [
        value if isinstance(value, list) and value and name in PRODUCT else [value]
        for name, value in fields.items()
    ]
    for values in itertools.product(*choices):
        given = zip(fields, values, strict=True)
        yield Job(**{name: _checked(name, value, where) for name, value in given})


def _checked(name: str, value: Any, where: str) -> Any:  # noqa: ANN401 - whatever the file has
    """A valid value of a field; texts of a list stay in their order, numbers are sorted."""
    kind = FIELDS[name]
    values = value if name in LISTS and isinstance(value, list) else [value]
    allowed = (int, float) if kind is float else (kind,)
    if not values or "" in values or any(type(one) not in allowed for one in values):
        several = ", or a list of them" if name in (*PRODUCT, *LISTS) else ""
        raise ProbeError(f"{where}: {name} is {value!r}; it must be {KINDS[kind]}{several}.")
    if name == "task" and value not in TASKS:
        raise ProbeError(f"{where}: task is {value!r}; it must be one of {', '.join(TASKS)}.")
    if name not in LISTS:
        return value
    found = dict.fromkeys(map(kind, values))
    return tuple(found) if kind is str else tuple(sorted(found))


class Outcome(NamedTuple):
    """Jobs of a suite by what became of them."""

    ran: list[Job]
    skipped: list[Job]
    failed: dict[Job, str]
    """With the reason of each."""


def run_suite(jobs: Sequence[Job], folder: Path, evaluator: Evaluator) -> Outcome:
    """Run the jobs that are not done; rows are in the report before the next job begins."""
    outcome, ranks = Outcome([], [], {}), evaluator.ctx.ranks
    states = ranks.broadcast_object(_states(jobs, folder, evaluator) if ranks.is_main else None)
    for number, (job, (done, problem)) in enumerate(zip(jobs, states, strict=True), start=1):
        name = f"job {number} of {len(jobs)}: {job.name}"
        if problem is not None:
            outcome.failed[job] = problem
            continue
        if done:
            logger.info("%s: already done", name)
            outcome.skipped.append(job)
            continue
        logger.info("%s", name)
        try:
            rows = evaluator.run_job(job)
        except (ValueError, OSError) as error:
            if ranks.world_size > 1:
                raise  # other ranks may be waiting in the middle of the job; what is done is saved
            logger.warning("%s: failed: %s", job.name, error)
            outcome.failed[job] = str(error)
            continue
        if ranks.is_main:
            add_rows(rows, folder)
        outcome.ran.append(job)
    return outcome


def _states(
    jobs: Sequence[Job], folder: Path, evaluator: Evaluator
) -> list[tuple[bool, str | None]]:
    """For each job whether it is done, and why it cannot be run."""
    rows = read_report(folder)
    found: list[tuple[bool, str | None]] = []
    for job in jobs:
        try:
            found.append((is_done(evaluator.expect(job), rows), None))
        except (ValueError, OSError) as error:
            logger.warning("%s: cannot be run: %s", job.name, error)
            found.append((False, str(error)))
    return found


def is_done(expected: Sequence[Mapping[str, Any]], rows: Sequence[Row]) -> bool:
    """Whether a report has all rows of a job."""
    return all(
        any(all(getattr(row, name) == value for name, value in one.items()) for row in rows)
        for one in expected
    )
