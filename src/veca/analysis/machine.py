"""The machine that numbers were measured on, since a time means nothing without it."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import torch

CPU_FACTS = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a time depends on besides the program."""

    processor: str
    cores: int
    """Processors that this process may use."""
    threads: int
    """Threads that torch uses."""
    accelerator: str | None
    memory_gb: float | None
    system: str
    python: str
    torch: str
    instructions: str
    """The widest vector instructions that torch uses here."""

    def __str__(self) -> str:
        chip = self.accelerator or self.processor
        return (
            f"{chip}, {self.cores} cores, {self.threads} threads ({self.instructions}), "
            f"torch {self.torch}, Python {self.python}, {self.system}"
        )


def this_machine(device: str = "cpu") -> Machine:
    """The machine that this process runs on."""
    cuda = torch.device(device).type == "cuda"
    return Machine(
        processor=_processor(),
        cores=_usable_cores(),
        threads=torch.get_num_threads(),
        accelerator=torch.cuda.get_device_name(device) if cuda else None,
        memory_gb=_memory_gb(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        instructions=torch.backends.cpu.get_cpu_capability(),
    )


def load_average() -> float | None:
    """Processes that wanted to run in the last minute, where the system tells."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _processor(facts: Path = CPU_FACTS) -> str:
    """The name of the processor, from the best source there is."""
    if facts.exists():
        for line in facts.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _usable_cores() -> int:
    """Processors of this process; fewer than the machine has inside some containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gb() -> float | None:
    """Memory of the machine."""
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return round(pages * size / 1e9, 1)
