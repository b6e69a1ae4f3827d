"""The figures of lesson 09 about long sequences: they draw what others have modelled."""

from __future__ import annotations

from helpers import plotting
from helpers.plotting import COLOURS, Curves, Menu, Series, Slider

_PEAK = "4e14"  # FLOP/s of an H100 in training, as in lessons 05 to 09
_LINKS = {
    "NVLink of an H100, 450 GB/s": {"B": 450e9},
    "NVLink of an H800, 160 GB/s": {"B": 160e9},
    "a port to other nodes, 50 GB/s": {"B": 50e9},
    "Ethernet, 12.5 GB/s": {"B": 12.5e9},
}


def explore_ring() -> None:
    """Display the time of a causal ring as a figure to turn, relative to an even share of its
    arithmetic.

    A curve for pieces in order and one for zigzag over the tokens of each GPU, in the forward pass
    and at 400 TFLOP/s. With c tokens a whole tile takes 4 c^2 h FLOP, and a block of keys and
    values 4 c h bytes, divided by the query heads that share a key. A block of step i is there
    after i messages, and it is computed after the block before it. Lesson 09.
    """
    plotting.explore(
        title="Causal ring: time relative to an even share of the arithmetic",
        alt="Two curves over the tokens per GPU: in order stays near 2, zigzag falls to 1 where "
        "the traffic hides.",
        inputs=[
            Menu("link", "link", _LINKS, "a port to other nodes, 50 GB/s"),
            Slider("shared", "query heads per key", [1, 2, 4, 8, 16], 4),
            Slider("ranks", "GPUs", [2, 4, 8, 16, 32, 64], 8),
            Slider(
                "tokens", "tokens per GPU", [500, 1000, 2000, 4000, 8000, 16000, 32000, 64000], 8000
            ),
        ],
        formulas={
            # times in units of a whole tile, 4 c^2 h / P
            "message": f"{_PEAK} / (link.B * shared * tokens)",
            "even": "ranks / 2",
            "hops": "ranks - 1",
            "ordered": "max(max(hops + 0.5, hops + message), hops * message + 1) / even",
            "paired": "max(even, hops * message + 0.5) / even",
        },
        picture=Curves(
            along="tokens",
            lines=[
                Series("ordered", "pieces in order", COLOURS["waiting"]),
                Series("paired", "zigzag", COLOURS["computing"]),
            ],
            xlabel="tokens per GPU",
            ylabel="time / even share",
            log_y=False,
        ),
    )
