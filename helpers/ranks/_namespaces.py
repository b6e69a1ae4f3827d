"""Two machines in one, where that is allowed: two network namespaces, and between them a cable that is really slow.

Each namespace has a network of its own and a name of its own, its address; the cable is a pair of virtual Ethernet
ports (veth(4)), and the kernel's token bucket (tc-tbf(8)) holds up what either port sends. Neither machine reaches
anything else. Elsewhere the sleeping link of ``execution`` and ``devices`` stands in.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from importlib import resources

from helpers import _processes as processes
from helpers._checks import number
from helpers.links import Link
from helpers.results import Record

#: The address of the first of the two machines, which is its name as well (RFC 5737 keeps 192.0.2.0/24 for examples).
FIRST_MACHINE = "192.0.2.1"

_SECOND_MACHINE = "192.0.2.2"
_PROBE_S = 10
# With a process namespace: when its first process ends, for whatever reason, the kernel ends all the others.
_ISOLATE = ("--net", "--uts", "--pid", "--fork", "--kill-child")
_ENTRANCES = processes.namespace_entrances(*_ISOLATE)
_TOOLS = ("unshare", "ip", "tc", "hostname")
# tbf lets a burst through unslowed, so it is short; the queue is long enough that no packet is dropped.
_BURST_SHARE_S, _SMALLEST_BURST_BYTES, _QUEUE_BYTES = 0.002, 6000, 2**28


class LinkWay(Record):
    """A way to make a link slow: whether it works here, and why. Lesson 05."""

    way: str
    available: bool
    reason: str


class LinkWays(Record):
    """The ways to make a link slow on this machine, the truest first; ``used`` is the first that works. Lesson 05."""

    used: str
    ways: tuple[LinkWay, ...]


def available_links() -> LinkWays:
    """Return which slow links this machine allows, each tried: "two network namespaces" and "sleeping link".

    The first limits real bytes in the kernel and needs Linux, the tools unshare, ip, tc and hostname, and the right to
    make a network namespace; the second works everywhere.
    """
    reason = _obstacle()
    ways = (
        LinkWay("two network namespaces", not reason, reason or "two were made, with a limited cable between them"),
        LinkWay("sleeping link", True, "source and target sleep as long as the link would need: no rights needed"),
    )
    return LinkWays(next(way.way for way in ways if way.available), ways)


def on_two_machines(command: Sequence[str | os.PathLike[str]], link: Link, *, timeout_s: float) -> str:
    """Run ``command`` once on each of two machines that ``link`` joins, and return what both wrote to their output.

    The machines are network namespaces of this one: they share its files, its processor and its GPUs. The link carries
    its bandwidth in each direction at once, and lets 2 ms of bytes through before it slows them. The first machine is
    called :data:`FIRST_MACHINE`: the host to give to torchrun's ``--rdzv-endpoint``; every port is free there.
    ``timeout_s`` limits the whole.

    Raises ValueError for a link with a latency, which tbf does not make, or without a finite bandwidth, RuntimeError
    where namespaces or tc are not allowed, with the reason (take the sleeping link there), and where the command
    fails, with what it wrote; TimeoutError when it has not ended in time. Nothing is left running.
    """
    if link.latency_s:
        raise ValueError(f"the cable has a bandwidth only, and this link delays by {link.latency_s} s as well: "
                         "give latency_s=0, or use the sleeping link")  # fmt: skip
    if link.bandwidth_bytes_per_s == float("inf"):
        raise ValueError("the cable needs a finite bandwidth; give bandwidth_bytes_per_s")
    limit_s = number("timeout_s", timeout_s, above=0)
    if reason := _obstacle():
        raise RuntimeError(f"no two machines here: {reason}; use the sleeping link, execute(..., link=...)")
    code, output, errors = _run(_joined(_entrance(), [str(part) for part in command], link), limit_s)
    if code is None:
        raise TimeoutError(f"the two machines had not ended after {limit_s:g} s, and were; they wrote:\n"
                           f"{(output + errors)[-3000:].rstrip()}")  # fmt: skip
    if code:
        raise RuntimeError(f"the command failed (exit code {code}); it wrote:\n{(output + errors)[-3000:].rstrip()}")
    return output


def _joined(entrance: Sequence[str], command: Sequence[str], link: Link) -> list[str]:
    bandwidth = link.bandwidth_bytes_per_s
    burst = max(_SMALLEST_BURST_BYTES, round(_BURST_SHARE_S * bandwidth))
    cable = f"rate={round(8 * bandwidth)} burst={burst} limit={_QUEUE_BYTES}"
    text = resources.files("helpers.ranks").joinpath("two_machines.sh").read_text(encoding="utf-8")
    program = f"{cable} first={FIRST_MACHINE} second={_SECOND_MACHINE}\n{text}"
    return [*entrance, "sh", "-c", program, program, "first", *command]


def _run(command: Sequence[str], limit_s: float) -> tuple[int | None, str, str]:
    """Return the exit code, None at the limit, the output and the errors; also after Ctrl-C nothing runs on."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, errors="replace") as started:  # fmt: skip
        try:
            output, errors = started.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            started.send_signal(signal.SIGKILL)
            return None, *started.communicate()
        except BaseException:
            started.kill()
            raise
    return started.returncode, output, errors


def _entrance() -> tuple[str, ...]:
    """Return the first way into a namespace of one's own that works; the last where none does."""
    return next((entrance for entrance in _ENTRANCES if not processes.refusal([*entrance, "true"])), _ENTRANCES[-1])


def _obstacle() -> str:
    """Return why no two joined namespaces can be made here, "" where they can."""
    known = processes.namespace_obstacle(_TOOLS)
    return known or processes.refusal(_joined(_entrance(), ["true"], Link(1e6)), limit_s=_PROBE_S)
