"""One pool of ranks for the tests that need real ones: starting it takes longer than they do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.parallel import Ranks


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four ranks on the CPU with one thread each."""
    with Ranks(4, device="cpu", threads=1) as ranks:
        ranks.run(_import_what_ddp_and_fsdp_import, timeout_s=240)  # seconds each, where no bytecode is kept
        yield ranks


def _import_what_ddp_and_fsdp_import(rank: int, world_size: int) -> None:
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401
