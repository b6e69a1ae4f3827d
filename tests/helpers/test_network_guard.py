"""The guard of tests/helpers/conftest.py itself."""

from __future__ import annotations

import socket

import pytest


def test_the_guard_refuses_another_machine_and_lets_this_one_pass():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname(), timeout=5):
            pass
    with pytest.raises(OSError, match="tried to connect"), socket.socket() as away:
        away.connect(("192.0.2.1", 80))
    with pytest.raises(socket.gaierror):
        socket.create_connection(("example.org", 80), timeout=1)
