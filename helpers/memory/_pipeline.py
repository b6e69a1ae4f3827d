"""Trace a step, probe its operators, and trace it again until the layouts of its results agree."""

from __future__ import annotations

from contextlib import nullcontext

from helpers import steps
from helpers.memory import _tracer as tracer
from helpers.memory._events import Layouts, StepTrace, as_without_mode
from helpers.memory._probing import Probe, probe_operators


def trace_and_probe(
    step: steps.Step, observe: tracer.Observe = nullcontext
) -> tuple[StepTrace, list[Probe | None]]:
    """Return the trace of ``step`` as autograd writes it without fake tensors, and a probe for each
    of its events.

    Some of PyTorch's fake results lie otherwise in memory than the real ones (a layer norm's of a
    permuted operand), and what follows then copies where a real run does not: a step whose probes
    find that is traced again with the layouts that they found.
    """
    layouts: Layouts = {}
    while True:
        trace = as_without_mode(tracer.trace_step(step, observe, layouts))
        probes, real_layouts = probe_operators(trace, step)
        if all(layouts.get(key) == strides for key, strides in real_layouts.items()):
            return trace, probes
        layouts |= real_layouts
