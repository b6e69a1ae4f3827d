"""The checks of lesson 13: what goes in, what must come out, and what common mistakes would give instead."""

import logging

import torch

from helpers.exercises import Checks


def top_level(checks: Checks) -> None:
    """The calls that lie in no other"""
    checks.returns(
        "a call inside another is left out, also behind one that has ended",
        (_calls(a=(10, 20), b=(11, 12), c=(13, 14), d=(25, 30)),),
        call=_names,
        expected=["a", "d"],
        mistakes={
            ("a", "c", "d"): (
                "A call inside another ends early. What counts ends with the outer call, so keep "
                "its end until a bar begins behind it."
            ),
            ("a", "b", "c", "d"): "You keep the calls inside others as well.",
        },
    )
    checks.returns(
        "a call may begin at the moment when the one before ends",
        (_calls(a=(10, 20), b=(20, 30), c=(30, 31)),),
        call=_names,
        expected=["a", "b", "c"],
        mistakes={
            ("a", "c"): (
                "A call that begins when the call before it ends lies behind it and not inside."
            ),
        },
    )
    checks.returns("no calls, no bars", ([],), expected=[])
    checks.returns(
        "the bars are a list of the calls, which the cells below index",
        (_calls(a=(10, 20)),),
        expected=_calls(a=(10, 20)),
        kind=list,
    )


def _calls(**spans: tuple[int, int]) -> list[dict]:
    """Return calls by their name, from a start to an end."""
    return [
        {"name": name, "ts": start, "dur": end - start} for name, (start, end) in spans.items()
    ]


def _names(function, calls):
    return [bar["name"] for bar in function(calls)]


def gaps(checks: Checks) -> None:
    """The gaps between bars"""
    bars = _calls(a=(10, 20), b=(21, 30), c=(36, 40), d=(50, 60))
    checks.returns(
        "a gap goes from the end of a bar to the start of the next",
        (bars, 6),
        expected=[[30, 36], [40, 50]],
        mistakes={
            ((10, 21), (21, 36), (36, 50)): "A gap begins from the end of a bar, `ts + dur`.",
            (
                (40, 50),
            ): "A gap that is exactly `least` long counts, because it is at least so long.",
        },
    )
    checks.returns("a single bar has no gaps", (bars[:1], 0), expected=[])
    checks.returns(
        "the gaps are a list, which the cells below go through twice",
        (bars, 10),
        expected=[[40, 50]],
        kind=list,
    )


def what_changed(checks: Checks) -> None:
    """The counts that differ"""
    before = _calls(a=(0, 1)) + 2 * _calls(b=(1, 2)) + _calls(c=(2, 3))
    after = _calls(a=(0, 1)) + _calls(b=(1, 2)) + 3 * _calls(d=(2, 3))
    checks.returns(
        "names whose counts differ, with both counts",
        (before[:3], after[:2]),
        call=_sorted,
        expected=[("b", 2, 1)],
        mistakes={
            (("a", 1, 1), ("b", 2, 1)): "Keep only the names whose counts differ.",
        },
    )
    checks.returns(
        "a name may be in one trace alone",
        (before, after),
        call=_sorted,
        expected=[("b", 2, 1), ("c", 1, 0), ("d", 0, 3)],
        mistakes={
            (("b", 2, 1), ("c", 1, 0)): "You miss a name that is only in the second trace.",
        },
    )
    checks.returns(
        "the result is a dictionary from names to pairs",
        (before[:3], after[:2]),
        call=_with_tuples,
        expected={"b": (2, 1)},
        kind=dict,
        mistakes={
            (("b", (2, 1)),): "The cells below need a dictionary, and not a list of pairs."
        },
    )


def _sorted(function, before, after):
    changed = function(before, after)
    return sorted((name, *counts) for name, counts in dict(changed).items())


def _with_tuples(function, before, after):
    """Return the changes with their counts as tuples, because lists serve the cells below as well."""
    changed = function(before, after)
    return (
        {name: tuple(counts) for name, counts in changed.items()}
        if isinstance(changed, dict)
        else changed
    )


def make_backend(checks: Checks) -> None:
    """A backend that keeps graphs"""
    checks.returns(
        "the compiled function computes the same",
        (),
        call=lambda make: _compiled(make)[0],
        expected=[3.0, 5.0],
        mistakes={
            "not callable": (
                "The backend must return the function that runs the graph, `graph.forward`, and not "
                "what it computes."
            ),
        },
    )
    checks.returns(
        "each graph is kept once",
        (),
        call=lambda make: len(_compiled(make)[1]),
        expected=1,
        mistakes={0: "Let the backend append each graph to `graphs`."},
    )
    checks.returns(
        "what is kept is the graph, whose operators the cells below count",
        (),
        call=lambda make: [_operators(graph) for graph in _compiled(make)[1]],
        expected=[2],
        mistakes={
            ("no graph",): "Keep the graph itself, because the cells below read its nodes."
        },
    )


def _compiled(make):
    """Return what a function gives that is compiled by the backend, and the graphs that it kept."""
    logging.getLogger("torch").setLevel(logging.ERROR)
    graphs: list = []
    backend = make(graphs)
    returned = []

    def watched(graph, inputs):
        function = backend(graph, inputs)
        returned.append(callable(function))
        return function if returned[-1] else graph.forward

    torch.compiler.reset()
    values = torch.compile(lambda x: 2 * x + 1, backend=watched)(torch.tensor([1.0, 2.0]))
    return (values if all(returned) else "not callable"), graphs


def _operators(graph):
    nodes = getattr(getattr(graph, "graph", None), "nodes", None)
    if nodes is None:
        return "no graph"
    return sum(node.op.startswith("call_") for node in nodes)
