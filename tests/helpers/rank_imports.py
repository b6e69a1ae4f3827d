"""What a pool of ranks imports before its first test: ranks import it from here, by this module's
name.
"""

from __future__ import annotations


def import_what_ddp_and_fsdp_import(rank: int, world_size: int) -> None:
    """Seconds of imports a rank, where no bytecode is kept."""
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.tensor  # noqa: F401
