"""No test of the library reaches beyond this machine, and tests share ranks, which take long to
start.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

import pytest
from rank_imports import import_what_ddp_and_fsdp_import

from helpers.ranks import Ranks


class NetworkUsed(OSError):
    """A test tried to reach another machine."""


def _is_here(host: object) -> bool:
    if host in (None, "", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    """Refuse connections and name look-ups beyond the loopback, in this process."""
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            raise NetworkUsed(f"a test tried to connect to {address[0]}")
        return connect(self, address)

    def guarded_look_up(host, *arguments, **options):
        if not _is_here(host):
            raise socket.gaierror(f"a test tried to look up {host}")
        return look_up(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)


def _ranks(world_size: int) -> Iterator[Ranks]:
    with Ranks(world_size, device="cpu", threads=1) as ranks:
        ranks.run(import_what_ddp_and_fsdp_import, timeout_s=240)
        yield ranks


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two ranks on the CPU with one thread each."""
    yield from _ranks(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four ranks on the CPU with one thread each."""
    yield from _ranks(4)
