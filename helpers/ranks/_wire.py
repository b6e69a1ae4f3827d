"""Short JSON messages between the notebook, the keeper and the ranks, over the loopback.

Whoever connects says first who he is and shows the pool's token, so that another user of the
machine is turned away. What may be long (functions, values, output) goes through files, so that no
message ever waits for its reader.
"""

from __future__ import annotations

import hmac
import json
import socket
from multiprocessing.connection import Connection
from typing import Any

LOOPBACK = "127.0.0.1"  # the address, not a name: nothing is looked up
_LONGEST_BYTES = 1 << 20
_HELLO_LIMIT_S = 10.0


def listen() -> socket.socket:
    """Return a socket that listens on the loopback, at a port that the system chose.

    Raises RuntimeError when the system gives none.
    """
    try:
        return socket.create_server((LOOPBACK, 0), backlog=128)
    except OSError as error:
        raise RuntimeError(
            f"the system gave no free port on the loopback, {LOOPBACK} ({error}); ranks need one "
            "to find each other: close programs that hold many connections, or allow connections "
            "of this machine to itself"
        ) from error


def connect(port: int, hello: dict[str, Any]) -> Connection:
    """Return a connection to the notebook after ``hello``, which holds the token."""
    tcp_socket = socket.create_connection((LOOPBACK, port), timeout=_HELLO_LIMIT_S)
    tcp_socket.settimeout(None)
    channel = _as_connection(tcp_socket)
    send(channel, hello)
    return channel


def accept(server: socket.socket, token: str) -> tuple[Connection, dict[str, Any]] | None:
    """Return the next connection and its hello, or None for one that does not show ``token``."""
    tcp_socket, _ = server.accept()
    channel = _as_connection(tcp_socket)
    try:
        hello = receive(channel) if channel.poll(_HELLO_LIMIT_S) else {}
        if hmac.compare_digest(str(hello["token"]).encode(), token.encode()):
            return channel, hello
    except (EOFError, OSError, ValueError, KeyError, TypeError):
        pass  # not one of ours: it is turned away below
    channel.close()
    return None


def send(channel: Connection, message: dict[str, Any]) -> None:
    """Send ``message``. Raises OSError when the other side is gone."""
    channel.send_bytes(json.dumps(message).encode())


def receive(channel: Connection) -> dict[str, Any]:
    """Return the next message. Raises EOFError or OSError when the other side is gone."""
    return json.loads(channel.recv_bytes(_LONGEST_BYTES))


def _as_connection(tcp_socket: socket.socket) -> Connection:
    tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(tcp_socket.detach())


def loopback_variables() -> dict[str, str]:
    """Return the environment that gives gloo and nccl the loopback's network interface, empty where
    it is not called ``lo`` or ``lo0``.

    It keeps them from looking up the name of this machine.
    """
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), names[0]) if names else {}


def open_store() -> Any:
    """Return the store through which ranks find each other, on the loopback at a port that the
    system chose.

    Raises RuntimeError where PyTorch lacks torch.distributed or gloo.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise RuntimeError(
            "this PyTorch was built without torch.distributed or gloo; install one that has both"
        )
    listening = listen()
    return dist.TCPStore(
        LOOPBACK,
        listening.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
