"""Whether this machine has the memory for so many ranks. They may outnumber its cores, never fill its memory.

Lesson 04.
"""

from __future__ import annotations

from pathlib import Path

from helpers import units
from helpers.hardware.linux import read_memory_limit

_LEFT_SHARE = 0.1  # of what is free: the notebook and the rest of the machine go on
_USAGE_FILES = ("sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory/memory.usage_in_bytes")


def free_bytes(root: Path = Path("/")) -> int:
    """Return the memory that new processes may take: the machine's, or the container's where that is less.

    Raises RuntimeError without psutil. For the library itself.
    """
    try:
        import psutil
    except ModuleNotFoundError as error:
        raise RuntimeError("how much memory is free is read with psutil, which is not installed; install it") from error
    free = psutil.virtual_memory().available
    limit = read_memory_limit(root)
    used = next((int(path.read_text()) for name in _USAGE_FILES if (path := root / name).exists()), None)
    if limit is None or used is None:
        return free
    # Pages of files that were read once are the first to go when memory is needed.
    statistics = root / "sys/fs/cgroup/memory.stat"
    lines = statistics.read_text().splitlines() if statistics.exists() else []
    cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, min(free, limit - used + cached))


def require_room(world_size: int, rank_bytes: int, free: int) -> None:
    """Raise MemoryError when ``world_size`` processes of ``rank_bytes`` need more than nine tenths of ``free`` bytes.

    For the library itself.
    """
    most = int(free * (1 - _LEFT_SHARE)) // rank_bytes
    if world_size > most:
        size, needed, there = (units.text(value, "B") for value in (rank_bytes, world_size * rank_bytes, free))
        advice = f"take at most {most} ranks, or close other programs" if most else "close other programs"
        raise MemoryError(
            f"{world_size} ranks of {size} each, as a process with PyTorch was measured here, need {needed}; {there} "
            f"of memory are free, of which a tenth stays so: {advice}"
        )
