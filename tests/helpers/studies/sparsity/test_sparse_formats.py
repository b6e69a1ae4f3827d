"""Formats without zeros against the arrays of scipy and PyTorch, bytes against formulas, products
against scipy.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, strategies as st
from torch import nn
from torch.sparse import _semi_structured_conversions as conversions

from helpers.studies.sparsity import _formats, model_bytes, pack_2_4, prune, to_csr, weight_matrix
from tests.properties import repeatable


def matrix_of(shape, zeros_share, dtype=torch.float64, seed=0):
    """Small whole numbers, so that products in float64 are exact; a row and a column without
    any.
    """
    draw = np.random.default_rng(seed)
    values = (
        draw.integers(1, 9, shape)
        * draw.choice([-1, 1], shape)
        * (draw.random(shape) >= zeros_share)
    )
    if len(shape) == 2 and min(shape) > 2:
        values[shape[0] // 2] = values[:, 1] = 0
    return torch.tensor(values).to(dtype)


SIDES, SHARES = st.integers(1, 12), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0])


@st.composite
def matrices(draw, dtypes=(torch.float64,)):
    """Draw a matrix of whole blocks, a block's shape (half of them are numbers), and an index's
    type.
    """
    block = draw(st.just((1, 1)) | st.tuples(SIDES, SIDES))
    shape = tuple(draw(SIDES) * side for side in block)
    matrix = matrix_of(
        shape, draw(SHARES), draw(st.sampled_from(dtypes)), draw(st.integers(0, 999))
    )
    return matrix, block, draw(st.sampled_from([torch.int32, torch.int64]))


@repeatable(examples=100)
@given(matrices(), st.integers(0, 5))
def test_rows_or_blocks_and_their_product_are_those_of_scipy(drawn, right_columns):
    require_scipys(*drawn, right_columns)


def require_scipys(matrix, block, index_dtype, right_columns=3):
    csr = to_csr(matrix, block=block, index_dtype=index_dtype)
    theirs = scipy.sparse.csr_matrix(matrix.numpy())
    if block != (1, 1):
        theirs = scipy.sparse.bsr_matrix(matrix.numpy(), blocksize=block)
        theirs.sort_indices()
    assert np.array_equal(csr.values, theirs.data)
    assert np.array_equal(csr.column_indices, theirs.indices)
    assert np.array_equal(csr.row_starts, theirs.indptr)
    assert csr.column_indices.dtype == csr.row_starts.dtype == index_dtype
    assert torch.equal(csr.dense(), matrix)
    assert csr.kept == len(theirs.data)
    for shape in ((matrix.shape[1],), (matrix.shape[1], right_columns)):
        right = matrix_of(shape, 0, seed=1)
        assert np.array_equal(csr @ right, theirs @ right.numpy())


@pytest.mark.filterwarnings("ignore:Sparse (CSR|BSR) tensor support:UserWarning")
@repeatable(examples=100)
@given(matrices((torch.float16, torch.float32, torch.int8)))
def test_bytes_are_those_of_pytorch_and_of_the_formulas(drawn):
    matrix, block, index_dtype = drawn
    sizes = {"value_bytes": matrix.itemsize, "index_bytes": index_dtype.itemsize}
    csr = to_csr(matrix, block=block, index_dtype=index_dtype)
    assert csr.stored_bytes == model_bytes(
        "csr", *matrix.shape, kept=csr.kept, block=block, **sizes
    )
    assert csr.dense_bytes == matrix.nbytes == model_bytes("dense", *matrix.shape, **sizes)
    theirs = matrix.to_sparse_csr() if block == (1, 1) else matrix.to_sparse_bsr(block)
    indices = theirs.col_indices().numel() + theirs.crow_indices().numel()
    assert csr.stored_bytes == theirs.values().nbytes + index_dtype.itemsize * indices


def test_half_of_the_weights_in_csr_take_half_as_much_again():
    """int64 indices: 3 (1 - s) + 2 / n of the dense float32 bytes, and the two are equal at two
    thirds zeros.
    """
    layer, _ = prune(nn.Linear(256, 256), 0.5)
    csr = to_csr(layer.weight)
    assert csr.stored_bytes / csr.dense_bytes == 3 * 0.5 + 2 / 256 + 8 / (4 * 256 * 256)
    assert model_bytes("csr", 300, 300, kept=30_000) - 8 * 301 == model_bytes("dense", 300, 300)


def test_zeros_are_skipped():
    csr = to_csr(torch.tensor([[0.0, 2], [0, 0]]))
    assert (csr @ torch.tensor([float("inf"), 3])).tolist() == [6, 0]
    assert to_csr(torch.tensor([[float("nan"), -0.0]])).kept == 1


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float32, 1e-6),
        (torch.float64, 1e-14),
        (torch.float16, 1e-3),
        (torch.bfloat16, 1e-2),
        (torch.complex64, 1e-6),
    ],
)
def test_products_of_other_types(dtype, tolerance):
    torch.manual_seed(0)
    matrix, right = torch.randn(30, 200, dtype=dtype), torch.randn(200, 4, dtype=dtype)
    matrix[torch.rand(30, 200) < 0.8] = 0
    for block in ((1, 1), (5, 4)):
        product = to_csr(matrix, block=block) @ right
        exact = matrix.to(torch.complex128) @ right.to(torch.complex128)
        assert product.dtype == dtype
        assert torch.linalg.norm(product.to(exact.dtype) - exact) < tolerance * torch.linalg.norm(
            exact
        )
    whole = matrix_of((30, 200), 0.8, torch.int64), matrix_of((200, 4), 0, torch.int64)
    assert torch.equal(to_csr(whole[0]) @ whole[1], whole[0] @ whole[1])


def test_a_long_sum_in_float16_does_not_stop_growing():
    ones = torch.ones(1, 5000, dtype=torch.float16)
    assert (to_csr(ones) @ ones[0]).tolist() == [5000]


def test_views_and_gradients_are_no_obstacle():
    weight = nn.Parameter(matrix_of((24, 40), 0.5)).T
    csr = to_csr(weight, block=(4, 3))
    assert torch.equal(csr.dense(), weight)
    assert not csr.values.requires_grad
    assert torch.equal(csr @ matrix_of((5, 24), 0).T, weight.detach() @ matrix_of((5, 24), 0).T)
    assert torch.equal(
        pack_2_4(torch.tensor([[0, 1.0], [2, 3], [0, 0], [4, 0]]).T).dense()[0],
        torch.tensor([0, 2.0, 0, 4]),
    )


def test_empty_matrices():
    for rows, columns in ((0, 4), (4, 0)):
        empty = torch.zeros(rows, columns)
        assert torch.equal(to_csr(empty) @ torch.ones(columns, 3), torch.zeros(rows, 3))
        assert torch.equal(to_csr(empty).dense(), empty)
        assert torch.equal(pack_2_4(empty).dense(), empty)


def fours():
    """All groups of four with at most two numbers, in all places."""
    kept = [places for count in range(3) for places in itertools.combinations(range(4), count)]
    return torch.tensor(
        [[float(place + 1) if place in places else 0.0 for place in range(4)] for places in kept]
    )


def test_every_group_of_four_comes_back_and_takes_four_bits():
    groups = fours()
    assert len(groups) == 11
    for shape in ((11, 4), (1, 44)):
        packed = pack_2_4(groups.view(shape))
        assert torch.equal(packed.dense(), groups.view(shape))
        assert packed.values.shape == (shape[0], shape[1] // 2)
        assert packed.indices.tolist() == pack_2_4(groups).indices.tolist()
        # 11 groups, two in a byte
        assert (len(packed.indices), packed.indices.dtype) == (6, torch.uint8)
    for group in groups:
        packed = pack_2_4(group[None])
        first, second = int(packed.indices[0]) & 3, int(packed.indices[0]) >> 2
        assert first < second < 4
        assert packed.values[0].tolist() == [group[first], group[second]]


def test_the_indices_by_hand():
    packed = pack_2_4(torch.tensor([[5.0, 6, 0, 0, 0, 0, 7, 8], [9, 0, 0, 3, 0, 4, 5, 0]]))
    assert packed.values.tolist() == [[5, 6, 7, 8], [9, 3, 4, 5]]
    assert packed.indices.tolist() == [0b1110_0100, 0b1001_1100]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8])
def test_pytorchs_own_conversion_stores_the_same(dtype):
    """Its metadata are put back into the order of the matrix; read as bytes they are our
    indices.
    """
    torch.manual_seed(0)
    layer, _ = prune(nn.Linear(128, 64), 0.5, pattern="2:4")
    matrix = (layer.weight * 1000).detach().clamp(-99, 99).to(dtype)
    assert ((matrix.view(-1, 4) != 0).sum(1) == 2).all()
    values, reordered = conversions.sparse_semi_structured_from_dense_cutlass(matrix)
    order = conversions._calculate_meta_reordering_scatter_offsets(
        64, reordered.shape[1], reordered.dtype, "cpu"
    )
    packed = pack_2_4(matrix)
    assert torch.equal(packed.values, values)
    assert torch.equal(packed.indices, reordered.view(-1)[order].view(torch.uint8))
    assert torch.equal(
        packed.dense(), conversions.sparse_semi_structured_to_dense_cutlass(values, reordered)
    )


@repeatable(examples=60)
@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_any_matrix_of_two_in_four_comes_back(rows, groups, data):
    lines = data.draw(
        st.lists(st.sampled_from(fours().tolist()), min_size=rows * groups, max_size=rows * groups)
    )
    matrix = torch.tensor(lines).view(rows, 4 * groups)
    packed = pack_2_4(matrix)
    assert torch.equal(packed.dense(), matrix)
    assert (
        packed.stored_bytes
        == packed.values.nbytes + packed.indices.nbytes
        == model_bytes("2:4", *matrix.shape)
    )


@pytest.mark.parametrize(
    ("dtype", "share"),
    [
        (torch.float16, 9 / 16),
        (torch.float32, 17 / 32),
        (torch.int8, 5 / 8),
        (torch.float8_e4m3fn, 5 / 8),
    ],
)
def test_bytes_of_two_of_four(dtype, share):
    matrix = fours()[:8].repeat(3, 10).to(dtype)
    packed = pack_2_4(matrix)
    assert (
        packed.stored_bytes
        == packed.values.nbytes + packed.indices.nbytes
        == share * packed.dense_bytes
    )
    assert packed.stored_bytes == model_bytes("2:4", *matrix.shape, value_bytes=matrix.itemsize)
    odd = pack_2_4(matrix[:1, :12])
    assert (
        odd.stored_bytes
        == model_bytes("2:4", 1, 12, value_bytes=matrix.itemsize)
        == 6 * matrix.itemsize + 2
    )
    assert torch.equal(packed.dense().float(), matrix.float())


def test_a_pruned_convolution_packs():
    conv, _ = prune(nn.Conv2d(8, 6, 3), 0.5, pattern="2:4")
    assert torch.equal(pack_2_4(weight_matrix(conv)).dense(), weight_matrix(conv))


def test_results_are_shown_without_their_tensors():
    csr = to_csr(torch.eye(4), block=(2, 2))
    assert csr.table().to_dict("records") == [
        {"rows": 4, "columns": 4, "block": (2, 2), "kept": 2, "stored_bytes": 72, "dense_bytes": 64}
    ]
    assert "tensor" not in str(csr) + str(pack_2_4(torch.eye(4)))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_the_same_is_stored_and_computed():
    matrix, right = matrix_of((36, 48), 0.9), matrix_of((48, 3), 0, seed=1)
    for block in ((1, 1), (4, 4)):
        here, there = to_csr(matrix, block=block), to_csr(matrix.cuda(), block=block)
        assert there.values.is_cuda
        assert torch.equal(there.column_indices.cpu(), here.column_indices)
        assert torch.equal((there @ right.cuda()).cpu(), here @ right)
        assert torch.equal(there.dense().cpu(), matrix)
    packed = pack_2_4(fours().cuda())
    assert torch.equal(packed.indices.cpu(), pack_2_4(fours()).indices)
    assert torch.equal(packed.dense().cpu(), fours())


@pytest.mark.parametrize(("owner", "name", "wrong", "seen_by"), [
    (_formats.Csr, "_rows", lambda csr: torch.arange(csr.kept) % (len(csr.row_starts) - 1),
     lambda: require_scipys(matrix_of((12, 16), 0.5), (1, 1), torch.int64)),
    (_formats, "split_tiles",
     lambda matrix, tile: matrix.reshape(-1, matrix.shape[1] // tile[1], *tile),
     lambda: require_scipys(matrix_of((36, 48), 0.9), (4, 4), torch.int64)),
    (_formats, "_row_numbers", lambda places: places.flip(1),
     test_every_group_of_four_comes_back_and_takes_four_bits),
])  # fmt: skip
def test_a_planted_fault_is_seen(monkeypatch, owner, name, wrong, seen_by):
    monkeypatch.setattr(owner, name, wrong)
    with pytest.raises((AssertionError, IndexError, RuntimeError)):
        seen_by()
