"""Runs the jobs of a suite, skips those that are done, and tells which could not be run.

A job that cannot be run, such as for want of its set, does not stop the others: a suite may list
all sets of the paper and is run with those that are present.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from veca.probe.report import Draw, Written, rows_as_json, rows_from_json, write_report
from veca.probe.rows import Row, merge_rows
from veca.probe.suite import Job
from veca.probe.tables import rebuild_tables
from veca.runtime.files import make_folder, replace_file
from veca.runtime.plain_json import plain_json
from veca.runtime.workers import Workers

JOBS_FOLDER = "jobs"
TABLES_NAME = "tables.md"


@dataclass(frozen=True, kw_only=True)
class Runner:
    """What it takes to run jobs."""

    facts: Callable[[Job], Mapping[str, Any]]
    """Hashes of the weights and pictures of a job, as plain values; a ValueError says why it cannot
    be run. Asked of every job before the first one runs, by the first worker only."""

    run: Callable[[Job], Sequence[Row]]
    """Runs a job on all workers; the rows of the first one count."""

    workers: Workers

    tell: Callable[[str], None]
    """Shows a line to a person."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of the jobs of a suite."""

    rows: list[Row] = field(default_factory=list)
    """Of the jobs that were run and of those that had been done before."""

    ran: list[Job] = field(default_factory=list)
    skipped: list[Job] = field(default_factory=list)

    failed: dict[Job, str] = field(default_factory=dict)
    """Why, in a sentence each."""


def run_suite(jobs: Sequence[Job], folder: Path, runner: Runner) -> Outcome:
    """Run the jobs that are not done; rows are safe on disk before the next job begins."""
    outcome = Outcome()
    for number, (job, state) in enumerate(zip(jobs, _states(jobs, folder, runner), strict=True), 1):
        place = f"job {number} of {len(jobs)}: {job.name}"
        if state["error"] is not None:
            outcome.failed[job] = state["error"]
        elif state["rows"] is not None:
            runner.tell(f"{place}: done before")
            outcome.skipped.append(job)
            outcome.rows[:] = merge_rows(outcome.rows, _rows(state["rows"]))
        else:
            runner.tell(f"{place}")
            _run(job, Path(state["path"]), runner, outcome)
    return outcome


def write_suite(outcome: Outcome, folder: Path, draw: Draw | None = None) -> Written:
    """Write the report of all jobs, and the paper's tables as far as their sets were measured."""
    written = write_report(outcome.rows, folder, draw)
    replace_file(folder / TABLES_NAME, [rebuild_tables(written.rows).encode()])
    return Written(written.rows, [*written.files, folder / TABLES_NAME])


def record_path(folder: Path, job: Job, facts: Mapping[str, Any]) -> Path:
    """Where the rows of a job are kept."""
    return folder / JOBS_FOLDER / f"{job.identity(facts)[:16]}.json"


def _states(jobs: Sequence[Job], folder: Path, runner: Runner) -> list[dict[str, Any]]:
    """For each job where its record lies, its rows if it is done, and why it cannot be run.

    The first worker looks and tells the others, so that all of them run the same jobs.
    """
    if not runner.workers.first:
        return runner.workers.share(None)
    return runner.workers.share([_state(job, folder, runner) for job in jobs])


def _state(job: Job, folder: Path, runner: Runner) -> dict[str, Any]:
    """What is known of a job before it runs."""
    try:
        path = record_path(folder, job, runner.facts(job))
    except (ValueError, OSError) as error:
        runner.tell(f"{job.name}: cannot be run: {error}")
        return {"path": None, "rows": None, "error": str(error)}
    return {"path": str(path), "rows": _done(path, runner.tell), "error": None}


def _done(path: Path, tell: Callable[[str], None]) -> list[dict[str, Any]] | None:
    """The rows of a finished job; None where it must be run, also since its file is damaged."""
    if not path.exists():
        return None
    try:
        rows = json.loads(path.read_text("utf-8"))["rows"]
        return [row.as_json() for row in _rows(rows)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        tell(f"{path} is damaged ({error}), so its job runs again")
        return None


def _rows(values: object) -> list[Row]:
    """Rows that were written before."""
    return rows_from_json(json.dumps(values), "the record of a job")


def _run(job: Job, path: Path, runner: Runner, outcome: Outcome) -> None:
    """Run one job and keep its rows, or its error."""
    try:
        rows = list(runner.run(job))
    except (ValueError, OSError) as error:
        if runner.workers.count > 1:
            raise  # the others may wait in the middle of the job; what is done is on disk
        runner.tell(f"{job.name}: failed: {error}")
        outcome.failed[job] = str(error)
        return
    if runner.workers.first:
        make_folder(path.parent)
        head = plain_json(job.as_json(), "job")
        replace_file(path, [f'{{"job": {head},\n"rows": {rows_as_json(rows)}}}\n'.encode()])
    outcome.ran.append(job)
    outcome.rows[:] = merge_rows(outcome.rows, rows)
