"""The files that the system keeps in main memory, and how it is asked to forget them."""

from __future__ import annotations

import os


def drop_from_page_cache(path: str | os.PathLike[str]) -> None:
    """Ask the system to forget the file's pages (posix_fadvise(2), DONTNEED), where it can be
    asked.

    What was just written goes to the disk before. Pages that are mapped stay, and so does a file
    that lies in main memory. Raises FileNotFoundError for a file that is not there.
    """
    with open(path, "rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
