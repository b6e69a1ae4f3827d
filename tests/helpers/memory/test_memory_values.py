"""What a model asks of its masks and lengths, and how operators are run that are too large to
run.
"""

from __future__ import annotations

import pytest
import torch
from memory_models import CONFIGURATIONS, Adam
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from helpers.memory import (
    ModelError,
    _probing as probing,
    _tracer as tracer,
    estimate_peak_memory,
    measure_peak_memory,
)

MASK = torch.ones(4, 16, dtype=torch.long)
HALF = MASK.clone()
HALF[:, 8:] = 0


class Asks(nn.Linear):
    """Stores a tensor of its own size for each answer, so that a wrong one shows in the peak."""

    def __init__(self, asked):
        super().__init__(16, 16)
        self.asked = asked
        self.register_buffer("positions", torch.arange(16))

    def forward(self, x, mask):
        return super().forward(x) + torch.zeros(self.asked(self, x, mask), 4, 16).sum(0)


def converted(_, x, mask):
    return 50 if mask.to(device=x.device, dtype=torch.bool).all() else 500


def counted_at_run_time(_, x, mask):
    return 10 * int(mask.sum(1).max()) + 7 * len(mask.nonzero()) + mask[:, 3:].tolist()[0][0]


def written_in_place(_, x, mask):
    own = torch.ones(4, 16, dtype=torch.long, device=x.device)
    view = own[:, 2:]
    view.masked_fill_(mask[:, 2:] == 0, 3)
    own.add_(1)
    return int(own.sum())


def from_a_buffer(module, x, mask):
    return 10 * int(module.positions[-1])


def selected(_, x, mask):
    return len(x[mask.bool()]) * 20


def compared(_, x, mask):
    return 100 if torch.equal(mask, torch.ones_like(mask)) else 300


@pytest.mark.parametrize(
    "asked", [converted, counted_at_run_time, written_in_place, from_a_buffer, selected, compared]
)
@pytest.mark.parametrize("mask", [MASK, HALF], ids=["ones", "half"])
@pytest.mark.parametrize("training", [False, True])
def test_the_answer_is_that_of_a_real_run(asked, mask, training):
    given = (torch.zeros(4, 16), mask)
    estimate = estimate_peak_memory(Asks(asked), given, training=training)
    assert (
        estimate.peak_bytes == measure_peak_memory(Asks(asked), given, training=training).peak_bytes
    )
    assert estimate.uncertain == ()


@pytest.mark.parametrize(
    "asked",
    [
        lambda _, x, mask: int((x > 0).sum()),
        lambda _, x, mask: int(mask.copy_(x).sum()),
        lambda _, x, mask: len(x[(x > 0)]),
        lambda _, x, mask: int(torch.randint(5, (1,), generator=torch.Generator())),
    ],
    ids=[
        "activations",
        "written from activations",
        "selected by activations",
        "drawn from its own generator",
    ],
)
def test_what_hangs_on_activations_or_on_a_generator_of_its_own_is_refused(asked):
    with pytest.raises(ModelError, match="looks at the values"):
        estimate_peak_memory(Asks(asked), (torch.zeros(4, 16), MASK), training=False)


@pytest.mark.parametrize(
    "asked",
    [
        lambda _, x, mask: 500 if torch.rand([]) < 0.0 else 50,  # dropping layers, switched off
        lambda _, x, mask: 70 + 0 * int(mask.bernoulli_(0.5).sum()),
        lambda _, x, mask: 50 * (len(x[torch.rand(4) < 2.0]) + len(torch.rand(3).nonzero())),
    ],
    ids=["compared", "drawn into", "selected"],
)
def test_one_draw_is_taken_and_said(asked):
    model, given = Asks(asked), (torch.zeros(4, 16), MASK)
    state = torch.get_rng_state()
    estimate = estimate_peak_memory(model, given, training=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert estimate.peak_bytes == measure_peak_memory(model, given, training=False).peak_bytes
    assert estimate.uncertain == (
        "the step asks what a random draw gave: one draw was taken, another may differ",
    )


class Clamps(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        if not torch.isfinite(y).all() or y.isinf().any():
            y = y.clamp(-1, 1) * torch.ones(50, *y.shape)
        return y


def test_activations_are_taken_for_finite_numbers_and_it_is_said():
    estimate = estimate_peak_memory(Clamps(16, 16), (4, 16))
    assert estimate.peak_bytes == measure_peak_memory(Clamps(16, 16), (4, 16)).peak_bytes
    assert estimate.uncertain == (
        "the model asks whether its activations are finite numbers: they are taken so",
    )


class WritesByMask(nn.Linear):
    def forward(self, x, mask):
        y = super().forward(x)
        y[mask.bool()[:, 0]] = torch.ones(2, 16, device=x.device)
        return y


def test_writing_where_a_mask_is_set_is_run_alone():
    given = (torch.zeros(4, 16), torch.tensor([1, 0, 1, 0]).repeat(16, 1).t())
    estimate = estimate_peak_memory(WritesByMask(16, 16), given)
    assert estimate.peak_bytes == measure_peak_memory(WritesByMask(16, 16), given).peak_bytes
    assert estimate.uncertain == ()


def test_the_callers_mask_stays_as_it_is():
    mask = MASK.clone()
    estimate_peak_memory(
        Asks(lambda _, x, mask: int(mask.mul_(3).sum())), (torch.zeros(4, 16), mask), training=False
    )
    assert torch.equal(mask, MASK)


class Transposed(nn.Module):
    """A layer norm with its result transposed: the gradient that it sends back lies otherwise than
    the fake one.
    """

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(24, 24), nn.LayerNorm(24)

    def forward(self, x):
        return self.norm(self.linear(x)).transpose(1, 2).contiguous().sin()


def test_a_result_that_lies_otherwise_than_pytorch_says_is_traced_as_it_lies(monkeypatch):
    traces, real = [], tracer.trace_step
    monkeypatch.setattr(
        tracer, "trace_step", lambda *args: traces.append(real(*args)) or traces[-1]
    )
    estimate = estimate_peak_memory(Transposed(), (2, 64, 24))
    assert estimate.peak_bytes == measure_peak_memory(Transposed(), (2, 64, 24)).peak_bytes
    name = "native_layer_norm_backward"
    sent = [
        [each.made_storages[0].strides for each in t.events if getattr(each, "name", "") == name]
        for t in traces
    ]
    assert [strides[-1] for strides in sent] == [(1536, 1, 64), (1536, 24, 1)]


@pytest.mark.parametrize("name", ["LeNet b64", "AlexNet b16", "ViT-B/16 b4", "MHA with weights b8"])
def test_at_small_sizes_operators_take_what_they_take_at_their_own(name, monkeypatch):
    configuration = next(each for each in CONFIGURATIONS if each.name == name)
    make, shape = configuration.light or (configuration.make, configuration.shape)
    how = {"optimizer": Adam}
    monkeypatch.setattr(probing, "_LARGE_BYTES", 2**60)
    as_they_are = estimate_peak_memory(make(), shape, **how)
    monkeypatch.setattr(probing, "_LARGE_BYTES", -1)
    assert estimate_peak_memory(make(), shape, **how) == as_they_are


def test_a_large_product_that_copies_an_operand_is_known_to(monkeypatch):
    """The gradient of a sum is one number for every element: the product copies it before it reads
    it.
    """
    expected = measure_peak_memory(nn.Linear(500, 300), (200, 500)).peak_bytes
    monkeypatch.setattr(probing, "_LARGE_BYTES", 0)
    assert estimate_peak_memory(nn.Linear(500, 300), (200, 500)).peak_bytes == expected
    monkeypatch.setattr(probing, "_inside_at_full_size", lambda *_: 0)
    assert estimate_peak_memory(nn.Linear(500, 300), (200, 500)).peak_bytes < expected


class Packed(nn.Module):
    """An embedding, a recurrent layer over sequences packed by their lengths, and a layer over what
    is padded again.
    """

    def __init__(self, kind, **options):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.LazyLinear(3)
        self.recurrent = kind(8, 6, batch_first=True, **options)

    def forward(self, tokens, lengths):
        packed = pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)[0])


@pytest.mark.parametrize(
    "how", [{"training": False}, {"optimizer": torch.optim.Adam}], ids=["inference", "training"]
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(nn.LSTM, {"num_layers": 2, "bidirectional": True}), (nn.GRU, {}), (nn.RNN, {})],
)
def test_lengths_of_packed_sequences_are_known(kind, options, how):
    given = torch.zeros(4, 7, dtype=torch.long), torch.tensor([7, 3, 5, 2])
    model = Packed(kind, **options)
    model(*given)
    estimate = estimate_peak_memory(model, given, **how)
    assert estimate.peak_bytes == measure_peak_memory(model, given, **how).peak_bytes
    assert estimate.uncertain == ()
    shorter = given[0], torch.tensor([2, 3, 1, 2])
    assert estimate_peak_memory(model, shorter, **how).peak_bytes < estimate.peak_bytes
    packed = pack_padded_sequence(
        torch.zeros(4, 7, 8), given[1], batch_first=True, enforce_sorted=False
    )
    of_packed = [
        function(model.recurrent, packed, **how).peak_bytes
        for function in (estimate_peak_memory, measure_peak_memory)
    ]
    assert of_packed[0] == of_packed[1]


def test_lengths_that_are_computed_are_not_known():
    model = Packed(nn.LSTM)
    tokens = torch.zeros(4, 7, dtype=torch.long)
    model(tokens, torch.tensor([7, 3, 5, 2]))
    model.register_forward_pre_hook(
        lambda m, given: (given[0], (m.embed(given[0]).sum((1, 2)) * 0 + 5).long())
    )
    with pytest.raises(
        ModelError, match=r"looks at the values of a tensor .*_pack_padded_sequence"
    ):
        estimate_peak_memory(model, (tokens, tokens[:, 0]), training=False)


class Labels(nn.Module):
    """Computes its own loss, from rows of a table of ten and one of five classes a row."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 4), nn.Linear(4, 5)

    def forward(self, rows, classes):
        return nn.functional.cross_entropy(self.head(self.table(rows)), classes)


@pytest.mark.parametrize("function", [estimate_peak_memory, measure_peak_memory])
@pytest.mark.parametrize(
    ("rows", "classes"), [([0, 10], [0, 4]), ([-1, 9], [0, 4]), ([0, 9], [0, 5]), ([0, 9], [-1, 4])]
)
def test_an_index_out_of_range_is_refused_as_by_the_real_run(function, rows, classes):
    with pytest.raises(ModelError, match="raised IndexError: "):
        function(Labels(), (torch.tensor(rows), torch.tensor(classes)))
    function(Labels(), (torch.tensor([0, 9]), torch.tensor([4, -100])))  # -100 is passed over


class Halves(nn.Linear):
    def forward(self, x):
        return torch.ops.aten.mul.Tensor(0.5, super().forward(x))


def test_a_number_may_stand_before_the_tensor_that_it_multiplies():
    model = Halves(4, 2)
    estimate = estimate_peak_memory(model, (3, 4))
    assert estimate.peak_bytes == measure_peak_memory(model, (3, 4)).peak_bytes
