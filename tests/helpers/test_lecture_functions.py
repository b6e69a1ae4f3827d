"""The thirteen code cells of the lecture run as it wrote them; those for a GPU end in a sentence,
or run on a fake.
"""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn

import helpers
from helpers import lecture, plotting
from helpers.studies import beyond_memory, working_set
from helpers.training import _loop as loop

# The lecture's calls, cell after cell in one namespace, without its prints and clocks. GPU: what it
# ran on one.
GPU = "needs a GPU"
CELLS = (
    (
        "a processor",
        "our_custom_net = BasicFCModel()\nour_custom_net.cpu()\ndevice = "
        "torch.device('cpu')\nour_custom_net.to(device)",
        "",
    ),
    (
        "a card",
        "if torch.cuda.is_available():\n    our_custom_net.cuda()\n    device = "
        "torch.device('cuda:0')\n    our_custom_net.to(device)",
        "",
    ),
    (
        "a product",
        "a, b = [torch.rand(2**10, 2**10) for _ in range(2)]\nstart = time()\na * b\n"
        "ran_s = time() - start",
        "",
    ),
    ("training on a processor", "our_custom_net.cpu()\ntrain(lenet, MNIST_trainloader)", ""),
    (
        "training on a card",
        "lenet.cuda()\ngpu_trainloader = make_MNIST_loader(batch_size=512)\n"
        "gpu_train(lenet, gpu_trainloader)",
        GPU,
    ),
    (
        "training on two cards",
        "our_custom_net_dp = lenet\nour_custom_net_dp.cuda()\n"
        "our_custom_net_dp = nn.DataParallel(our_custom_net_dp, device_ids=[0, 1])\n"
        "multigpu_trainloader = make_MNIST_loader(batch_size=1024)\n"
        "gpu_train(our_custom_net_dp, multigpu_trainloader)",
        GPU,
    ),
    (
        "starving",
        "lenet.cuda()\ngpu_trainloader = make_MNIST_loader(batch_size=64, num_workers=1)\n"
        "gpu_train(lenet, gpu_trainloader)",
        GPU,
    ),
    ("operations", "lenet.cpu()\nprofile_ops(lenet, shape=(1, 1, 28, 28))", ""),
    ("memory of layers", "profile_layer_mem(lenet)", ""),
    ("past the memory", "estimate_training_for(LeNet, 1000)", ""),
    (
        "out of memory",
        "lenet.cuda()\ngpu_trainloader = make_MNIST_loader(batch_size=6000, num_workers=1)\n"
        "gpu_train(lenet, gpu_trainloader)",
        GPU,
    ),
    (
        "AlexNet",
        "from torchvision.models import alexnet as net\nanet = net()\nprofile_layer_alexnet(anet)",
        "",
    ),
    ("memory of a model", "profile_mem(lenet)", ""),
)


@pytest.fixture
def shown(monkeypatch):
    """The alt texts of what is shown; an estimate has two narrow sizes, which take less than a
    second.
    """
    texts: list[str] = []
    monkeypatch.setattr(plotting, "show", lambda figure, *, alt: texts.append(alt))
    quick = functools.partial(beyond_memory.estimate_training_for, hidden_sizes=(16, 32))
    monkeypatch.setattr(beyond_memory, "estimate_training_for", quick)
    return texts


@pytest.fixture
def fake_cuda(monkeypatch):
    """A CUDA device on which everything stays where it is: the calls run, and nothing is
    measured.
    """
    really_to = nn.Module.to

    def to(self: nn.Module, *args: object, **how: object) -> nn.Module:
        return (
            self if args and torch.device(args[0]).type == "cuda" else really_to(self, *args, **how)
        )

    for module in (lecture, loop):
        monkeypatch.setattr(module, "refuse_without_cuda", lambda what: None)
    monkeypatch.setattr(nn.Module, "cuda", lambda self, device=None: self)
    monkeypatch.setattr(nn.Module, "to", to)


def run(cells: tuple) -> dict:
    names: dict = {}
    exec("from helpers.lecture import *", names)
    for _, code, _ in cells:
        exec(code, names)
    return names


def test_the_cells_without_a_gpu_run_print_and_draw(shown, capsys):
    names = run([cell for cell in CELLS if cell[2] != GPU])
    printed = capsys.readouterr().out
    assert names["ran_s"] > 0
    assert "Epoch 1, 32 steps, loss " in printed
    assert "total operations  295,700" in printed
    assert "conv1    Conv2d     89,856" in printed
    assert " an epoch, " in printed
    assert [text.split(":")[0] for text in shown] == [
        "Pies of the FLOPs of LeNet by layer",
        "Bars of the layers of LeNet",
        "Bars of the layers of LeNet",
        "The estimated time of an epoch of LeNet over its hidden units",
        "Bars of AlexNet's layers, stacked of inputs, outputs and parameters",
        "Pies of the memory of LeNet by kind",
    ]


@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell[2] == GPU], ids=lambda cell: cell[0]
)
def test_a_cell_for_a_gpu_ends_without_one_in_a_sentence(cell, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        RuntimeError, match=r"^LeNet\.cuda\(\) needs a CUDA device, and torch sees none here: "
    ):
        run([cell])


@pytest.mark.parametrize(
    "cell", [cell for cell in CELLS if cell[2] == GPU], ids=lambda cell: cell[0]
)
def test_a_cell_for_a_gpu_runs_on_a_fake(cell, fake_cuda, capsys):
    names = run([cell])
    steps = {
        "training on a card": 8,
        "training on two cards": 4,
        "starving": 63,
        "out of memory": 1,
    }[cell[0]]
    assert f"Epoch 2, {steps} steps, loss " in capsys.readouterr().out
    assert all(torch.isfinite(parameter).all() for parameter in names["lenet"].parameters())


def test_the_lectures_names_are_there_and_the_ten_functions_are_the_courses():
    assert lecture.lenet is lecture.lenet
    assert lecture.lenet.variant == lecture.BasicFCModel().variant == "lecture"
    assert isinstance(lecture.lenet, helpers.LeNet)
    assert lecture.MNIST_trainloader.batch_size == 128
    functions = [
        name
        for name, thing in vars(lecture).items()
        if inspect.isfunction(thing) and name in lecture.__all__
    ]
    assert len(functions) == 8
    public_names = {*helpers.__all__, *beyond_memory.__all__, *working_set.__all__}
    assert {*functions, "LeNet", "BasicFCModel"} <= public_names
    with pytest.raises(
        AttributeError, match=r"'helpers\.lecture' has no attribute 'lenets'; it has BasicFCModel"
    ):
        lecture.lenets  # noqa: B018
