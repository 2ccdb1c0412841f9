"""The machine that numbers were measured on."""

import os
import platform
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from veca.runtime.device import usable_processors

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a time depends on besides the program."""

    processor: str
    cores: int
    """CPUs this process may use; containers may have fewer than the machine."""
    threads: int
    """Threads that torch uses."""
    accelerator: str | None
    memory_gb: float | None
    system: str
    python: str
    torch: str
    instructions: str
    """Widest vector instructions that torch uses."""

    def __str__(self) -> str:
        chip = self.accelerator or self.processor
        return (
            f"{chip}, {self.cores} cores, {self.threads} threads ({self.instructions}), "
            f"torch {self.torch}, Python {self.python}, {self.system}"
        )


def this_machine(device: str = "cpu") -> Machine:
    """The machine that this process runs on."""
    cuda, memory_gb = torch.device(device).type == "cuda", None
    with suppress(AttributeError, OSError, ValueError):  # not every system reports it
        memory_gb = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1)
    return Machine(
        processor=_processor(),
        cores=usable_processors(),
        threads=torch.get_num_threads(),
        accelerator=torch.cuda.get_device_name(device) if cuda else None,
        memory_gb=memory_gb,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        instructions=torch.backends.cpu.get_cpu_capability(),
    )


def load_average() -> float | None:
    """Load average of the last minute, where the system has one."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def _processor() -> str:
    """The name of the processor, from the best source there is."""
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
