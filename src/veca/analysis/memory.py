"""Peak memory of a contender, each in a process of its own.

    python -m veca.analysis.memory < request.json

builds one contender, runs it once, and prints how far its memory rose above that of the model,
loaded and not yet run. On a CPU this is what the operating system counts, so some megabytes of
threads and libraries that start with the first call are included; on a GPU it is what torch
allocates.

Linux keeps the peak of the process that started us in `ru_maxrss`, so there VmHWM is read, which
belongs to this process alone.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

from veca.analysis.contenders import Contender, Lineup, Setup
from veca.runtime.timing import ran_out_of_memory
from veca.weights.format import config_from_json

OUT_OF_MEMORY_CODE = 3
KILLED = -9
"""What Linux does to a process for which there is no memory."""

PROCESS_STATUS = Path("/proc/self/status")


def peak_bytes(setup: Setup, contender: Contender) -> int | None:
    """How far one call raises memory; None if there is not enough."""
    request = json.dumps({"setup": asdict(setup), "contender": asdict(contender)})
    source = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    answer = subprocess.run(
        [sys.executable, "-m", "veca.analysis.memory"],
        input=request,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    if answer.returncode in (OUT_OF_MEMORY_CODE, KILLED):
        return None
    if answer.returncode:
        last = (answer.stderr.strip().splitlines() or ["no words"])[-1]
        raise ChildProcessError(
            f"the process that measures the memory of {contender.name} ended with code "
            f"{answer.returncode}: {last}; leave memory out to go on without it."
        )
    return int(json.loads(answer.stdout)["peak_bytes"])


def rise_of(setup: Setup, contender: Contender) -> int:
    """How far one call raises the memory of this process, which must not have run anything."""
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    encode = Lineup(setup).call(contender)
    device = torch.device(setup.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    else:
        before = resident_peak()
    with torch.inference_mode():
        encode()
    after = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident_peak()
    return max(after - before, 0)  # Linux counts in batches of pages, so nothing may be less


def resident_peak() -> int:
    """The most bytes that this process ever had in memory."""
    if PROCESS_STATUS.exists():
        for line in PROCESS_STATUS.read_text("utf-8").splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    if resource is None:
        raise ValueError("this system does not tell peak memory; measure without it.")
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def answer(request: str) -> str:
    """Measure what a request asks for."""
    asked = json.loads(request)
    backbone = config_from_json(asked["setup"].pop("backbone"), "the request")
    setup = Setup(backbone=backbone, **asked["setup"])
    return json.dumps({"peak_bytes": rise_of(setup, Contender(**asked["contender"]))})


def main() -> int:
    """Answer the request on the standard input."""
    try:
        sys.stdout.write(answer(sys.stdin.read()))
    except (MemoryError, RuntimeError) as error:
        if not ran_out_of_memory(error):
            raise
        return OUT_OF_MEMORY_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main())
