"""How much memory is free."""

from __future__ import annotations

import torch


def free_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that may be used on ``device``."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except OSError:
        return 4 << 30
