"""Message lists: exact in one process, equal to torch.distributed on real ranks, and no byte more
than they say.
"""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, strategies as st

from helpers.parallel import _collectives as collectives
from helpers.parallel._collectives import ALGORITHMS, OPERATIONS, Collective, collective
from helpers.studies.data_parallel import _execution as execution
from tests.properties import repeatable

PLANS = st.builds(
    collective,
    st.sampled_from(sorted(OPERATIONS)),
    st.sampled_from(sorted(ALGORITHMS)),
    world_size=st.integers(1, 17),
    length=st.integers(0, 60),
    element_bytes=st.sampled_from([1, 4, 8]),
)


gathered = partial(execution.own_elements, operation="all_gather")
scattered = partial(execution.own_elements, operation="reduce_scatter")


def brought(planned: Collective) -> list[np.ndarray]:
    random = np.random.default_rng(planned.world_size * 1000 + planned.length)
    return [
        random.integers(-99, 99, planned.length)[gathered(planned, rank)]
        for rank in range(planned.world_size)
    ]


def simulate(planned: Collective, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What each rank holds in the end: what a rank was not given it does not know, the type's
    largest number.
    """
    buffers = []
    for rank, array in enumerate(arrays):
        buffers.append(
            np.full(
                planned.length,
                np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).max,
                dtype=array.dtype,
            )
        )
        buffers[rank][gathered(planned, rank)] = array
    for step in range(planned.steps):
        now = [message for message in planned.messages if message.step == step]
        sent = [buffers[message.source][message.start : message.stop].copy() for message in now]
        for message, values in zip(now, sent, strict=True):
            place = buffers[message.target][message.start : message.stop]
            place[:] = place + values if message.action == "reduce" else values
    return [buffer[scattered(planned, rank)] for rank, buffer in enumerate(buffers)]


def expected(planned: Collective, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What NumPy makes of the arrays: the oracle."""
    whole = np.concatenate(arrays) if planned.operation == "all_gather" else np.sum(arrays, axis=0)
    parts = np.array_split(whole, planned.world_size)
    return parts if planned.operation == "reduce_scatter" else [whole] * planned.world_size


@repeatable(examples=150)
@given(PLANS)
def test_simulated_it_is_the_true_result_for_any_ranks_and_any_length(planned) -> None:
    arrays = brought(planned)
    copies = [array.copy() for array in arrays]
    for result, wanted in zip(simulate(planned, arrays), expected(planned, arrays), strict=True):
        np.testing.assert_array_equal(result, wanted)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@repeatable(examples=100)
@given(PLANS)
def test_in_a_step_a_rank_sends_once_and_receives_once_and_no_byte_is_lost(planned) -> None:
    ends = Counter(
        (message.step, way, rank)
        for message in planned.messages
        for way, rank in (("from", message.source), ("to", message.target))
    )
    assert set(ends.values()) <= {1}
    assert {message.step for message in planned.messages} <= set(range(planned.steps))
    for message in planned.messages:
        assert message.size_bytes == planned.element_bytes * (message.stop - message.start) > 0
    assert planned.total_bytes == sum(message.size_bytes for message in planned.messages)
    assert planned.total_bytes == sum(rank.sent_bytes for rank in planned.ranks())
    assert planned.total_bytes == sum(rank.received_bytes for rank in planned.ranks())


@pytest.mark.parametrize("left_out", [0, 5, -1])
def test_without_any_one_message_the_result_is_wrong(left_out) -> None:
    planned = collective("all_reduce", "ring", world_size=4, length=8)
    messages = list(planned.messages)
    del messages[left_out]
    broken = Collective(**{**planned.__dict__, "messages": tuple(messages)})
    arrays = [array + 1000 for array in brought(planned)]
    results = simulate(broken, arrays)
    assert any((result != np.sum(arrays, axis=0)).any() for result in results)


@repeatable(examples=100)
@given(st.integers(0, 200), st.integers(1, 20))
def test_chunks_are_those_of_tensor_split(length, ranks) -> None:
    whole = torch.arange(length)
    for rank, part in enumerate(whole.tensor_split(ranks)):
        assert torch.equal(whole[slice(*collectives.chunk(rank, ranks, length=length))], part)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_bytes_are_exactly_those_of_the_literature(ranks) -> None:
    size = 4 * 24 * ranks  # every chunk is 96 B
    plans = {
        name: collective("all_reduce", name, world_size=ranks, length=24 * ranks)
        for name in ALGORITHMS
    }
    depth = ranks.bit_length() - 1
    assert {name: plan.steps for name, plan in plans.items()} == {
        "ring": 2 * (ranks - 1),
        "tree": 2 * depth,
        "halving_doubling": 2 * depth,
        "gather_broadcast": 2 * (ranks - 1),
    }
    # no all-reduce needs fewer
    assert {plan.total_bytes for plan in plans.values()} == {2 * (ranks - 1) * size}
    for name in ("ring", "halving_doubling"):  # the bandwidth-optimal ones: the same for all ranks
        traffic = plans[name].ranks()
        assert {each.sent_bytes for each in traffic} == {2 * (ranks - 1) * size // ranks}
        assert {each.received_bytes for each in traffic} == {plans[name].busiest_port_bytes}
    assert plans["gather_broadcast"].busiest_port_bytes == (ranks - 1) * size
    assert {(each.source, each.target) for each in plans["ring"].messages} == {
        (rank, (rank + 1) % ranks) for rank in range(ranks)
    }


@repeatable(examples=60)
@given(
    st.sampled_from(["ring", "tree", "gather_broadcast"]), st.integers(1, 17), st.integers(1, 60)
)
def test_an_all_reduce_sends_every_element_twice_to_all_ranks_but_one(
    algorithm, ranks, length
) -> None:
    """Halving and doubling does where ranks are no power of two: it sends whole buffers more, to
    fold and unfold.
    """
    planned = collective("all_reduce", algorithm, world_size=ranks, length=length, element_bytes=8)
    assert planned.total_bytes == 2 * (ranks - 1) * length * 8


def test_a_table_shows_every_message() -> None:
    planned = collective("all_reduce", "tree", world_size=4, length=10)
    table = planned.table()
    assert len(table) == len(planned.messages) == 6
    assert table["size_bytes"].sum() == planned.total_bytes


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"world_size": 0}, "world_size=0 is too small; give a whole number, 1 or more"),
        ({"world_size": 2.0}, "world_size"),
        ({"length": -1}, "length"),
        ({"element_bytes": 0}, "element_bytes"),
        (
            {"algorithm": "star"},
            "give one of 'ring', 'tree', 'halving_doubling', 'gather_broadcast'",
        ),
        ({"operation": "reduce"}, "give one of 'all_reduce', 'reduce_scatter', 'all_gather'"),
    ],
)
def test_what_cannot_be_is_refused(changed, said) -> None:
    arguments = {
        "operation": "all_reduce",
        "algorithm": "ring",
        "world_size": 2,
        "length": 4,
        **changed,
    }
    with pytest.raises((TypeError, ValueError), match=said):
        collective(arguments.pop("operation"), arguments.pop("algorithm"), **arguments)


def test_a_collective_is_not_carried_out_where_there_are_no_ranks() -> None:
    planned = collective("all_gather", "ring", world_size=2, length=5)
    with pytest.raises(RuntimeError, match="runs on ranks"):
        execution.execute(planned, torch.ones(3))


# On real ranks.


def sent_for_real(rank: int, world_size: int, ranks: int) -> list[tuple]:
    """Return, for each algorithm, operation and length, the result beside torch.distributed's and
    the simulation's.
    """
    group = dist.new_group(list(range(ranks)))
    if rank >= ranks:
        return []
    found = []
    for algorithm, operation, length in itertools.product(ALGORITHMS, OPERATIONS, (2, 1001)):
        planned = collective(operation, algorithm, world_size=ranks, length=length)
        wholes = [
            torch.randn(length, generator=torch.Generator().manual_seed(each))
            for each in range(ranks)
        ]
        mine = [whole[gathered(planned, each)] for each, whole in enumerate(wholes)]
        kept = mine[rank].clone()
        result = execution.execute(planned, mine[rank], group=group)
        assert torch.equal(mine[rank], kept)
        if operation == "all_gather":
            # torch.distributed gathers equally long parts
            longest = torch.zeros(ranks, len(mine[0]))
            padded = torch.nn.functional.pad(mine[rank], (0, len(mine[0]) - len(mine[rank])))
            dist.all_gather(list(longest), padded, group=group)
            theirs = torch.cat([row[: len(each)] for row, each in zip(longest, mine, strict=True)])
        else:
            theirs = wholes[rank].clone()
            dist.all_reduce(theirs, group=group)
            theirs = theirs[scattered(planned, rank)]
        simulated = simulate(planned, [each.numpy() for each in mine])[rank]
        found.append(
            (planned.algorithm, operation, length, result.numpy(), theirs.numpy(), simulated)
        )
    return found


@pytest.mark.parametrize("ranks", [3, 4])
def test_on_ranks_it_is_bit_for_bit_the_simulation_and_what_torch_distributed_gives(
    four_ranks, ranks
) -> None:
    for found in four_ranks.run(sent_for_real, ranks)[:ranks]:
        assert len(found) == len(ALGORITHMS) * len(OPERATIONS) * 2
        for algorithm, operation, length, result, theirs, simulated in found:
            case = f"{operation} by {algorithm} of {length}"
            np.testing.assert_array_equal(result, simulated, err_msg=case)
            # Sums of at most 4 normal numbers in another order: a few units in the last place.
            tolerance = 0 if operation == "all_gather" else 4 * ranks * np.finfo(np.float32).eps
            np.testing.assert_allclose(result, theirs, rtol=0, atol=tolerance, err_msg=case)


def misfits(rank: int, world_size: int) -> list[str]:
    planned = collective("all_reduce", "ring", world_size=world_size, length=4)
    said = []
    for wrong, tensor in (
        (planned, torch.ones(5)),
        (planned, torch.ones(4, dtype=torch.float64)),
        (collective("all_reduce", "ring", world_size=world_size + 1, length=4), torch.ones(4)),
    ):
        try:
            execution.execute(wrong, tensor)
        except ValueError as error:
            said.append(str(error))
    return said


def test_a_tensor_or_a_group_that_does_not_fit_is_refused_before_anything_is_sent(
    four_ranks,
) -> None:
    for said in four_ranks.run(misfits):
        assert len(said) == 3
        assert "brings 4 elements" in said[0]
        assert "element_bytes=8" in said[1]
        assert "for 5 ranks, and here are 4" in said[2]
