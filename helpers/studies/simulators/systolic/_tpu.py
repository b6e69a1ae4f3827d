"""What Google published of its first TPU at work: six applications and the counters of the chip
that ran them.

The figures stand in ``tpu.toml`` beside this module; the chip itself is ``device("TPU v1")``.
Lesson 14.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import field
from importlib import resources

from helpers.hardware._devices import Source, device_sources
from helpers.results import Record

_PERCENT = 100
_MILLION = 10**6


class TpuApplication(Record):
    """One application on TPU v1: its size, what the chip's counters say of its cycles, and the
    speed that it reached.

    ``weights`` are of one byte each. ``ops_per_weight_byte`` is the paper's "TPU Ops / Weight
    Byte", under the name that it has there. ``active_share``, ``stall_share`` (waiting for weights
    from memory), ``shift_share`` (shifting weights into the array) and ``non_matrix_share`` are
    parts of all cycles and add up to one; ``useful_share`` is the part of the peak's multiply-adds
    that meet a weight, at most ``active_share``. ``measured_tops`` are 10^12 operations a second,
    where a multiply-add counts as two: measured apart from the counters, and the paper says that
    the two are not perfectly consistent. ``model_error_share`` is how far the cycles of Google's
    own performance model are from the counted ones. Lesson 14.
    """

    name: str
    weights: int
    ops_per_weight_byte: int
    batch: int
    active_share: float
    useful_share: float
    stall_share: float
    shift_share: float
    non_matrix_share: float
    measured_tops: float
    model_error_share: float
    source: Source = field(repr=False)


class TpuApplications(Record):
    """The applications that were 95 % of the work of Google's TPUs in 2016; one row an application.

    Lesson 14.
    """

    applications: tuple[TpuApplication, ...]


@functools.cache
def tpu_applications() -> TpuApplications:
    """Return the six applications of the TPU paper: two perceptrons, two LSTMs, two convolutional
    networks.

    Jouppi et al., In-Datacenter Performance Analysis of a Tensor Processing Unit, ISCA 2017, tables
    1, 3 and 7. Lesson 14.
    """
    data = tomllib.loads(
        resources.files("helpers.studies.simulators.systolic")
        .joinpath("tpu.toml")
        .read_text(encoding="utf-8")
    )
    source = device_sources(data)[data["applications"]["source"]]
    return TpuApplications(tuple(_application(row, source) for row in data["applications"]["rows"]))


def _application(row: list, source: Source) -> TpuApplication:
    name, millions, ops, batch, *percents, tops, error = row
    active, useful, stall, shift, non_matrix = (percent / _PERCENT for percent in percents)
    return TpuApplication(
        name,
        millions * _MILLION,
        ops,
        batch,
        active,
        useful,
        stall,
        shift,
        non_matrix,
        tops,
        error / _PERCENT,
        source,
    )
