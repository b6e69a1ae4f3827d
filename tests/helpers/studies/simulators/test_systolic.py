"""The simulated array against int64 products, closed formulas, hand-drawn cycles and planted
faults.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from helpers import AlexNet, LeNet, profile_ops
from helpers.studies.simulators import systolic
from helpers.studies.simulators.systolic import _array, model_accesses, model_cycles, simulate

DATAFLOWS = ("weight", "output", "input")
BUFFERED = [
    ("weight", False),
    ("weight", True),
    ("output", False),
    ("input", False),
    ("input", True),
]


def product_of(m, n, k, seed=0):
    draw = np.random.default_rng(seed).integers
    return draw(-99, 100, (m, k)), draw(-99, 100, (k, n))


def sizes(count):
    draw = np.random.default_rng(9)
    return [
        tuple(map(int, (*draw.integers(1, 15, 3), *draw.integers(1, 7, 2)))) for _ in range(count)
    ]


def tiles(size, elements):
    return [min(elements, size - start) for start in range(0, size, elements)]


def cycles_until_the_last_result(m, n, k, rows, columns, dataflow):
    """The formulas, charged for the part of the array that a tile uses; tiles follow each other."""
    if dataflow == "output":
        return sum(
            used_m + used_n + k - 2 + rows
            for used_m in tiles(m, rows)
            for used_n in tiles(n, columns)
        )
    m, n = (n, m) if dataflow == "input" else (m, n)
    return len(tiles(k, rows)) * sum(2 * rows + used + m - 2 for used in tiles(n, columns))


@pytest.mark.parametrize(("dataflow", "double_buffered"), BUFFERED)
def test_products_counts_and_formulas_on_random_sizes(dataflow, double_buffered):
    for m, n, k, rows, columns in sizes(60):
        a, b = product_of(m, n, k)
        how = {"rows": rows, "columns": columns, "dataflow": dataflow}
        run = simulate(a, b, **how, double_buffered=double_buffered)
        assert np.array_equal(run.product, a @ b)
        assert run.product.dtype == np.int64
        assert run.macs == run.active.sum() == m * n * k
        assert run.cycles == len(run.active)
        assert run.utilisation == run.macs / (run.cycles * rows * columns)
        modelled = model_cycles(m, n, k, **how, double_buffered=double_buffered)
        across = {"weight": (k, n), "output": (m, n), "input": (k, m)}[dataflow]
        full = across[0] % rows == across[1] % columns == 0
        assert run.cycles == modelled if full else run.cycles <= modelled
        if not double_buffered:
            assert run.cycles == cycles_until_the_last_result(m, n, k, rows, columns, dataflow)
        accesses = model_accesses(m, n, k, **how)
        assert all(getattr(run, name) == count for name, count in accesses.to_dict().items())


@pytest.mark.parametrize("dataflow", DATAFLOWS)
def test_each_element_works_in_the_cycle_of_the_wavefront(dataflow):
    """On 3 x 5 elements: (r, c) starts r + c cycles after (0, 0), and works without a break."""
    rows, columns, length = 3, 5, 4
    m, n, k = {
        "weight": (length, columns, rows),
        "output": (rows, columns, length),
        "input": (columns, length, rows),
    }[dataflow]
    run = simulate(*product_of(m, n, k), rows=rows, columns=columns, dataflow=dataflow, frames=True)
    at_work = np.stack([frame.active for frame in run.frames])
    start = 0 if dataflow == "output" else rows
    for row in range(rows):
        for column in range(columns):
            first = start + row + column
            assert np.flatnonzero(at_work[:, row, column]).tolist() == list(
                range(first, first + length)
            )
    assert [int(frame.active.sum()) for frame in run.frames] == run.active.tolist()


def test_frames_hold_operands_that_meet_in_the_sum_of_their_place():
    for dataflow in DATAFLOWS:
        a, b = product_of(5, 6, 7)
        run = simulate(a, b, rows=3, columns=4, dataflow=dataflow, frames=True)
        product = np.zeros(a.shape[0] * b.shape[1], dtype=a.dtype)
        for frame in run.frames:
            sums, inputs, filters = (
                places[frame.active] for places in (frame.sums, frame.inputs, frame.filters)
            )
            assert np.array_equal(inputs // 7, sums // 6)
            assert np.array_equal(filters % 6, sums % 6)
            np.add.at(product, sums, a.ravel()[inputs] * b.ravel()[filters])
        assert np.array_equal(product.reshape(5, 6), a @ b)


def test_what_stays_is_loaded_down_the_columns_last_row_first():
    run = simulate(np.eye(3, dtype=int), np.arange(9).reshape(3, 3), rows=3, columns=3, frames=True)
    assert [frame.phase for frame in run.frames] == 3 * ["load"] + (run.cycles - 3) * ["compute"]
    loaded = [frame.filters[:, 0].tolist() for frame in run.frames[:4]]
    assert loaded == [[6, -1, -1], [3, 6, -1], [0, 3, 6], [0, 3, 6]]


def test_numbers_of_other_kinds():
    a, b = np.random.default_rng(0).standard_normal((2, 6, 6))
    for left, right in (
        (a, b),
        (torch.tensor(a, requires_grad=True), torch.tensor(b)),
        (a.tolist(), b.astype(np.float32)),
    ):
        run = simulate(left, right, rows=4, columns=4)
        assert run.product.dtype == np.float64
        assert np.allclose(run.product, a @ b, atol=1e-6)
    ones = simulate(np.ones((200, 300), np.uint8), np.full((300, 1), True), rows=64, columns=1)
    assert ones.product.ravel().tolist() == 200 * [300]
    assert np.array_equal(simulate([[1j]], [[2]], rows=1, columns=1).product, [[2j]])
    infinite = simulate([[1, 2, 3]], [[np.inf], [0], [1]], rows=2, columns=2, dataflow="output")
    # an idle element multiplies nothing, so no 0 x inf
    assert infinite.product.tolist() == [[np.inf]]


def test_an_array_of_256_by_256_elements():
    a, b = product_of(300, 256, 256)
    run = simulate(a, b, rows=256, columns=256)
    assert np.array_equal(run.product, a @ b)
    assert run.cycles == model_cycles(300, 256, 256, rows=256, columns=256)


# Faults planted in the source: each must be seen by an oracle above, also where product and totals
# are right.

FAULTS = {
    "no skew": ("return np.arange(count)", "return 0 * np.arange(count)"),
    "skew on one side": ("_skew(rows), _skew(columns)", "_skew(rows), 0 * _skew(columns)"),
    "filters loaded the wrong way up": ("k0[fold] + self.rows - 1 - steps,", "k0[fold] + steps,"),
    "updated in place, from the left": (
        "        register[:, 1:] = register[:, :-1]\n        register[:, 0] = edge",
        "        register[:, 0] = edge\n        for column in range(1, "
        "register.shape[1]):\n            register[:, column] = register[:, column - 1]",
    ),
    "one operand late": ("_skew(rows), _skew(columns)", "_skew(rows) + 1, _skew(columns)"),
    "a partial tile multiplies its padding": (
        "under_way & (k < self.k) & (n < self.n)",
        "under_way & (k < self.k)",
    ),
    "sums of a second fold overwrite the first": (
        ".reshape(-1)[places] += values",
        ".reshape(-1)[places] = values",
    ),
}


def with_fault(old, new):
    source = Path(_array.__file__).read_text(encoding="utf-8")
    assert source.count(old) == 1
    module = types.ModuleType("faulty")
    sys.modules["faulty"] = module  # dataclasses look their module up
    exec(compile(source.replace(old, new), "faulty", "exec"), module.__dict__)
    # a faulty run may have no end
    module.console = types.SimpleNamespace(track=lambda *_, **__: range(1000))
    return module.simulate


def seen_by(broken, dataflow):
    """Return what notices the fault, of a product of 5 x 6 x 6 on 3 x 4 elements."""
    a, b = product_of(5, 6, 6)
    how = {"rows": 3, "columns": 4, "dataflow": dataflow, "frames": True}
    right = simulate(a, b, **how)
    try:
        wrong = broken(a, b, **how)
    except (IndexError, StopIteration) as ended:
        return {type(ended).__name__: True}
    first = [np.stack([frame.active for frame in run.frames]).argmax(0) for run in (right, wrong)]
    return {
        "product": not np.array_equal(wrong.product, a @ b),
        "cycles": wrong.cycles != right.cycles,
        "macs": wrong.macs != right.macs,
        "wavefront": not np.array_equal(*first),
    }


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_seen(name):
    broken = with_fault(*FAULTS[name])
    assert any(any(seen_by(broken, dataflow).values()) for dataflow in ("weight", "output"))


# Layers as products.

LAYERS = [
    (nn.Conv2d(3, 8, 3, stride=2, padding=1), (2, 3, 9, 11)),
    (nn.Conv2d(6, 8, 3, groups=2, dilation=2), (2, 6, 9, 9)),
    (nn.Conv2d(6, 6, 3, groups=6, padding="same"), (1, 6, 5, 5)),
    (nn.Conv1d(4, 6, 5, padding_mode="circular", padding=2), (3, 4, 12)),
    (nn.Conv3d(2, 4, 2), (2, 2, 4, 4, 4)),
    (nn.Conv2d(3, 4, 2), (3, 5, 5)),
    (nn.Linear(7, 5), (2, 3, 7)),
]


@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: str(value)[:24])
def test_a_layers_product_has_its_macs(layer, shape):
    assert systolic.gemm_of(layer, shape).macs == profile_ops(layer, shape).forward_macs


def test_a_convolution_on_the_array_is_the_convolution():
    """Unfolded by torch, multiplied by the array: whole numbers, so equal to the last bit."""
    layer = nn.Conv2d(6, 4, 3, padding=1, groups=2, bias=False).double()
    with torch.no_grad():
        layer.weight.copy_(torch.randint(-9, 10, layer.weight.shape))
    images = torch.randint(-9, 10, (2, 6, 5, 5)).double()
    gemm = systolic.gemm_of(layer, images.shape)
    patches = (
        nn.functional.unfold(images, 3, padding=1)
        .transpose(1, 2)
        .reshape(-1, gemm.products, gemm.k)
    )
    weights = layer.weight.detach().reshape(gemm.products, gemm.n, gemm.k)
    groups = [
        simulate(patches[:, group], weights[group].T, rows=8, columns=8).product
        for group in range(2)
    ]
    assert groups[0].shape == (gemm.m, gemm.n)
    on_array = (
        torch.tensor(np.concatenate(groups, 1))
        .reshape(2, 25, 4)
        .transpose(1, 2)
        .reshape(2, 4, 5, 5)
    )
    assert torch.equal(on_array, layer(images).detach())


def test_a_network_is_the_sum_of_its_layers_also_as_simulated():
    network = systolic.simulate_network(LeNet(), (2, 1, 28, 28), rows=16, columns=16)
    assert (network.macs, network.other_macs) == (
        profile_ops(LeNet(), (2, 1, 28, 28)).forward_macs,
        0,
    )
    assert [layer.layer for layer in network.layers] == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert network.cycles == sum(layer.cycles for layer in network.layers)
    last = network.layers[-1]
    run = simulate(*product_of(last.m, last.n, last.k), rows=16, columns=16)
    assert run.cycles <= last.cycles < run.cycles + 16 * 16
    assert (run.input_reads, run.filter_reads, run.output_writes) == (
        last.input_reads,
        last.filter_reads,
        last.output_writes,
    )


def test_products_outside_layers_are_told():
    encoder = nn.TransformerEncoderLayer(32, 4)
    network = systolic.simulate_network(encoder, (4, 8, 32), rows=8, columns=8)
    assert network.other_macs == profile_ops(encoder, (4, 8, 32)).forward_macs - network.macs > 0
    assert not any(module._forward_hooks for module in encoder.modules())


def test_alexnet_fills_an_array_whose_side_divides_its_channels():
    """384 channels are 3 tiles of 128, and 1.5 of 256."""
    conv3 = {
        side: systolic.simulate_network(
            AlexNet(towers=1), (128, 3, 224, 224), rows=side, columns=side
        ).layers[2]
        for side in (128, 256)
    }
    assert conv3[128].utilisation_share > 0.98
    assert 0.70 < conv3[256].utilisation_share < 0.75
