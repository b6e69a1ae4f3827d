"""AlexNet's two towers are the grouped net, and what they keep and send is counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import nn

from helpers.models import AlexNet, LeNet
from helpers.studies.parallel_plans._towers import LOGITS, AlexNetTower, model_towers

SIZES = {
    "small": {"classes": 10, "size": 63, "channels": (8, 16, 24, 24, 16), "hidden": 32},
    "uneven": {"classes": 6, "size": 97, "channels": (4, 6, 10, 14, 22), "hidden": 18},
}


def made(name: str = "small", **more) -> AlexNet:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return AlexNet(**SIZES[name] | more).double()


def whole() -> AlexNet:
    with torch.device("meta"):
        return AlexNet()


@pytest.mark.parametrize("name", SIZES)
def test_towers_that_gather_are_the_grouped_net(name) -> None:
    net, placed, met = made(name).eval(), {}, Barrier(2)
    images = torch.randn(3, 3, net.size, net.size, dtype=torch.float64, generator=torch.Generator().manual_seed(6))

    def tower(rank: int) -> torch.Tensor:
        def gather(values: torch.Tensor, place: str) -> torch.Tensor:
            placed[place, rank] = values
            met.wait(timeout=60)
            return torch.cat([placed[place, 0], placed[place, 1]], dim=1)

        return AlexNetTower(net, rank, gather=gather)(images)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(tower, range(2)))
    assert all(torch.allclose(logits, net(images), rtol=0, atol=1e-12) for logits in found)
    moved = {each.layer: each.moved_bytes for each in model_towers(net, batch=3).layers if each.moved_bytes}
    sent = {place: 2 * values.nbytes for (place, _), values in placed.items()}
    sent["fc8"] += sent.pop(LOGITS)
    assert moved == sent


def test_the_paper_s_net_halves_and_moves_a_quarter_of_a_megabyte_an_image() -> None:
    model = model_towers(whole(), batch=1)
    assert (model.parameters, model.rank_parameters) == (60_965_224, 30_482_612)
    crossing = {"conv3": 256 * 13 * 13, "fc6": 256 * 6 * 6, "fc7": 4096, "fc8": 4096 + 1000}
    assert {each.layer: each.moved_bytes for each in model.layers if each.moved_bytes} == {
        name: 4 * numbers for name, numbers in crossing.items()
    }
    assert model.moved_bytes == 246_688
    assert model.returned_bytes == 246_688 - 4 * 1000


def test_what_a_rank_keeps_is_half_but_for_what_it_reads_whole() -> None:
    model = model_towers(whole(), batch=128)
    for each in model.layers:
        assert 2 * each.rank_parameter_bytes == each.whole_parameter_bytes
        reads_whole = each.layer in ("conv1", *AlexNet.CROSSING)  # the images, or the maps of all towers
        assert each.rank_saved_bytes * (1 if reads_whole else 2) == each.whole_saved_bytes, each.layer
        assert (each.reads == "all towers") == (each.layer in AlexNet.CROSSING)
    states = 3 * 4 * model.parameters  # values, gradients, momentum
    assert model.whole_bytes == states + sum(each.whole_saved_bytes for each in model.layers)
    assert model.rank_bytes == states // 2 + sum(each.rank_saved_bytes for each in model.layers)
    # The largest batches are the last to fit.
    for largest, kept in ((model.whole_largest_batch, "whole_bytes"), (model.rank_largest_batch, "rank_bytes")):
        fits, too_many = (getattr(model_towers(whole(), batch=largest + more), kept) for more in (0, 1))
        assert fits <= model.card_bytes < too_many
    assert model_towers(whole(), batch=1, card_bytes=states // 2).whole_largest_batch == 0


def test_saved_bytes_are_what_autograd_really_saves() -> None:
    net, saved = made().float(), {}
    parameters = {each.untyped_storage().data_ptr() for each in net.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in parameters:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = net(torch.zeros(5, 3, 63, 63))
    assert logits.requires_grad
    really = sum(each.untyped_storage().nbytes() for each in saved.values())
    assert sum(each.whole_saved_bytes for each in model_towers(net, batch=5).layers) == really


def test_a_tower_has_the_rows_of_the_whole_net_and_their_copy() -> None:
    net = made()
    towers = [AlexNetTower(net, rank, gather=lambda values, _: values) for rank in range(2)]
    for name, each in net.named_parameters():
        parts = [dict(tower.named_parameters())[name] for tower in towers]
        assert torch.equal(torch.cat(parts), each)
        assert parts[0].data_ptr() != each.data_ptr()
    assert {layer.groups for layer in towers[0].modules() if isinstance(layer, nn.Conv2d)} == {1}


def test_what_cannot_be_is_refused_in_words() -> None:
    net = made()
    with pytest.raises(ValueError, match="9 classes do not divide among 2 towers"):
        model_towers(made(classes=9))
    with pytest.raises(ValueError, match="this AlexNet is one tower"):
        model_towers(made(towers=1))
    with pytest.raises(TypeError, match="got a LeNet"):
        model_towers(LeNet())
    with pytest.raises(ValueError, match="rank 2 has no tower"):
        AlexNetTower(net, 2, gather=lambda values, _: values)
    with pytest.raises(ValueError, match="any batch would fit"):
        model_towers(whole().requires_grad_(requires_grad=False))
    with pytest.raises(ValueError, match="batch=0 is too small"):
        model_towers(net, batch=0)
