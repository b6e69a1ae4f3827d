"""Published times of all-reduces on one node and on several, and rates of all-to-alls, with
sources.

Lesson 07.
"""

from __future__ import annotations

from helpers.results import Record

_KIB = 2**10


class AllReduceTimes(Record):
    """The all-reduces of ``nodes`` nodes with ``gpus`` GPUs each: ``times_s`` has a time for each
    size in bytes.

    ``inside_bytes_per_s`` is what a GPU can send to the other GPUs of its node,
    ``port_bytes_per_s`` what it can send to other nodes, both by their specifications and in one
    direction. Lesson 07.
    """

    device: str
    nodes: int
    gpus: int
    inside_bytes_per_s: float
    port_bytes_per_s: float
    times_s: dict[int, float]

    def bus_bandwidth(self, size_bytes: int) -> float:
        """Return the bus bandwidth in bytes per second: the bytes of one ring through all GPUs over
        the time.

        It is that of NVIDIA's nccl-tests (doc/PERFORMANCE.md). Raises KeyError for a size without a
        time. Lesson 07.
        """
        return one_ring_bytes(self.nodes * self.gpus, size_bytes) / self.times_s[size_bytes]


class ExchangeRate(Record):
    """The rate of an all-to-all per GPU on ``nodes`` nodes with ``gpus`` GPUs each, of all bytes
    that it exchanges.

    Bytes that stay in the node are counted as well. ``port_bytes_per_s`` is what a port can send.
    Lesson 07.
    """

    nodes: int
    gpus: int
    port_bytes_per_s: float
    bytes_per_s: float


def one_ring_bytes(ranks: int, size_bytes: float) -> float:
    """Return the bytes that each of ``ranks`` sends in one ring all-reduce of ``size_bytes``."""
    return 2 * (ranks - 1) / ranks * size_bytes


def _b200(nodes: int, bus_bandwidths: tuple[float, ...]) -> AllReduceTimes:
    """Return the times of 32 KiB to 16 GiB, which the source gives as bus bandwidths in GB/s."""
    sizes = [32 * _KIB * 2**power for power in range(len(bus_bandwidths))]
    times = {
        size: one_ring_bytes(8 * nodes, size) / (1e9 * rate)
        for size, rate in zip(sizes, bus_bandwidths, strict=True)
    }
    return AllReduceTimes("B200", nodes, 8, 900e9, 50e9, times)


B200_SOURCE = (
    "Stas Bekman, Machine Learning Engineering (github.com/stas00/ml-engineering, "
    "network/README.md at commit 744d01e, August 2026): his all_reduce_bench.py with NCCL 2.27.7 "
    "on one and on four p6-b200 of AWS, as bus bandwidths"
)
B200_ONE_NODE = _b200(
    1,
    (
        1.20,
        2.17,
        4.86,
        9.54,
        18.71,
        36.06,
        63.09,
        76.48,
        126.49,
        254.96,
        325.97,
        400.60,
        568.38,
        646.11,
        688.99,
        723.34,
        734.97,
        740.64,
        839.07,
        845.67,
    ),
)
B200_FOUR_NODES = _b200(
    4,
    (
        0.01,
        0.04,
        0.45,
        1.33,
        2.84,
        5.37,
        10.38,
        18.90,
        35.12,
        64.43,
        91.19,
        156.74,
        197.94,
        229.09,
        326.90,
        361.99,
        372.42,
        377.34,
        380.39,
        381.80,
    ),
)

A3_MEGA_SOURCE = (
    "lessizzmore (github.com/lessizzmore/create-a3mega-ztan-fork, ztan-NCCL-test-result.markdown "
    "at commit 346b825): all_reduce_perf, float, out of place, on two nodes of Google's A3 Mega"
)
A3_MEGA = AllReduceTimes(
    "H100",
    2,
    8,
    450e9,
    25e9,
    {
        8 * 2**power: 1e-6 * time_us
        for power, time_us in enumerate(
            (
                135.8,
                123.2,
                123.3,
                123.4,
                123.0,
                123.6,
                126.6,
                147.1,
                125.8,
                126.9,
                131.6,
                138.6,
                155.2,
                159.4,
                159.3,
                167.1,
                174.2,
                203.2,
                254.0,
                364.6,
                571.9,
                977.6,
                1059.9,
                1261.6,
                1652.2,
                2360.9,
                3817.5,
                6759.0,
                12646,
                24361,
                47535,
            )
        )
    },
)

V100_SOURCE = (
    "Jacob Kahn, gists a92f4425, 1fb3977e and 3150a1a3 (gist.github.com/jacobkahn, 2019): "
    "all_reduce_perf of two float values on 2, 4 and 8 nodes of AWS's p3dn, whose eight GPUs share "
    "100 Gbit/s"
)
V100 = tuple(
    AllReduceTimes("V100", nodes, 8, 150e9, 12.5e9 / 8, {8: 1e-6 * time_us})
    for nodes, time_us in ((2, 163.4), (4, 319.4), (8, 631.3))
)

DEEP_EP_SOURCE = (
    "DeepSeek, DeepEP (github.com/deepseek-ai/DeepEP, README.md at commit 0297fc8): dispatch on "
    "SM90 with ConnectX-7, which the authors call a logical bandwidth"
)
DEEP_EP = (ExchangeRate(2, 8, 50e9, 90e9), ExchangeRate(4, 8, 50e9, 61e9))
