"""Data-parallel training that survives a lost rank: the script of lesson 05.

    torchrun --nproc-per-node=2 train_data_parallel.py --checkpoint run.pt
    torchrun --nnodes=2 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=HOST:29500 train_data_parallel.py ...

The second line is given on each of two machines, with the name of one of them as HOST. The checkpoint must then be on
a file system that both see. CUDA with nccl where each rank has a GPU, else the CPU with gloo.
"""

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn


def batch(step: int, rank: int, world_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's rows of the batch of ``step``: made from the number of the step alone, on any rank."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(64, 256, generator=generator)
    targets = inputs.roll(1, dims=1).sin()
    return inputs.tensor_split(world_size)[rank], targets.tensor_split(world_size)[rank]


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the checkpoint whole or not at all: a rank may be killed while it writes."""
    unfinished = path.with_suffix(".unfinished")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, unfinished)
    os.replace(unfinished, path)


def digest(model: nn.Module) -> str:
    """Return a hash of all parameters: equal only where every bit is."""
    raw = b"".join(parameter.detach().cpu().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(raw).hexdigest()[:16]


def main() -> None:
    """Train, from the checkpoint on if there is one, and print what this rank did."""
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=12)
    options.add_argument("--checkpoint", type=Path, required=True)
    options.add_argument("--checkpoint-every", type=int, default=4)
    options.add_argument("--kill-after", type=int, help="rank 1 kills itself after this step, unless it was resumed")
    given = options.parse_args()

    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device("cpu")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    first = 0
    if given.checkpoint.exists():
        saved = torch.load(given.checkpoint, map_location=device, weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model = nn.parallel.DistributedDataParallel(net)
    losses = []
    for step in range(first, given.steps):
        inputs, targets = (each.to(device) for each in batch(step, rank, world_size))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if rank == 0 and (step + 1) % given.checkpoint_every == 0:
            save(given.checkpoint, step + 1, net, optimizer)
        if rank == 1 and step + 1 == given.kill_after and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    did = f"rank {rank} of {world_size}: steps {first + 1} to {given.steps}, parameters {digest(net)}"
    print(f"{did}\nloss {losses[0]:.3f} -> {losses[-1]:.3f}\n", end="")  # one write: the ranks share one terminal
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
