import itertools

import pytest
import torch
from hypothesis import given, strategies as st
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from torch.nn import functional

from helpers import native
from helpers.operations import profile_ops
from helpers.studies import _triton, attention
from helpers.studies._paper import COMPUTING, DATA, SENDING
from helpers.studies.simulators import CacheLevel, simulate_caches
from tests.properties import repeatable


def tensors(*lead, tokens=12, keys=None, width=4, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = (tokens, keys or tokens, keys or tokens)
    return [torch.randn(*lead, size, width, generator=generator, dtype=dtype) for size in sizes]


def reference(query, key, value, causal=False):
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


def plain(query, key, value):
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(dim=-1) @ value


# --- results ---


SIDES = st.integers(1, 16)


@repeatable(examples=40)
@given(SIDES, st.none() | SIDES, SIDES, SIDES, st.integers(1, 5), st.integers(0, 99))
def test_tiles_are_pytorchs_attention(tokens, keys, rows, columns, width, seed):
    """As many keys as queries are causal, which is None here."""
    causal = keys is None
    query, key, value = tensors(2, 3, tokens=tokens, keys=keys, width=width, seed=seed)
    output, log_sum = attention.in_tiles(
        query, key, value, rows=rows, columns=columns, causal=causal
    )
    torch.testing.assert_close(output, reference(query, key, value, causal))
    scores = query @ key.mT / width**0.5
    if causal:
        scores = scores.masked_fill(
            torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -torch.inf
        )
    torch.testing.assert_close(log_sum[..., 0], scores.logsumexp(dim=-1))


def test_large_scores_do_not_overflow():
    query, key, value = tensors(tokens=5, keys=9, dtype=torch.float32)
    expected = reference(40 * query, 40 * key, value)
    assert (1600 * (query @ key.mT)).max() > 89  # the exponential of which is infinite in float32
    torch.testing.assert_close(
        attention.in_tiles(40 * query, 40 * key, value, rows=2, columns=4)[0], expected
    )


# --- what is kept, and what is computed ---


@pytest.mark.parametrize("tokens", [64, 256])
def test_kept_for_backward_by_formula(tokens):
    given = tensors(2, tokens=tokens, width=16, dtype=torch.float32)
    own = given[0].nbytes
    assert attention.saved_bytes(plain, *given) == 3 * own + own * tokens // 16


def test_causal_tiles_are_a_triangle_of_the_work():
    class Causal(torch.nn.Module):
        def forward(self, *given):
            return attention.in_tiles(*given, rows=4, columns=4, causal=self.causal)[0]

    given, macs = tuple(tensors(2, tokens=32, width=16, dtype=torch.float32)), {}
    for causal in (False, True):
        model = Causal()
        model.causal = causal
        macs[causal] = profile_ops(model, given).forward_macs
    assert macs[False] == 2 * 2 * 32 * 32 * 16
    assert macs[True] * 8 * 8 == macs[False] * len(
        attention.tiles_of(32, rows=4, columns=4, causal=True)
    )
    assert len(attention.tiles_of(32, rows=4, columns=4, causal=True)) == 36


def test_plain_attention_passes_its_scores_six_times_forward_and_nine_times_backward():
    """By hand, operator after operator: what each reads and writes, and their gradients."""
    query, key, value, gradient = (tensor.requires_grad_() for tensor in torch.randn(4, 2, 32, 8))
    rows = attention.count_passes(
        plain, query.detach(), key.detach(), value.detach(), scores=2 * 32 * 32
    )
    assert [(row.operator, row.reads, row.writes) for row in rows] == [
        ("bmm", 0, 1),
        ("div", 1, 1),
        ("_softmax", 1, 1),
        ("bmm", 1, 0),
    ]
    whole = attention.count_passes(
        lambda: torch.autograd.grad(plain(query, key, value), (query, key, value), gradient),
        scores=2 * 32 * 32,
    )
    assert sum(row.reads + row.writes for row in whole) == 15


def test_a_pass_is_of_whole_matrices_and_views_move_nothing():
    scores = torch.ones(4, 4)
    assert [
        (row.operator, row.reads, row.writes)
        for row in attention.count_passes(lambda x: x.div_(2), torch.ones(4, 4), scores=16)
    ] == [("div_", 1, 1)]
    rows = attention.count_passes(lambda x: (x.mT.reshape(4, 4)[:2] * 2, x + x), scores, scores=16)
    assert [(row.operator, row.reads, row.writes) for row in rows if row.reads + row.writes] == [
        ("add", 2, 1)
    ]
    with pytest.raises(TypeError, match="function"):
        attention.count_passes(3, scores, scores=16)
    with pytest.raises(ValueError, match="scores=0"):
        attention.count_passes(plain, scores=0)


# --- drawings ---


def test_the_units_of_tiles_are_drawn_with_their_numbers():
    drawn = attention.draw_units((16, 32), modelled=(258, 130), simulated=(258, 131), title="units")
    axes = drawn.axes[0]
    assert [text.get_text() for text in axes.texts] == ["258", "131"]
    assert [list(line.get_ydata()) for line in axes.lines] == [[258, 130], [258, 131]]


def test_a_tile_of_the_backward_pass_adds_to_its_row_and_its_column():
    axes = attention.draw_backward_tile().axes[0]
    blocks = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    places = {"read": DATA, "computed": COMPUTING, "added to": SENDING}
    held = {
        name: [
            patch.get_xy() for patch in blocks if to_hex(patch.get_facecolor()) == colour.lower()
        ]
        for name, colour in places.items()
    }
    [(left, top)] = held["computed"]
    # the rows of queries, and above them the columns of keys
    assert {y for x, y in held["read"]} & {top}
    assert {x for x, y in held["read"]} & {left}
    (of_queries, of_keys) = held["added to"]
    assert (of_queries[1], of_keys[0]) == (top, left)


# --- bytes ---

TILED = ("products in tiles", "queries outside", "keys outside")


def test_the_lessons_bytes_by_hand():
    """512 tokens of width 64: Q has 131,072 bytes, the table 8 times as many, and the cache half of
    them.
    """
    own = 512 * 64 * 4
    found = {order: attention.count_bytes(512, 64, order=order) for order in attention.ORDERS}
    in_units = {
        order: (each.read_bytes / own, each.written_bytes / own) for order, each in found.items()
    }
    assert in_units == {
        "row by row": (1058, 25),
        "products in tiles": (50, 25),
        "queries outside": (18, 1),
        "keys outside": (18, 8),
    }
    reads = {
        sides: attention.count_bytes(
            512, 64, order="queries outside", rows=sides[0], columns=sides[1]
        ).read_bytes
        / own
        for sides in ((32, 64), (128, 32))
    }
    assert reads == {(32, 64): 34, (128, 32): 10}
    too_tall = attention.count_bytes(512, 64, order="queries outside", rows=256, columns=16)
    assert too_tall.read_bytes / own > 30  # Q's block alone fills the cache


@pytest.mark.parametrize("order", TILED)
@pytest.mark.parametrize("sides", [(32, 32), (64, 16), (16, 64)])
def test_the_formula_is_what_the_simulated_cache_moves(order, sides):
    how = {"order": order, "rows": sides[0], "columns": sides[1]}
    assert attention.count_bytes(256, 32, cache_bytes=30_720, **how) == attention.model_bytes(
        256, 32, **how
    )


def test_the_formula_of_row_by_row():
    small = {"order": "row by row", "cache_bytes": 8192}
    assert attention.count_bytes(128, 32, **small) == attention.model_bytes(
        128, 32, order="row by row"
    )


@pytest.mark.parametrize("order", attention.ORDERS)
def test_a_stream_touches_what_its_order_says(order):
    stream = attention.stream(64, 16, order=order, rows=16, columns=16)
    assert stream.access_bytes == 64
    own, table = 64, 64 * 64 * 4 // 64  # lines of Q, and of the table
    touched = set(stream.addresses.tolist())
    assert len(touched) == 4 * own + (table if order in attention.ORDERS[:2] else 0)
    writes = {
        "row by row": own + 3 * table,
        "products in tiles": own + 3 * table,
        "queries outside": own,
        "keys outside": 4 * own,
    }[order]
    assert int(stream.writes.sum()) == writes
    everything = simulate_caches(stream, [CacheLevel(2**20)])
    assert everything.memory_read_bytes == 64 * len(touched)


def test_causal_tiles_by_hand():
    assert attention.tiles_of(8, rows=4, columns=2, causal=True) == (
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
    )


@repeatable(examples=60)
@given(
    st.integers(1, 40),
    st.data(),
    st.booleans(),
    st.sampled_from(["queries outside", "keys outside"]),
)
def test_tiles_hold_every_pair_that_attends_and_come_in_their_order(tokens, data, causal, order):
    rows, columns = (
        data.draw(st.sampled_from([side for side in range(1, tokens + 1) if tokens % side == 0]))
        for _ in range(2)
    )
    tiles = attention.tiles_of(tokens, rows=rows, columns=columns, order=order, causal=causal)
    pairs = itertools.product(range(tokens), repeat=2)
    holding = {
        (query // rows, key // columns) for query, key in pairs if not causal or key <= query
    }
    assert list(tiles) == sorted(
        holding, key=lambda tile: tile if order == "queries outside" else tile[::-1]
    )


# --- the kernel ---

INTERPRETED = [(64, 16, 32, 32, False), (50, 32, 16, 32, True)]


def _has_triton():
    try:
        _triton.load()
    except native.MissingToolError:
        return False
    return True


@pytest.mark.skipif(not _has_triton(), reason="no Triton")
@pytest.mark.parametrize(("tokens", "width", "rows", "columns", "causal"), INTERPRETED)
def test_the_kernel_is_right_in_the_interpreter(tokens, width, rows, columns, causal):
    given = tensors(2, tokens=tokens, width=width, dtype=torch.float32)
    output, log_sum = attention.interpret(*given, rows=rows, columns=columns, causal=causal)
    torch.testing.assert_close(output, reference(*given, causal), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        log_sum, attention.in_tiles(*given, causal=causal)[1], rtol=1e-5, atol=1e-5
    )


@pytest.mark.skipif(not _has_triton(), reason="no Triton")
def test_the_kernel_compiles_for_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from helpers.studies.attention import _kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    triton, _kernel.tl = _triton.load()
    kernel = triton.jit(_kernel.attention_kernel)
    given = {"WIDTH": 64, "ROWS": 64, "COLUMNS": 64, "CAUSAL": True}
    kinds = dict.fromkeys(("query", "key", "value", "output", "log_sum"), "*fp32") | {
        "scale": "fp32"
    }
    kinds |= dict.fromkeys(given, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in given.items()}
    made = compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants),
        target=GPUTarget("cuda", 80, 32),
    )
    assert len(made.asm["cubin"]) > 1000


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_kernel_is_right_on_a_gpu():
    from helpers.studies.attention import _kernel

    for causal in (False, True):
        given = [each.cuda() for each in tensors(3, tokens=300, width=64, dtype=torch.float32)]
        how = {"rows": 64, "columns": 32, "causal": causal}
        output, log_sum = _kernel.attend(*given, how)
        torch.testing.assert_close(output, reference(*given, causal), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            log_sum, attention.in_tiles(*given, causal=causal)[1], rtol=1e-4, atol=1e-5
        )


def test_the_kernels_source_is_there_to_read():
    assert "tl.dot(q, tl.trans(k)" in attention.kernel_source()


# --- published ---


def test_flash_attentions_flops_are_not_those_of_its_caption():
    heads, tokens, width = 64 * 16, 1024, 64
    product = 2 * heads * tokens**2 * width
    standard, flash = attention.FLASH_TABLE
    assert round(6 * product / standard.flops, 1) == 12.4
    assert round(7 * product / flash.flops, 1) == 12.8
    table = 2 * heads * tokens**2
    assert round(standard.memory_bytes / table, 1) == 18.8


def test_flash_attention_2s_rate_with_half_of_the_scores():
    row = attention.FLASH_2_TRAINING[0]
    scores = 12 * row.layers * row.width * row.tokens
    share = (6 * row.parameters + scores / 2) / (6 * row.parameters + scores)
    assert round(share * row.flops_per_s / 1e12) == 188
    assert row.flops_per_s / row.peak_share == pytest.approx(312e12, rel=0.01)  # an A100's peak


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: attention.in_tiles(1, 2, 3), ValueError, "query is a tensor"),
        (
            lambda: attention.in_tiles(*tensors(tokens=3, keys=5), causal=True),
            ValueError,
            "as many queries as keys",
        ),
        (lambda: attention.in_tiles(*tensors(), rows=0), ValueError, "rows=0"),
        (
            lambda: attention.in_tiles(torch.ones(3, 2), torch.ones(3, 4), torch.ones(3, 4)),
            ValueError,
            "one width",
        ),
        (
            lambda: attention.stream(64, 15, order="keys outside", rows=16, columns=16),
            ValueError,
            "not whole lines",
        ),
        (
            lambda: attention.stream(64, 16, order="keys outside", rows=48),
            ValueError,
            "no whole tiles of 48 rows",
        ),
        (lambda: attention.stream(64, 16, order="keys inside"), ValueError, "order"),
        (
            lambda: attention.tiles_of(64, rows=16, columns=16, order="row by row"),
            ValueError,
            "order",
        ),
        (
            lambda: attention.interpret(*tensors(2), rows=16),
            ValueError,
            "float32, all of one shape",
        ),
        (
            lambda: attention.interpret(*tensors(2, width=24, dtype=torch.float32)),
            ValueError,
            "the width is a power",
        ),
        (
            lambda: attention.interpret(*tensors(2, width=16, dtype=torch.float32), rows=24),
            ValueError,
            "rows is a power of two",
        ),
    ],
)
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()
