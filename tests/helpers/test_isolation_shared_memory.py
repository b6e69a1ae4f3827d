"""A private /dev/shm: its size, what happens past it, and what is said where the system does not
allow one.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

import pytest

from helpers import _processes as processes, isolation
from helpers.isolation import _caller as caller

MIB = 2**20


@pytest.fixture(autouse=True)
def the_plain_process(monkeypatch):
    """Keep PyTorch, which takes seconds to import, out of the processes."""
    monkeypatch.setattr(caller, "_has_torch", lambda: False)


@pytest.fixture(scope="module")
def private():
    """Skip where the system allows no private /dev/shm; it is tried in a test, not by each process
    that reads this.
    """
    try:
        caller._shared_memory_entrance(MIB)
    except RuntimeError as error:
        pytest.skip(str(error))


def room(path="/dev/shm"):
    """Return the bytes of the file system at ``path`` and how many of them are used."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, (found.f_blocks - found.f_bfree) * found.f_frsize


def write_mapped(size_bytes, path="/dev/shm/written"):
    """Map a new file of ``size_bytes`` and write into every page of it, as a loader's worker
    does.
    """
    with open(path, "w+b") as file:
        file.truncate(size_bytes)
        with mmap.mmap(file.fileno(), size_bytes) as mapped:
            mapped.write(bytes(size_bytes))
    return size_bytes


@pytest.mark.usefixtures("private")
def test_it_has_the_size_and_is_empty_and_nobody_else_sees_it():
    before = room()
    size, used = isolation.run_limited(room, shared_memory_bytes=3 * MIB).unwrap()
    assert (size, used) == (3 * MIB, 0)
    assert room()[0] == before[0]


@pytest.mark.usefixtures("private")
def test_a_size_is_rounded_up_to_pages():
    size, _ = isolation.run_limited(room, shared_memory_bytes=3 * MIB + 1).unwrap()
    assert size == 3 * MIB + mmap.PAGESIZE


@pytest.mark.usefixtures("private")
def test_what_fits_is_written_and_a_page_more_is_a_bus_error():
    assert isolation.run_limited(write_mapped, MIB, shared_memory_bytes=MIB).status == "returned"
    outcome = isolation.run_limited(write_mapped, MIB + mmap.PAGESIZE, shared_memory_bytes=MIB)
    assert (outcome.status, outcome.signal) == ("died", "SIGBUS")


def batches_of_two_epochs(keeps):
    """Return how many batches of 1 MiB a loader has in /dev/shm in each of two epochs, its worker
    having caught up.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(
        TensorDataset(torch.zeros(32, MIB // 16)),
        batch_size=4,
        num_workers=1,
        multiprocessing_context="fork",
    )
    batch, found = None, []
    for epoch in (1, 2):
        # its worker is a copy of this process, with the batch that is still held
        batches = iter(loader)
        batch, end_s = next(batches), time.monotonic() + 30
        while room()[1] < (3 + (keeps and epoch == 2)) * MIB and time.monotonic() < end_s:
            time.sleep(0.02)
        time.sleep(0.3)  # for more, should there be more
        found.append(room()[1] // MIB)
        del batches
        if not keeps:
            del batch
    return found


@pytest.mark.usefixtures("private")
def test_a_batch_that_is_kept_into_the_next_epoch_stays_in_shared_memory_beyond_workers_times_prefetch_and_one():  # noqa: E501
    assert isolation.run_limited(
        batches_of_two_epochs, False, shared_memory_bytes=64 * MIB
    ).unwrap() == [3, 3]
    assert isolation.run_limited(
        batches_of_two_epochs, True, shared_memory_bytes=64 * MIB
    ).unwrap() == [3, 4]


@pytest.mark.usefixtures("private")
def test_with_both_limits_each_holds():
    outcome = isolation.run_limited(
        bytearray, 64 * MIB, memory_bytes=16 * MIB, shared_memory_bytes=MIB
    )
    assert outcome.status == "out_of_memory"
    outcome = isolation.run_limited(
        write_mapped, 2 * MIB, memory_bytes=16 * MIB, shared_memory_bytes=MIB
    )
    assert outcome.signal == "SIGBUS"


def test_the_ways_are_tried_in_turn(monkeypatch):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux has the ways")
    monkeypatch.setattr(caller.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(
        processes, "refusal", lambda command: "not permitted" if "--user" in command else ""
    )
    words = caller._shared_memory_entrance(MIB)
    assert words[:2] == ["unshare", "--mount"]
    assert f"size={MIB} " in words[4]


def test_where_no_way_works_each_reason_is_told(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(caller.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(processes, "refusal", lambda command: "not permitted")
    with pytest.raises(
        RuntimeError,
        match=r"--map-root-user --mount: not permitted; unshare --mount: not permitted",
    ):
        isolation.run_limited(room, shared_memory_bytes=MIB)


@pytest.mark.parametrize(
    ("platform", "found", "told"), [("darwin", "x", "this is darwin"), ("linux", None, "unshare")]
)
def test_other_systems_and_missing_tools_are_named(monkeypatch, platform, found, told):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(caller.shutil, "which", lambda tool: found)
    with pytest.raises(RuntimeError, match=told):
        caller._shared_memory_entrance(MIB)


@pytest.mark.parametrize("size", [0, -1, 0.5, float("inf")])
def test_a_size_is_a_positive_number_of_bytes(size):
    with pytest.raises(ValueError, match="shared_memory_bytes"):
        isolation.run_limited(room, shared_memory_bytes=size)
