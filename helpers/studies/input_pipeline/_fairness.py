"""One CPU, one GPU, several GPUs: comparisons that change one thing, with loading in or out of the
clock.

The lecture that this course grew from compared a CPU at batch 128, a GPU at batch 512 and two GPUs
at batch 1,024, with data loading inside the clock: three things changed at once.
:func:`compare_setups` names what changed from row to row.

Lesson 10.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.checks import choice, number, whole_number
from helpers.links import Link, sleep_for
from helpers.parallel._costs import ring_all_reduce_s
from helpers.ranks import Ranks
from helpers.results import Record, derived
from helpers.studies.data_parallel._devices import SleepingLayer, slow_link
from helpers.studies.input_pipeline._accelerators import training_step
from helpers.studies.input_pipeline._loading import changed

# of a step's arithmetic; the backward pass has two products where the forward has one
_FORWARD_PART = 1 / 3
_WARM_UPS = 2
_BATCH_LIMIT_S = 300.0


class Setup(Record):
    """One side of a comparison: a kind of ``device``, how many ``devices``, the ``batch_size`` of
    all together, and the clock.

    ``examples`` are those of one epoch. ``loading_in_clock``: batches are made while the clock
    runs, not before. Use :func:`helpers.studies.input_pipeline.vary` to change one of them. Raises
    TypeError or ValueError for a number that is not a whole one above 0, and for a batch or
    examples that the devices cannot share equally. Lesson 10.
    """

    device: str = "CPU"
    devices: int = 1
    batch_size: int = 128
    loading_in_clock: bool = True
    examples: int = 60_000
    epochs: int = 2

    def __post_init__(self) -> None:
        for name in ("devices", "batch_size", "examples", "epochs"):
            whole_number(name, getattr(self, name), at_least=1)
        # else a rank has a batch more, and waits for the others for ever
        for name in ("batch_size", "examples"):
            if getattr(self, name) % self.devices:
                raise ValueError(
                    f"{name}={getattr(self, name)} cannot be shared by {self.devices} devices "
                    "equally; give a multiple of their number"
                )

    @property
    def updates(self) -> int:
        """How often the weights change: batches an epoch, the last may be smaller, times epochs.

        Lesson 10.
        """
        return self.epochs * math.ceil(self.examples / self.batch_size)

    @property
    def local_batch(self) -> int:
        """The examples of a batch that one device gets. Lesson 10."""
        return self.batch_size // self.devices


# (what was run, the seconds that it printed): the lecture's table, MNIST, 2 epochs, on its own
# hardware.
LECTURE_SETUPS = (
    (Setup("CPU", 1, 128), 5.22),
    (Setup("GPU", 1, 512), 4.37),
    (Setup("GPU", 2, 1024), 4.72),
)


class FairRow(Record):
    """One setup and its seconds; ``changed`` names what differs from the row before, ``fair`` says
    that one thing does.

    ``speedup`` is over the row before: the effect of the one thing where ``fair``, of nothing in
    particular where not. Lesson 10.
    """

    device: str
    devices: int
    batch_size: int
    local_batch: int
    loading_in_clock: bool
    examples: int
    epochs: int
    updates: int
    elapsed_s: float
    examples_per_s: float
    changed: str
    fair: bool
    speedup: float | None


class FairTable(Record):
    """Setups side by side; ``fair`` when each row differs from the one before in one thing.

    Lesson 10.
    """

    fair: bool
    rows: tuple[FairRow, ...]


def compare_setups(measured: Sequence[tuple[Setup, float]]) -> FairTable:
    """Return (setup, seconds) pairs side by side, with what changed from each row to the next.

    ``compare_setups(LECTURE_SETUPS)`` shows what is wrong with that table. A batch size that
    changes with the number of devices is a second change, and so is the number of updates that
    comes with it: ``updates`` counts them.

    Raises ValueError for fewer than two setups or a time that is not above 0. Lesson 10.
    """
    if len(measured) < 2:
        raise ValueError(f"{len(measured)} setups are nothing to compare; give two or more")
    rows: list[FairRow] = []
    before: tuple[Setup, float] | None = None
    for setup, elapsed_s in measured:
        number(f"the seconds of {setup.devices} x {setup.device}", elapsed_s, above=0)
        names = changed(before[0], setup) if before else ()
        rows.append(
            derived(
                FairRow,
                setup,
                elapsed_s=elapsed_s,
                examples_per_s=setup.epochs * setup.examples / elapsed_s,
                changed=", ".join(names).replace("_", " ") if before else "(the first)",
                fair=before is None or len(names) == 1,
                speedup=before[1] / elapsed_s if before else None,
            )
        )
        before = setup, elapsed_s
    return FairTable(fair=all(row.fair for row in rows), rows=tuple(rows))


class SetupCosts(Record):
    """The costs of a device of one kind: seconds a step whatever its size, and seconds more an
    example.

    ``load_example_s`` is what a device's own loader needs for an example, in turn with the step.
    Devices average gradients of ``gradient_bytes`` over a link after their backward pass. Raises
    ValueError for a negative time or fewer than 4 bytes. Lesson 10.
    """

    step_s: float
    example_s: float
    load_example_s: float = 0.0
    gradient_bytes: int = 4
    link_bandwidth_bytes_per_s: float = math.inf
    link_latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("step_s", "example_s", "load_example_s"):
            number(name, getattr(self, name), at_least=0)
        whole_number("gradient_bytes", self.gradient_bytes, at_least=4)  # one float32
        self.link  # noqa: B018  a Link checks its own numbers

    @property
    def link(self) -> Link:
        """The link between the devices. Lesson 10."""
        return Link(self.link_bandwidth_bytes_per_s, self.link_latency_s)


def model_setup(setup: Setup, costs: SetupCosts) -> float:
    """Return the modelled seconds of ``setup``: of each batch the step, its examples, the loading
    and the all-reduce.

    The devices work at the same time, each with its part of the batch and its own loader; a ring
    averages the gradients (Patarasuk and Yuan, 2009) when the backward pass has ended. Lesson 10.
    """
    reduce_s = (
        ring_all_reduce_s(setup.devices, costs.gradient_bytes, link=costs.link)
        if setup.devices > 1
        else 0.0
    )
    return math.fsum(
        _load_s(setup, costs, size) + _compute_s(costs, size) + reduce_s
        for size in _local_sizes(setup)
    )


def run_sleeping_setup(setup: Setup, costs: SetupCosts, *, ranks: Ranks | None = None) -> float:
    """Return the seconds of ``setup`` on devices that sleep for its ``costs``: real loops, real
    DDP, a known clock.

    All-reduces are real as well. More devices than one need ``ranks``, as many as devices:
    ``Ranks(2, device="cpu")``. Two steps before the clock warm DDP up. Raises ValueError for ranks
    that are missing or of another number. Lesson 10.
    """
    if setup.devices == 1:
        return _sleeping_rank(0, 1, setup, costs)
    ranks = _check_ranks(setup, ranks)
    return max(ranks.run(_sleeping_rank, setup, costs, timeout_s=_BATCH_LIMIT_S))


def _sleeping_rank(_rank: int, world_size: int, setup: Setup, costs: SetupCosts) -> float:
    layer = SleepingLayer(0.0, 0.0, parameters=costs.gradient_bytes // 4)
    model: nn.Module = layer
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(layer)
        slow_link(model, costs.link)

    def step(size: int) -> None:
        sleep_for(_load_s(setup, costs, size))
        compute_s = _compute_s(costs, size)
        layer.forward_s, layer.backward_s = (
            compute_s * _FORWARD_PART,
            compute_s * (1 - _FORWARD_PART),
        )
        model(torch.ones(1)).sum().backward()

    def warm_up() -> None:
        for _ in range(_WARM_UPS):
            step(0)

    return _time_batches(world_size, warm_up, step, _local_sizes(setup))


def run_setup(
    setup: Setup,
    make_model: Callable[[], nn.Module],
    images: torch.Tensor,
    labels: torch.Tensor,
    *,
    ranks: Ranks | None = None,
) -> float:
    """Return the seconds of really training ``make_model()`` as ``setup`` says, on the CPU or on
    CUDA devices.

    ``setup.device`` is "CPU" or "GPU". ``setup.examples`` of ``images`` (float32, N first) and
    ``labels`` are used. With ``loading_in_clock`` a DataLoader without workers collects each batch
    and it goes to the device while the clock runs; else the batches are on the device before. Two
    steps before the clock are warm-up. Several devices need ``ranks`` of that kind, and train by
    DDP. On a CPU two ranks share its cores: what devices of their own do,
    :func:`run_sleeping_setup` shows.

    Raises ValueError for fewer images than examples, an unknown device, or ranks that do not fit;
    RuntimeError for a GPU where torch sees none. Lesson 10.
    """
    choice("device", setup.device, ("CPU", "GPU"))
    if setup.device == "GPU" and not torch.cuda.is_available():
        raise RuntimeError(
            "this setup needs a CUDA device, and torch sees none here; run it with device='CPU', "
            "or look at it with run_sleeping_setup"
        )
    if len(images) < setup.examples or len(labels) != len(images):
        raise ValueError(
            f"{len(images)} images with {len(labels)} labels are not the {setup.examples} examples "
            "of the setup; give as many labels as images, and at least so many"
        )
    images, labels = images[: setup.examples], labels[: setup.examples]
    if setup.devices == 1:
        return _training_rank(0, 1, setup, make_model, images, labels)
    ranks = _check_ranks(setup, ranks)
    if ranks.device != {"CPU": "cpu", "GPU": "cuda"}[setup.device]:
        raise ValueError(
            f"the ranks are on {ranks.device!r}, and the setup is of {setup.device}s; give Ranks("
            f"{setup.devices}, device={'cpu' if setup.device == 'CPU' else 'cuda'!r})"
        )
    return max(
        ranks.run(_training_rank, setup, make_model, images, labels, timeout_s=_BATCH_LIMIT_S)
    )


def _training_rank(
    rank: int,
    world_size: int,
    setup: Setup,
    make_model: Callable[[], nn.Module],
    images: torch.Tensor,
    labels: torch.Tensor,
) -> float:
    device = torch.device("cuda", rank) if setup.device == "GPU" else torch.device("cpu")
    model = make_model().to(device)
    if world_size > 1:
        model = nn.parallel.DistributedDataParallel(model)
    train = training_step(model)
    # A rank's examples are every world_size-th of each batch, so that all ranks have as many
    # batches.
    rank_examples = TensorDataset(images[rank::world_size], labels[rank::world_size])
    loader = DataLoader(rank_examples, batch_size=setup.local_batch)

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for _ in range(setup.epochs):
            for batch in loader:
                yield tuple(part.to(device) for part in batch)

    first = tuple(part.to(device) for part in next(iter(loader)))
    ready = batches() if setup.loading_in_clock else list(batches())
    return _time_batches(
        world_size, lambda: [train(first) for _ in range(_WARM_UPS)], train, ready, device=device
    )


def _time_batches(
    world_size: int,
    warm_up: Callable[[], object],
    step: Callable[[Any], object],
    batches: Iterable,
    *,
    device: torch.device | None = None,
) -> float:
    """Return the seconds of ``step`` on all batches, all ranks starting together and the device
    waited for.
    """
    warm_up()
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    if world_size > 1:
        torch.distributed.barrier()
    start_s = time.perf_counter()
    for batch in batches:
        step(batch)
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start_s


def _local_sizes(setup: Setup) -> list[int]:
    """Return the examples of each of a device's batches, all epochs; the last of an epoch may have
    fewer.
    """
    full_batches, remainder = divmod(setup.examples, setup.batch_size)
    return (
        [setup.local_batch] * full_batches + ([remainder // setup.devices] if remainder else [])
    ) * setup.epochs


def _load_s(setup: Setup, costs: SetupCosts, size: int) -> float:
    return size * costs.load_example_s if setup.loading_in_clock else 0.0


def _compute_s(costs: SetupCosts, size: int) -> float:
    return costs.step_s + size * costs.example_s if size else 0.0


def _check_ranks(setup: Setup, ranks: Ranks | None) -> Ranks:
    if ranks is None or ranks.world_size != setup.devices:
        count = "none were given" if ranks is None else f"{ranks.world_size} were given"
        raise ValueError(
            f"{setup.devices} devices need as many ranks, and {count}: with Ranks({setup.devices}) "
            "as ranks: ..."
        )
    return ranks
