"""What the numbers were measured on."""

import os
import platform
from pathlib import Path

import torch


def machine() -> dict[str, object]:
    """Processor, threads and versions, and how busy the machine is now, before the first turn."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines()
                 if line.startswith("model name")]  # fmt: skip
        if names:
            return names[0]
    return platform.processor() or platform.machine()
