"""Threads take turns where a process has one of something: PyTorch has one profiler, and Python one
heap.

Lesson 11.
"""

from __future__ import annotations

import threading

ONE_AT_A_TIME = threading.RLock()
"""Held while a step is followed on shapes, traced or measured."""
