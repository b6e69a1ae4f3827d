"""A result is shown in its units, and comes back from a dictionary and from JSON as it was."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, strategies as st

from helpers import results
from tests.properties import repeatable


class Layer(results.Record):
    name: str
    macs: int
    read_bytes: int
    median_s: float = 1e-3


class Run(results.Record):
    title: str
    total_s: float
    share: float | None
    best: Layer | None
    layers: tuple[Layer, ...]
    shape: tuple[int, int]
    times_s: tuple[float, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    by_rank: Mapping[int, tuple[Layer, ...]] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    either: Layer | str = "none"
    note: Any = None


class One(results.Record):
    value_s: float = 0.0


class Rates(results.Record):
    forward_macs: int | None
    forward_flops: int | None
    calls: int | None
    images_per_s: float = 1234.0
    read_bytes_per_s: float = 34.1e9


class Rows(results.Record):
    rows: tuple[Rates, ...]


A, B = Layer("conv", 279_300, 3_140_000), Layer("linear", 10, 20, math.inf)
FULL = Run(
    "full",
    0.5,
    0.25,
    A,
    (A, B),
    (3, 4),
    (1.0, 2.5),
    {"a": 1},
    {0: (A,), 1: ()},
    ["x"],
    B,
    {"k": [1, None]},
)

WHOLE, NAMES = st.integers(-(2**70), 2**70), st.text(max_size=4)
LAYERS = st.builds(Layer, NAMES, WHOLE, WHOLE, st.floats())
RUNS = st.builds(
    Run,
    title=NAMES,
    total_s=st.floats(),
    share=st.none() | st.floats(),
    best=st.none() | LAYERS,
    layers=st.lists(LAYERS, max_size=3).map(tuple),
    shape=st.tuples(WHOLE, WHOLE),
    times_s=st.lists(st.floats(), max_size=3).map(tuple),
    counts=st.dictionaries(NAMES, WHOLE, max_size=3),
    by_rank=st.dictionaries(WHOLE, st.lists(LAYERS, max_size=2).map(tuple), max_size=3),
    tags=st.lists(NAMES, max_size=3),
    either=LAYERS | NAMES,
    note=st.recursive(
        st.none()
        | st.booleans()
        | WHOLE
        | st.floats(allow_nan=False, allow_infinity=False)
        | NAMES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=5,
    ),
)


def refuse_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@repeatable(examples=50)
@given(RUNS)
def test_a_result_comes_back_from_its_dictionary_and_its_json(run):
    """All are compared as their text, in which NaN is NaN, and 2.0, 2 and "2" differ, as a list and
    a tuple do.
    """
    assert repr(results.from_dict(Run, run.to_dict())) == repr(run)
    assert repr(
        results.from_dict(Run, json.loads(run.to_json(), parse_constant=refuse_constant))
    ) == repr(run)


def test_a_record_and_what_inherits_it_are_frozen_dataclasses():
    class Timed(One):
        calls: int = 0
        kept: list[int] = field(default_factory=list, repr=False)

        def __str__(self) -> str:
            return f"{self.calls} calls"

    timed = Timed(0.5, 3)
    assert [each.name for each in fields(timed)] == ["value_s", "calls", "kept"]
    assert repr(timed).endswith("Timed(value_s=0.5, calls=3)")
    assert str(timed) == "3 calls"
    assert timed == Timed(0.5, 3)
    assert hash(One(0.5)) == hash(One(0.5))
    for name in ("value_s", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(timed, name, 1.0)


@pytest.mark.parametrize(
    "number", [np.float32(1.5), np.int64(3), np.array(2.5), np.bool_(True), np.float64("nan")]
)
def test_numpy_scalars_are_numbers(number):
    result = One(number)
    kept = json.loads(result.to_json())["value_s"]
    assert kept == ("NaN" if number != number else number.item())
    assert str(result) == str(One(number.item()))
    assert result.table()["value_s"].map(type).item() in (float, int, bool, np.bool_)


def test_torch_scalars_are_numbers():
    torch = pytest.importorskip("torch")
    assert One(torch.tensor(0.25)).to_dict() == {"value_s": 0.25}
    assert str(One(torch.tensor(0.25))) == "One\n  value  250 ms"


def test_a_field_that_json_cannot_keep_is_named():
    with pytest.raises(TypeError, match="'note' holds a set"):
        Run("bad", 1.0, None, None, (), (1, 2), note={1}).to_json()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": [{"name": "x"}]}, r"'layers'.*\['macs', 'read_bytes'\]"),
        ({"shape": [1]}, "'shape'"),
        ({"layers": 3}, "'layers'"),
        ({"layers": ["conv"]}, "mapping of field names"),
        ({"shape": ["a", "b"]}, "'shape'"),
        ({"total_s": "fast"}, "'total_s'"),
        ({"extra": 1}, r"unknown \['extra'\]"),
        ({"counts": [1]}, "'counts'"),
    ],
)
def test_what_is_no_such_result_is_refused_and_named(change, words):
    with pytest.raises(ValueError, match=words):
        results.from_dict(Run, {**FULL.to_dict(), **change})


@pytest.mark.parametrize("values", [None, 3, [], "text"])
def test_a_result_is_made_of_a_mapping(values):
    with pytest.raises(ValueError, match="not a One: a mapping"):
        results.from_dict(One, values)


def test_a_missing_field_is_named():
    with pytest.raises(ValueError, match=r"missing \['macs', 'read_bytes'\]"):
        results.from_dict(Layer, {"name": "x"})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("median_s", 7.6e-5, "76.0 us"),
        ("read_bytes", 3_140_000, "3.14 MB"),
        ("bandwidth_bytes_per_s", 34.1e9, "34.1 GB/s"),
        ("macs", 279_300, "279 kMAC"),
        ("peak_flops_per_s", 104e9, "104 GFLOP/s"),
        ("images_per_s", 1200.0, "1,200/s"),
        ("images_per_s", 0.5, "0.5/s"),
        ("busy_share", 0.319, "31.9 %"),
        ("speedup", 1.958, "1.96x"),
        ("size_ratio", 2, "2.00x"),
        ("calls", 61_706, "61,706"),
        ("calls", 61_706.0, "61,706"),
        ("loss", 0.12346, "0.1235"),
        ("loss", math.nan, "unknown"),
        ("busy_share", math.nan, "unknown"),
        ("median_s", None, "unknown"),
        ("is_stable", True, "yes"),
        ("tags", (), "none"),
        ("shape", (3, 4), "3, 4"),
        ("part_s", {"a": 1.0, "b": None}, "a: 1.00 s, b: unknown"),
        ("loss", math.inf, "inf"),
        ("name", "conv <1>", "conv <1>"),
        ("clock_hz", 4.9e9, "4.90 GHz"),
        ("s", 3, "3"),
    ],
)
def test_the_suffix_decides_what_is_printed(name, value, expected):
    assert results.cell(name, value) == expected


def test_labels_lose_the_unit_that_the_value_prints():
    names = ("median_s", "forward_flops", "images_per_s", "busy_share", "macs", "speedup")
    assert [results.label(name) for name in names] == [
        "median",
        "forward",
        "images",
        "busy share",
        "macs",
        "speedup",
    ]


def test_columns_that_differ_in_the_unit_alone_are_both_printed():
    text = str(Rows((Rates(279_300, 558_600, 3), Rates(None, None, None))))
    assert "forward macs" in text
    assert "forward flops" in text
    assert re.search(r"279 kMAC\s+559 kFLOP\s+3\b", text)
    assert re.search(r"unknown\s+unknown\s+unknown", text)


def test_a_result_prints_its_fields_its_parts_and_its_tables():
    lines = str(FULL).splitlines()
    assert lines[:3] == ["Run", "  title    full", "  total    500 ms"]
    assert "  best" in lines
    assert "    Layer" in lines
    assert lines[-2].split() == ["conv", "279", "kMAC", "3.14", "MB", "1.00", "ms"]


def test_a_long_text_is_printed_whole():
    name = "x" * 300
    run = Run("long", 1.0, None, None, (Layer(name, 1, 2),), (1, 2))
    assert name in str(run)
    assert name in run._repr_html_()


def test_html_is_escaped_and_has_no_colours():
    bad = "<script>alert('&')</script>"
    run = Run(bad, 1.0, None, Layer(bad, 1, 2), (Layer(bad, 1, 2),), (1, 2), counts={bad: 1})
    page = run._repr_html_()
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 4
    assert not re.search(r"color|background|#[0-9a-fA-F]{3}", page.replace(bad, ""))


def test_tables_hold_plain_numbers_with_the_units_in_the_names():
    table = FULL.table()
    assert table["macs"].tolist() == [279_300, 10]
    assert pd.api.types.is_integer_dtype(table["macs"])
    assert FULL.table().columns.tolist() == ["name", "macs", "read_bytes", "median_s"]


def test_a_result_in_a_row_adds_its_columns():
    table = Run("one", 1.0, None, A, (), (1, 2)).table()
    assert table["best_macs"].tolist() == [279_300]
    assert table["total_s"].tolist() == [1.0]


def test_a_field_that_is_not_shown_is_kept():
    @dataclass(frozen=True)
    class Quiet(results.Result):
        count: int
        samples: tuple[int, ...] = field(repr=False)

    quiet = Quiet(1, (12345, 67890))
    assert "12345" not in str(quiet) + quiet._repr_html_() + quiet.table().to_string()
    assert quiet.to_dict()["samples"] == [12345, 67890]


def test_a_row_is_found_by_its_fields_and_the_rows_are_named_where_it_is_not():
    rows = (Layer("conv", 1, 10), Layer("conv", 2, 20), Layer("fc", 2, 30))
    assert results.row_of(rows, "layer", name="conv") is rows[0]
    assert results.row_of(rows, "layer", name="conv", macs=2) is rows[1]
    with pytest.raises(
        ValueError, match="there is no layer 'pool'; there are 'conv', 'conv', 'fc'"
    ):
        results.row_of(rows, "layer", name="pool")
    with pytest.raises(
        ValueError, match=r"no layer with name 'fc', macs 1; there are \('conv', 1\), \('conv', 2\)"
    ):
        results.row_of(rows, "layer", name="fc", macs=1)
    with pytest.raises(ValueError, match="there are none"):
        results.row_of((), "layer", name="fc")
