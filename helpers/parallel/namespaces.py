"""A real limit on real bytes: a network namespace whose loopback Linux's ``tc tbf`` slows down, where that is allowed.

All processes in the namespace share the one loopback, as on one cable: what counts is the sum of all bytes
(``costs.shared_medium_s``). Elsewhere the sleeping link of ``execution`` and ``devices`` stands in.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.parallel.links import Link
from helpers.results import Result

_PROBE_S = 10
_ENTRANCES = (("unshare", "--user", "--map-root-user", "--net"), ("unshare", "--net"))
_TOOLS = ("unshare", "ip", "tc")
# TCP packets of 1,500 bytes, for tbf lets a burst through unslowed; the queue is long enough that none is dropped.
_PACKET_BYTES, _BURST_SHARE_S, _SMALLEST_BURST_BYTES, _QUEUE_BYTES = 1500, 0.004, 6000, 2**28
_SET_UP = (
    "ip link set lo mtu {mtu} up && tc qdisc add dev lo root tbf rate {rate}bit burst {burst} limit {limit} && "
    'exec "$@"'
)


@dataclass(frozen=True)
class LinkWay(Result):
    """A way to make a link slow: whether it works here, and why. Lesson 04."""

    way: str
    available: bool
    reason: str


@dataclass(frozen=True)
class LinkWays(Result):
    """The ways to make a link slow on this machine, the truest first; ``used`` is the first that works. Lesson 04."""

    used: str
    ways: tuple[LinkWay, ...]


def available_links() -> LinkWays:
    """Return which slow links this machine allows, each tried: "network namespace" and "sleeping link".

    The first limits real bytes in the kernel and needs Linux, the tools unshare, ip and tc, and the right to make a
    network namespace; the second works everywhere. Lesson 04.
    """
    reason = _obstacle()
    ways = (
        LinkWay("network namespace", not reason, reason or "a namespace with a limited loopback was made"),
        LinkWay("sleeping link", True, "source and target sleep as long as the link would need: no rights needed"),
    )
    return LinkWays(next(way.way for way in ways if way.available), ways)


def behind_link(command: Sequence[str], link: Link) -> list[str]:
    """Return ``command`` as a command that runs in a network namespace whose loopback has ``link``'s bandwidth.

    Give it to ``subprocess.run``. Everything inside shares that bandwidth, and reaches nothing outside. Give torchrun
    its ``--nnodes`` and let all of it run inside. The token bucket lets 4 ms of bytes through at once.

    Raises ValueError for a link with a latency, which tbf does not make, and RuntimeError where namespaces or tc
    are not allowed, with the reason: take the sleeping link there. Lesson 04.
    """
    if link.latency_s:
        raise ValueError(f"a limited loopback has a bandwidth only; this link delays by {link.latency_s} s as well: "
                         "give latency_s=0, or use the sleeping link")  # fmt: skip
    if reason := _obstacle():
        raise RuntimeError(f"no network namespace here: {reason}; use the sleeping link, execute(..., link=...)")
    return _command(_entrance(), command, link)


def _command(entrance: Sequence[str], command: Sequence[str], link: Link) -> list[str]:
    bandwidth = link.bandwidth_bytes_per_s
    if bandwidth == float("inf"):
        raise ValueError("a limited loopback needs a finite bandwidth")
    burst = max(_SMALLEST_BURST_BYTES, round(_BURST_SHARE_S * bandwidth))
    script = _SET_UP.format(mtu=_PACKET_BYTES, rate=round(8 * bandwidth), burst=burst, limit=_QUEUE_BYTES)
    return [*entrance, "sh", "-c", script, "sh", *command]


def _entrance() -> tuple[str, ...]:
    """Return the first way into a namespace of one's own that works; the last where none does."""
    return next((entrance for entrance in _ENTRANCES if _tried(entrance, ["true"]) == ""), _ENTRANCES[-1])


def _obstacle() -> str:
    """Return why no namespace with a limited loopback can be made here, "" where it can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, and this is {sys.platform}"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    return _tried((), _command(_entrance(), ["true"], Link(1e6)))


def _tried(prefix: Sequence[str], command: Sequence[str]) -> str:
    try:
        ended = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    complaint = (ended.stderr.strip().splitlines() or [f"{command[0]} ended with {ended.returncode}"])[-1]
    return complaint if ended.returncode else ""
