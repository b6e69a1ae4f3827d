"""A process with a /dev/shm of its own, as small as that of a container, where Linux lets us make one. Lesson 08."""

from __future__ import annotations

import shutil
import subprocess
import sys

_TRY_S = 20.0
_ENTRANCES = (("unshare", "--user", "--map-root-user", "--mount"), ("unshare", "--mount"))
_TOOLS = ("unshare", "mount", "sh")
_SCRIPT = 'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'


def entrance(size_bytes: int) -> list[str]:
    """Return the words before a command that give it a private, empty /dev/shm of ``size_bytes``.

    They make a mount namespace (mount_namespaces(7)), as the user or as root, so that nobody else sees the mount and it
    ends with the process. tmpfs rounds up to whole pages (tmpfs(5)). Each way is tried before it is given.

    Raises RuntimeError where no way works, with the reason of each. For the library itself.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"a private /dev/shm needs Linux's mount namespaces, and this is {sys.platform}")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise RuntimeError(f"a private /dev/shm needs the tools {', '.join(_TOOLS)}; not installed: {missing[0]}")
    reasons = []
    for namespace in _ENTRANCES:
        words = [*namespace, "sh", "-c", _SCRIPT.format(size=size_bytes), "sh"]
        reason = _tried([*words, "true"])
        if not reason:
            return words
        reasons.append(f"{' '.join(namespace)}: {reason}")
    raise RuntimeError(
        f"this system gives no private /dev/shm ({'; '.join(reasons)}); run it as root, or where unprivileged user "
        "namespaces are allowed, or leave shared_memory_bytes out"
    )


def _tried(command: list[str]) -> str:
    """Run ``command``; return "" where it ended well, else why not."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_TRY_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ended.returncode == 0 else (ended.stderr.strip().splitlines() or [f"exit {ended.returncode}"])[-1]
