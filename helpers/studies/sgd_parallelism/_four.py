"""The four sources of parallelism in minibatch SGD: what is independent, where it must synchronise, how many bytes.

One step of minibatch SGD is ``w <- w - rate / B * sum over the batch of the gradient of loss(f(x; w), y)``. The
operations inside f, the terms of the sum, the steps, and whole trainings are the four. Lesson 04.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from helpers.checks import choice, number, whole_number
from helpers.operations import profile_ops
from helpers.results import Record
from helpers.studies.sgd_parallelism._problems import own_copy, parameter_bytes

_NORMS = (nn.modules.batchnorm._BatchNorm,)


class ParallelismSource(Record):
    """One source of parallelism in one training step of a model.

    ``synchronisations`` is how often a step must stop for the others, ``payload_bytes`` the tensors that they then
    exchange, each counted once. ``summed_bytes`` are those of them of which each worker has a term of its own.
    ``waits`` is False where a step goes on without waiting and pays in stale weights. Lesson 04.
    """

    source: str
    independent: str
    synchronises: str
    synchronisations: int
    payload_bytes: int
    summed_bytes: int
    waits: bool

    def received_bytes(self, workers: int) -> float:
        """Return how many bytes each of ``workers`` receives in a step, on average over them.

        Each lacks ``(workers - 1) / workers`` of a tensor that is gathered. A sum moves as much twice, as round a ring:
        the terms to whoever adds up a part, and the finished parts to all (Patarasuk and Yuan, "Bandwidth Optimal
        All-reduce Algorithms for Clusters of Workstations", 2009). Raises ValueError for fewer than 1. Lesson 04.
        """
        workers = whole_number("workers", workers)
        return (workers - 1) * (self.payload_bytes + self.summed_bytes) / workers


class Sources(Record):
    """The four sources of parallelism of one model and batch. Lesson 04."""

    model: str
    batch_size: int
    parameter_bytes: int
    batch_norms: int
    rows: tuple[ParallelismSource, ...]

    def row(self, source: str) -> ParallelismSource:
        """Return the row called ``source``; ValueError, with the names there are, for another."""
        rows = {row.source: row for row in self.rows}
        return rows[choice("source", source, rows)]


class LinkCost(Record):
    """What one source costs on one link: the wait of a step, and the share of the step that is left for computing.

    Lesson 04.
    """

    source: str
    synchronise_s: float
    compute_share: float


class LinkTable(Record):
    """The four sources over one link, none of the communication hidden behind computing. Lesson 04."""

    link: str
    compute_s: float
    bandwidth_bytes_per_s: float
    latency_s: float
    rows: tuple[LinkCost, ...]


def sources_of_parallelism(model: nn.Module, batch: torch.Tensor | Sequence[int]) -> Sources:
    """Return the four sources for one training step of ``model`` on ``batch``, which is inputs or their shape.

    * Within a layer: each layer with a matrix product or convolution is cut by columns (output channels). Its outputs
      are gathered in the forward, and in the backward the gradient of its inputs, of which each part has a term, is
      summed; not for the first layer, whose input needs none. Payload: those outputs and inputs.
    * Over examples: each part of the batch has a term of the gradient, and the terms are summed once a step. Payload:
      the trainable parameters; with batch normalisation in training also a sum and a sum of squares per channel in the
      forward, and two sums in the backward, in each such layer.
    * Over update iterations: a worker fetches weights and sends a gradient, and waits for nobody. Payload: twice the
      parameters, none of them summed. With the weights spread evenly over the workers each receives most of the
      weights, and its part of the others' gradients.
    * Over models: nothing. Payload: 0.

    Nothing is computed, the model stays as it is. Raises what :func:`helpers.profile_ops` raises. Lesson 04.
    """
    size = tuple(batch.shape) if isinstance(batch, torch.Tensor) else tuple(batch)
    copied = own_copy(model)
    cut = _layers_with_products(copied, batch)
    norms = [module for module in copied.modules() if isinstance(module, _NORMS)]
    weights = parameter_bytes(copied)
    # Per channel two sums forward and two backward; float32, in which statistics are kept.
    statistics = sum(4 * module.num_features * 4 for module in norms)
    gathered = sum(output for output, _ in cut)
    summed = sum(input_bytes for _, input_bytes in cut[1:])
    between = f" and 2 in each of {len(norms)} batch norms" if norms else ""
    rows = (
        ParallelismSource("within a layer", "rows, columns and inner elements of each product",
               "after each layer, forward and backward", 2 * len(cut) - 1 if cut else 0,
               gathered + summed, summed, True),
        ParallelismSource("over examples", "the terms of the batch's sum", f"once a step, the gradient{between}",
               1 + 2 * len(norms), weights + statistics, weights + statistics, True),
        ParallelismSource("over update iterations", "gradients at weights that others change meanwhile",
               "never waits: weights fetched, gradient sent", 0, 2 * weights, 0, False),
        ParallelismSource("over models", "whole trainings", "never, until answers are averaged", 0, 0, 0, False),
    )  # fmt: skip
    return Sources(type(model).__name__, size[0], weights, len(norms), rows)


def _layers_with_products(model: nn.Module, batch: Any) -> list[tuple[int, int]]:
    """Return (bytes of outputs, bytes of inputs) of each innermost layer that multiplies and adds, in order."""
    rows = profile_ops(model, batch).layers
    parents = {row.layer.rpartition(".")[0] for row in rows if row.layer}
    # A bare layer is its own only row.
    leaves = [row for row in rows if (row.layer and row.layer not in parents) or len(rows) == 1]
    return [(row.output_bytes, row.input_bytes) for row in leaves if row.forward_macs]


def cost_on_link(
    sources: Sources, *, link: str, compute_s: float, bandwidth_bytes_per_s: float, latency_s: float
) -> LinkTable:
    """Return what each of ``sources`` costs a step on a link, ``synchronisations * latency + payload / bandwidth``.

    Each synchronisation crosses the link once, each byte of the payload as well. What each of several workers receives
    over a link of its own is :meth:`Source.received_bytes`.
    ``link`` names the link of ``bandwidth_bytes_per_s`` and ``latency_s``; ``compute_s`` is the computing of a worker
    in one step. Work over update iterations waits for nobody, but its bytes must still pass: they share the link.
    Raises TypeError or ValueError for a number that is not above 0. Lesson 04.
    """
    compute_s, latency_s = number("compute_s", compute_s, above=0), number("latency_s", latency_s, above=0)
    bandwidth = number("bandwidth_bytes_per_s", bandwidth_bytes_per_s, above=0)
    rows = []
    for row in sources.rows:
        wait_s = row.synchronisations * latency_s + row.payload_bytes / bandwidth
        rows.append(LinkCost(row.source, wait_s, compute_s / (compute_s + wait_s)))
    return LinkTable(link, compute_s, bandwidth, latency_s, tuple(rows))
