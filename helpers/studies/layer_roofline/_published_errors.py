"""Peaks in public tables that are wrong by two, because a sparse rate stands there for a dense one.

The claims stand in ``published_errors.toml`` beside this module.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import field
from typing import Any

from helpers import hardware, roofline
from helpers.hardware._devices import Source, amount, device_sources, read_toml
from helpers.results import Record


class PublishedError(Record):
    """A published table's rate beside ours; a ``claim_ratio`` near 2 is a sparse rate given for a
    dense one.

    Lesson 02.
    """

    device: str
    dtype: str
    said: str
    claimed_flops_per_s: float
    dense_flops_per_s: float
    claim_ratio: float
    published_by: str
    source: Source = field(repr=False)


class PublishedErrors(Record):
    """Rates that public tables call dense, or do not call sparse, held to ours. Lesson 02."""

    median_ratio: float
    claims: tuple[PublishedError, ...]


def published_errors() -> PublishedErrors:
    """Return the rates of public tables that this course found wrong, each with its ratio to the
    dense rate.

    Every one was read in the table that it is laid to; the address is in the claim's ``source``.

    >>> round(published_errors().median_ratio, 1)
    2.0

    Lesson 02.
    """
    data = read_toml(__package__, "published_errors.toml")
    sources = device_sources(data)
    claims = tuple(_claim(entry, sources[entry["source"]]) for entry in data["claim"])
    return PublishedErrors(statistics.median(claim.claim_ratio for claim in claims), claims)


def _claim(entry: Mapping[str, Any], source: Source) -> PublishedError:
    device, dtype = entry["device"], entry["dtype"]
    claimed = amount(entry["flops_per_s"])
    dense = roofline.datasheet_roof(hardware.device(device), dtype).peak_flops_per_s
    return PublishedError(
        device, dtype, entry["said"], claimed, dense, claimed / dense, source.title, source
    )
