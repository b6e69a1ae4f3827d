"""A mixture of experts on four ranks is the loop over tokens written out here; traps are seen to differ."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from helpers.parallel import Experts, compare_experts, exchange_of, model_expert_traffic, route
from helpers.parallel._experts import _AllToAll

TOLERANCE, WRONG = 1e-12, 1e-3
SETTINGS = [(1, None), (1, 1.0), (2, 1.25), (2, None), (3, 0.5)]


def made(chosen: int = 1, factor: float | None = None, experts: int = 8) -> Experts:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return Experts(6, 10, experts=experts, chosen=chosen, capacity_factor=factor).double()


def tokens(number: int = 48) -> torch.Tensor:
    return torch.randn(number, 6, generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def written_out(net: Experts, given: torch.Tensor) -> torch.Tensor:
    """The oracle: each token by itself through each of its experts, first choices before second ones."""
    weight = net.router.weight
    chances = [(weight @ token).softmax(0) for token in given]
    picked = [torch.argsort(each, descending=True)[: net.chosen].tolist() for each in chances]
    taken = dict.fromkeys(range(net.experts), 0)
    rows = [torch.zeros_like(token) for token in given]
    for choice in range(net.chosen):
        for place, token in enumerate(given):
            expert = picked[place][choice]
            taken[expert] += 1
            if taken[expert] > net.capacity(len(given)):
                continue
            whole = sum(chances[place][each] for each in picked[place]) if net.chosen > 1 else 1
            answer = torch.relu(token @ net.up[expert]) @ net.down[expert]
            rows[place] = rows[place] + chances[place][expert] / whole * answer
    return torch.stack(rows)


@pytest.mark.parametrize(("chosen", "factor"), SETTINGS)
def test_one_process_is_the_loop_written_out(chosen, factor) -> None:
    net, given = made(chosen, factor), tokens(20)
    torch.testing.assert_close(net(given), written_out(net, given))
    weights = torch.randn_like(given)
    parameters = list(net.parameters())
    gradients = (torch.autograd.grad(each, parameters, weights) for each in (net(given), written_out(net, given)))
    for found, oracle in zip(*gradients, strict=True):
        torch.testing.assert_close(found, oracle)


@pytest.mark.parametrize(("chosen", "factor"), SETTINGS)
def test_ranks_are_one_process_and_send_what_was_modelled(four_ranks, chosen, factor) -> None:
    net = made(chosen, factor)
    run = compare_experts(four_ranks, net, tokens(), tolerance=TOLERANCE)
    assert run.agreement.equal
    assert run.sent == model_expert_traffic(net, tokens=12, ranks=4)
    assert sum(each.tokens for each in run.loads) == 48 * chosen
    assert run.dropped == sum(each.dropped for each in run.loads)
    assert (run.dropped == 0) == (factor is None)
    assert {each.rank for each in run.loads[2:4]} == {1}
    assert run.rank_parameters == (8 * 6 + 2 * 2 * 6 * 10,) * 4


def test_bytes_are_three_quarters_of_all_queues_twice_in_each_pass() -> None:
    sent = model_expert_traffic(made(2, 1.0), tokens=12, ranks=4)
    assert sent.forward_bytes == sent.backward_bytes == 2 * 3 * (8 * 3 * 6 * 8) // 4  # capacity 3: 1.0 x 2 x 12 / 8


def test_a_capacity_is_rounded_up_from_what_was_written_and_not_from_its_nearest_float() -> None:
    def capacity(factor: float, tokens: int, experts: int) -> int:
        return Experts(2, 2, experts=experts, capacity_factor=factor).capacity(tokens)

    assert 1.1 * 100 > 110
    assert [capacity(1.1, tokens, 10) for tokens in (100, 101)] == [11, 12]
    assert [capacity(factor, 60, 6) for factor in (1, 1.25, 0.3, 1e-9, 100.0)] == [10, 13, 3, 1, 60]


def test_where_everyone_wants_one_expert_it_takes_its_capacity_and_the_others_nothing(four_ranks) -> None:
    net = made(1, 1.0)
    with torch.no_grad():
        net.router.weight.zero_()[5] = 9.0
    run = compare_experts(four_ranks, net, tokens().abs(), tolerance=TOLERANCE)
    assert run.agreement.equal
    assert [each.tokens for each in run.loads] == [0, 0, 0, 0, 0, 48, 0, 0]
    assert run.dropped == run.loads[5].dropped == 48 - 4 * 2  # two of each rank's twelve: 12 tokens / 8 experts, up


def test_dropping_is_by_rank_and_the_whole_batch_in_one_queue_is_another_net() -> None:
    net, given = made(1, 1.0), tokens()
    apart = torch.cat([net(part) for part in given.chunk(4)])
    assert (net(given) - apart).abs().max() > WRONG
    free = made(1, None)
    torch.testing.assert_close(free(given), torch.cat([free(part) for part in given.chunk(4)]))


def scrambled():
    """The trap: answers are sent back as they lie, by expert, where all_to_all wants them by rank."""
    there, _ = exchange_of()
    ranks = dist.get_world_size()
    return there, lambda answers: _AllToAll.apply(answers.reshape(ranks * len(answers), -1, answers.shape[2]), None)


def stays_at_home():
    """The trap: no tokens travel, and every rank's first experts take those of its own others."""
    ranks = dist.get_world_size()
    return (lambda queues: torch.cat(queues.chunk(ranks), dim=1),
            lambda answers: torch.cat(answers.chunk(ranks, dim=1)))  # fmt: skip


@pytest.mark.parametrize("exchange", [scrambled, stays_at_home])
def test_a_wrong_exchange_is_seen(four_ranks, exchange) -> None:
    run = compare_experts(four_ranks, made(2), tokens(), exchange=exchange, tolerance=TOLERANCE)
    assert not run.agreement.equal
    assert run.agreement.gradient_difference > WRONG


def test_routing_gives_first_choices_the_first_places() -> None:
    logits = torch.tensor([[3.0, 2.0, 0.0], [3.0, 2.0, 0.0], [2.0, 3.0, 0.0]])
    routing = route(logits, chosen=2, capacity=2)
    assert routing.chosen.tolist() == [[0, 1], [0, 1], [1, 0]]
    assert routing.places.tolist() == [[0, 1], [1, 2], [0, 2]]
    assert routing.kept.tolist() == [[True, True], [True, False], [True, False]]
    torch.testing.assert_close(routing.gates.sum(1), torch.ones(3))


@pytest.mark.parametrize(("experts", "message"), [(3, "3 experts do not divide among 4 ranks; take a multiple of 4"),
                                                  (6, "6 experts do not divide among 4 ranks")])  # fmt: skip
def test_experts_that_do_not_go_round_are_refused(four_ranks, experts, message) -> None:
    with pytest.raises(ValueError, match=message):
        compare_experts(four_ranks, made(experts=experts), tokens())


def test_other_things_that_cannot_be_are_refused(four_ranks) -> None:
    with pytest.raises(ValueError, match="50 tokens do not divide among 4 ranks"):
        compare_experts(four_ranks, made(), tokens(50))
    with pytest.raises(ValueError, match="chosen=9 is too large; give a whole number, 1 to 8"):
        made(9)
    with pytest.raises(ValueError, match=r"capacity_factor .None drops nothing.=0; give a finite number above 0"):
        made(1, 0.0)
    for factor in ("1.5", True, float("nan")):
        with pytest.raises((TypeError, ValueError), match="give a finite number above 0"):
            made(1, factor)
    with pytest.raises(ValueError, match=r"tokens are torch\.int64 and the experts torch\.float64"):
        made()(torch.ones(2, 6, dtype=torch.long))
    for logits, chosen in ((torch.zeros(2, 3, 4), 1), (torch.zeros(3, 4), 5), (torch.zeros(3, 4), 0)):
        with pytest.raises(ValueError, match="cannot be chosen by logits of shape"):
            route(logits, chosen=chosen, capacity=1)
    with pytest.raises(ValueError, match="tokens=0 is too small"):
        model_expert_traffic(made(), tokens=0, ranks=4)
    with pytest.raises(ValueError, match=r"give \(n, 6\)"):
        made()(torch.zeros(2, 3, 6))
    with pytest.raises(ValueError, match="rank=4 is too large; give a whole number, 0 to 3"):
        made().part(4, ranks=4)
