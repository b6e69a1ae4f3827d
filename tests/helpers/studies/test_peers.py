"""The peers' table: every model is counted by every profiler there is, and a failing or missing one
is named.
"""

from __future__ import annotations

import builtins
import json
import sys

import pytest
from torch import nn

from helpers import results
from helpers.studies.peers import _counting as peers


@pytest.fixture
def small(monkeypatch):
    model = ("small", lambda: nn.Linear(8, 4), (1, 8), 32)
    monkeypatch.setattr(peers, "_MODELS", {model[0]: model[1:]})
    return monkeypatch


def test_a_small_model_is_counted_exactly_by_us_and_by_torch(small):
    table = peers.count_with_peers()
    found = {count.profiler: count for count in table.counts}
    for name in ("helpers", "torch"):
        assert (found[name].counted_macs, found[name].error, found[name].verdict) == (
            32,
            "0",
            "exact",
        )
    assert set(found) | set(table.not_installed) == set(peers._PROFILERS)


def test_what_is_not_installed_is_named_and_not_counted(small):
    real = builtins.__import__

    def bare(name, *args, **kwargs):
        if name.partition(".")[0] in {"thop", "fvcore", "torchinfo", "deepspeed"}:
            raise ModuleNotFoundError(name)
        return real(name, *args, **kwargs)

    small.setattr(builtins, "__import__", bare)
    table = peers.count_with_peers()
    assert table.not_installed == ("thop", "fvcore", "torchinfo", "DeepSpeed")
    assert {count.profiler for count in table.counts} == {"helpers", "torch"}
    assert "not installed where this was recorded: thop, fvcore" in str(table)


def test_without_torchvision_nothing_is_counted(small):
    counted = []
    small.setitem(sys.modules, "torchvision", None)
    small.setattr(
        peers, "_PROFILERS", {"counter": lambda model, shape: counted.append(model) or 32}
    )
    with pytest.raises(ModuleNotFoundError, match=r"come with torchvision, .* belongs to torch 2"):
        peers.count_with_peers()
    assert counted == []


def test_a_peer_that_raises_shows_its_error(small):
    def broken(model, shape):
        raise KeyError("a rule")

    small.setattr(peers, "_PROFILERS", {"broken": broken})
    (count,) = peers.count_with_peers().counts
    assert (count.counted_macs, count.error, count.verdict) == (None, "KeyError", "wrong")


@pytest.mark.parametrize(
    ("counted", "error", "verdict"),
    [
        (100, "0", "exact"),
        (101, "+1 %", "close"),
        (98, "-2 %", "wrong"),
        (0, "counts 0", "wrong"),
        (200, "+100 %", "wrong"),
    ],
)
def test_error_and_verdict(counted, error, verdict):
    count = peers.PeerCount("model", "peer", 100, counted)
    assert (count.error, count.verdict) == (error, verdict)


def test_the_table_shows_each_error_once_and_comes_back_from_json():
    table = peers.PeerTable(
        ("none of <these>",), (peers.PeerCount("m", "a", 10, 10), peers.PeerCount("m", "b", 10, 0))
    )
    shown = table._repr_html_()
    assert shown.count("<td") == 2
    assert "&lt;these&gt;" in shown
    assert table.errors().to_dict("list") == {"a": ["0"], "b": ["counts 0"]}
    assert results.from_dict(peers.PeerTable, json.loads(table.to_json())) == table
