"""Collectives written out as messages: source, target, elements and step of each, and the traffic
in sum.

The algorithms are those of Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH" (2005), and Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations" (2009). In each step a rank sends at most one message and
receives at most one; a step's messages all read what the step before left. Any number of ranks and
any length: rank r owns chunk r of ``torch.tensor_split``, and a message that would be empty is not
sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from helpers.checks import choice, whole_number
from helpers.results import Record

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")

_Piece = tuple[int, int, int, int, str]  # source, target, start, stop, action of a message
_Steps = list[list[_Piece]]


class Message(Record):
    """One message: in ``step``, ``source`` sends its elements ``start`` to ``stop`` to ``target``.

    The target adds them to its own (``action`` "reduce") or puts them in their place ("copy").
    Lesson 05.
    """

    step: int
    source: int
    target: int
    start: int
    stop: int
    size_bytes: int
    action: str


class RankTraffic(Record):
    """The bytes that one rank sends and receives in a collective, and the number of its messages.
    Lesson 05.
    """

    rank: int
    sent_messages: int
    sent_bytes: int
    received_bytes: int


class Collective(Record):
    """A collective over ``world_size`` ranks on ``length`` elements of ``element_bytes``, as its
    messages.

    ``steps`` counts the steps in which something is sent, ``total_bytes`` all bytes of all
    messages, and ``busiest_port_bytes`` the most that one rank sends or receives. ``table()`` has a
    row a message. Lesson 05.
    """

    operation: str
    algorithm: str
    world_size: int
    length: int
    element_bytes: int
    steps: int
    total_bytes: int
    busiest_port_bytes: int
    messages: tuple[Message, ...]

    def ranks(self) -> tuple[RankTraffic, ...]:
        """Return the traffic of each rank, in rank order. Lesson 05."""
        return _rank_traffic(self.messages, self.world_size)


def chunk(index: int, world_size: int, *, length: int) -> tuple[int, int]:
    """Return where chunk ``index`` of ``length`` elements starts and stops: the first ones are one
    element longer.

    These are the chunks of ``torch.tensor_split(tensor, world_size)``. Lesson 05.
    """
    base, longer = divmod(length, world_size)
    start = index * base + min(index, longer)
    return start, start + base + (index < longer)


def collective(
    operation: str, algorithm: str, *, world_size: int, length: int, element_bytes: int = 4
) -> Collective:
    """Return ``operation`` ("all_reduce", "reduce_scatter" or "all_gather") by ``algorithm`` as its
    messages.

    The algorithms: "ring" (a reduce-scatter round the ring, then an all-gather round it), "tree"
    (up a binomial tree and down again), "halving_doubling" (recursive halving, then recursive
    doubling; a number of ranks that is not a power of 2 first folds neighbours together) and
    "gather_broadcast" (everyone sends to rank 0, which answers each). There are ``world_size``
    ranks; ``length`` counts the elements of the whole buffer, ``element_bytes`` is 4 for float32.

    Raises ValueError for another operation or algorithm and for numbers that cannot be.

    >>> plan = collective("all_reduce", "ring", world_size=4, length=8)
    >>> plan.steps, plan.total_bytes, plan.busiest_port_bytes
    (6, 192, 48)

    Lesson 05.
    """
    whole_number("world_size", world_size)
    whole_number("length", length, at_least=0)
    whole_number("element_bytes", element_bytes)
    choice("algorithm", algorithm, ALGORITHMS)
    choice("operation", operation, OPERATIONS)
    rounds = ALGORITHMS[algorithm](operation, world_size, length) if world_size > 1 else []
    nonempty_rounds = [[piece for piece in pieces if piece[3] > piece[2]] for pieces in rounds]
    messages = tuple(
        Message(step, source, target, start, stop, (stop - start) * element_bytes, action)
        for step, pieces in enumerate(filter(None, nonempty_rounds))
        for source, target, start, stop, action in pieces
    )
    return Collective(
        operation=operation,
        algorithm=algorithm,
        world_size=world_size,
        length=length,
        element_bytes=element_bytes,
        steps=1 + messages[-1].step if messages else 0,
        total_bytes=sum(message.size_bytes for message in messages),
        busiest_port_bytes=max(
            max(rank.sent_bytes, rank.received_bytes)
            for rank in _rank_traffic(messages, world_size)
        ),
        messages=messages,
    )


def _rank_traffic(messages: Sequence[Message], world_size: int) -> tuple[RankTraffic, ...]:
    sent_bytes: Counter[int] = Counter()
    received_bytes: Counter[int] = Counter()
    message_counts: Counter[int] = Counter()
    for message in messages:
        sent_bytes[message.source] += message.size_bytes
        received_bytes[message.target] += message.size_bytes
        message_counts[message.source] += 1
    ranks = range(world_size)
    return tuple(
        RankTraffic(rank, message_counts[rank], sent_bytes[rank], received_bytes[rank])
        for rank in ranks
    )


# The algorithms: each returns its steps, a step being a list of (source, target, start, stop,
# action).


def _ring(operation: str, ranks: int, length: int) -> _Steps:
    def around(offset: int, action: str) -> _Steps:
        return [
            [
                (
                    rank,
                    (rank + 1) % ranks,
                    *chunk((rank - step - offset) % ranks, ranks, length=length),
                    action,
                )
                for rank in range(ranks)
            ]
            for step in range(ranks - 1)
        ]

    # In the first half rank r sends chunk r-1, then each chunk it has just added to: it ends with
    # all of chunk r.
    halves = {"reduce_scatter": around(1, "reduce"), "all_gather": around(0, "copy")}
    return halves.get(operation) or halves["reduce_scatter"] + halves["all_gather"]


def _gather_broadcast(operation: str, ranks: int, length: int) -> _Steps:
    all_elements = (0, length)
    chunks = [chunk(rank, ranks, length=length) for rank in range(ranks)]
    up = chunks if operation == "all_gather" else [all_elements] * ranks
    down = chunks if operation == "reduce_scatter" else [all_elements] * ranks
    action = "copy" if operation == "all_gather" else "reduce"
    return [[(rank, 0, *up[rank], action)] for rank in range(1, ranks)] + [
        [(0, rank, *down[rank], "copy")] for rank in range(1, ranks)
    ]


def _tree(operation: str, ranks: int, length: int) -> _Steps:
    def subtree(rank: int, distance: int) -> tuple[int, int]:
        # the ranks of this subtree are neighbours, and so are their chunks
        last_rank = min(rank + distance, ranks) - 1
        return chunk(rank, ranks, length=length)[0], chunk(last_rank, ranks, length=length)[1]

    distances = [1 << bit for bit in range((ranks - 1).bit_length())]
    pairs = {
        distance: [(rank, rank - distance) for rank in range(distance, ranks, 2 * distance)]
        for distance in distances
    }
    gathers, scatters = operation == "all_gather", operation == "reduce_scatter"
    up = [
        [
            (
                child,
                parent,
                *(subtree(child, d) if gathers else (0, length)),
                "copy" if gathers else "reduce",
            )
            for child, parent in pairs[d]
        ]
        for d in distances
    ]
    down = [
        [
            (parent, child, *(subtree(child, d) if scatters else (0, length)), "copy")
            for child, parent in pairs[d]
        ]
        for d in reversed(distances)
    ]
    return up + down


def _halving_doubling(operation: str, ranks: int, length: int) -> _Steps:
    cores = 1 << (ranks.bit_length() - 1)  # the largest power of 2 that is no more than the ranks
    # so many cores stand for two neighbours each: 2c takes part, 2c+1 waits
    folded_cores = ranks - cores
    rank_of = [2 * core if core < folded_cores else core + folded_cores for core in range(cores)]
    waiting = [(2 * core + 1, 2 * core) for core in range(folded_cores)]

    def span(first: int, last: int) -> tuple[int, int]:
        end = rank_of[last] + (last < folded_cores)
        return chunk(rank_of[first], ranks, length=length)[0], chunk(end, ranks, length=length)[1]

    def exchange(distance: int, *, sends_own: bool, action: str) -> list[_Piece]:
        pieces = []
        for core in range(cores):
            partner = core ^ distance
            first = (core if sends_own else partner) // distance * distance
            pieces.append(
                (rank_of[core], rank_of[partner], *span(first, first + distance - 1), action)
            )
        return pieces

    distances = [1 << bit for bit in range(cores.bit_length() - 1)]
    halving = [
        exchange(distance, sends_own=False, action="reduce") for distance in reversed(distances)
    ]
    doubling = [exchange(distance, sends_own=True, action="copy") for distance in distances]
    fold = [[(idle, core, 0, length, "reduce") for idle, core in waiting]]
    bring = [[(idle, core, *chunk(idle, ranks, length=length), "copy") for idle, core in waiting]]
    hand = [[(core, idle, *chunk(idle, ranks, length=length), "copy") for idle, core in waiting]]
    unfold = [[(core, idle, 0, length, "copy") for idle, core in waiting]]
    if operation == "all_reduce":
        return fold + halving + doubling + unfold
    return fold + halving + hand if operation == "reduce_scatter" else bring + doubling + unfold


ALGORITHMS: dict[str, Callable[[str, int, int], _Steps]] = {
    "ring": _ring,
    "tree": _tree,
    "halving_doubling": _halving_doubling,
    "gather_broadcast": _gather_broadcast,
}
