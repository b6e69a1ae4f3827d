"""Whether a folder is on a disk, asked of the system's own program and not of what is under
test.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

# What `stat -f` calls file systems on a disk whose pages can be dropped and that can be read past
# the page cache.
ON_DISK = ("ext2/ext3", "xfs", "btrfs", "f2fs", "overlayfs")


def skip_unless_on_disk(folder) -> None:
    """Skip the test outside Linux, and where the folder is in memory or on a network."""
    if not sys.platform.startswith("linux"):
        pytest.skip("mincore, posix_fadvise and O_DIRECT are Linux's")
    kind = subprocess.run(
        ["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True
    ).stdout.strip()
    if kind not in ON_DISK:
        pytest.skip(f"the folder for temporary files is on {kind}, which is no local disk")
