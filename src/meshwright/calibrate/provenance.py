"""Provenance of measured prices. Enters: a device. Leaves: its name, software, date, command."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from datetime import date
from pathlib import Path

import torch

from meshwright.cost.profile_table import Origin


def price_origin(device: torch.device, command: str, ranks: int | None = None) -> Origin:
    """Where prices that are measured here and today come from; `ranks` compute at once."""
    today = date.today().isoformat()
    if device.type == "cuda":
        software = f"torch {torch.__version__}, CUDA {torch.version.cuda}, driver {_driver()}"
        name = torch.cuda.get_device_name(device)
        return Origin(device=name, software=software, date=today, command=command)
    software = f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    if ranks is not None:
        software += f", one of {ranks} ranks"
    return Origin(device=_processor(), software=software, date=today, command=command)


def _driver() -> str:
    """The version of NVIDIA's driver, which PyTorch does not tell."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown"
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False)
    return next(iter(answer.stdout.split()), "unknown") if answer.returncode == 0 else "unknown"


def _processor() -> str:
    """The processor's name, as Linux or else Python tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.exists() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()
