"""What one operator costs where no multiply-accumulate says it: floating-point operations per element, as data.

A multiply-accumulate (MAC) of a convolution or matrix product is two floating-point operations (FLOP). A bias
that the same operator adds starts the accumulator and costs nothing more: K multiplications, K - 1 additions and
the bias are 2 K operations. Everything else is counted per element by the tables below, under four rules:

* An addition, multiplication, division, negation, comparison, minimum or maximum is 1; so is an elementary
  function (exponential, logarithm, root, power, sine, error function, hyperbolic tangent).
* A composite function is the sum of its steps: a sigmoid is negate, exponential, add, divide: 4.
* Moving and selecting data (copy, concatenate, gather, pad, ``where``) is 0: it costs bytes, not operations.
* Integer and boolean arithmetic is 0. A complex element counts as two real ones, a complex product as 6, and
  a complex MAC as 4 real MACs.

Lesson 07.
"""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd


class Elementwise(NamedTuple):
    """FLOP per output element, FLOP per element of each input's gradient, and what backward reads besides it.

    ``saved`` is "none", "own" (the operand itself), "other" (the other operands) or "one" (one tensor of the output's
    size).
    ``gradient_flops`` is one number for every input or one an input, in the order of the operator's arguments.
    """

    flops: int
    gradient_flops: int | tuple[int, ...]
    saved: str
    steps: str


class Reduction(NamedTuple):
    """FLOP per input element and FLOP per element of the input's gradient; backward reads ``saved`` inputs again."""

    flops: int
    gradient_flops: int
    saved: int
    steps: str


ELEMENTWISE = {
    # arithmetic
    "add": Elementwise(1, 0, "none", "add; one more where alpha is not 1"),
    "sub": Elementwise(1, (0, 1), "none", "subtract; backward negates for the second operand"),
    "rsub": Elementwise(1, (1, 0), "none", "subtract"),
    "mul": Elementwise(1, 1, "other", "multiply"),
    "div": Elementwise(1, (1, 3), "other", "divide; backward of the divisor: negate, multiply, divide"),
    "true_divide": Elementwise(1, (1, 3), "other", "divide"),
    "floor_divide": Elementwise(2, 0, "none", "divide, round"),
    "remainder": Elementwise(3, 0, "none", "divide, round, multiply-subtract"),
    "fmod": Elementwise(3, 0, "none", "divide, round, multiply-subtract"),
    "neg": Elementwise(1, 1, "none", "negate"),
    "abs": Elementwise(1, 2, "one", "absolute value; backward: sign, multiply"),
    "sign": Elementwise(1, 0, "none", "compare"),
    "sgn": Elementwise(1, 0, "none", "compare"),
    "reciprocal": Elementwise(1, 3, "one", "divide; backward: square, multiply, negate"),
    "square": Elementwise(1, 2, "one", "multiply"),
    "pow": Elementwise(1, 3, "one", "power; backward: power, two multiplications"),
    "lerp": Elementwise(3, 2, "other", "subtract, multiply, add"),
    "addcmul": Elementwise(2, (0, 1, 1), "other", "multiply, add; one more where value is not 1"),
    "addcdiv": Elementwise(2, (0, 1, 3), "other", "divide, add; one more where value is not 1"),
    "maximum": Elementwise(1, 1, "other", "compare; backward: select by a comparison"),
    "minimum": Elementwise(1, 1, "other", "compare; backward: select by a comparison"),
    "fmax": Elementwise(1, 1, "other", "compare"),
    "fmin": Elementwise(1, 1, "other", "compare"),
    "clamp": Elementwise(2, 2, "one", "two comparisons"),
    "clamp_min": Elementwise(1, 1, "one", "compare"),
    "clamp_max": Elementwise(1, 1, "one", "compare"),
    **{name: Elementwise(1, 0, "none", "compare") for name in ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
                                                              "isfinite", "signbit", "isposinf", "isneginf")},
    **{name: Elementwise(1, 0, "none", "round") for name in ("floor", "ceil", "round", "trunc", "frac")},
    # elementary functions
    "exp": Elementwise(1, 1, "one", "exponential"),
    "exp2": Elementwise(1, 2, "one", "exponential"),
    "expm1": Elementwise(1, 2, "one", "exponential"),
    "log": Elementwise(1, 1, "one", "logarithm"),
    "log2": Elementwise(1, 2, "one", "logarithm"),
    "log10": Elementwise(1, 2, "one", "logarithm"),
    "log1p": Elementwise(1, 2, "one", "logarithm"),
    "sqrt": Elementwise(1, 2, "one", "root; backward: double, divide"),
    "rsqrt": Elementwise(1, 3, "one", "root; backward: cube, multiply"),
    "sin": Elementwise(1, 2, "one", "sine"),
    "cos": Elementwise(1, 3, "one", "cosine"),
    "atan2": Elementwise(1, 4, "other", "arc tangent"),
    "tanh": Elementwise(1, 3, "one", "hyperbolic tangent; backward: square, subtract, multiply"),
    "erf": Elementwise(1, 4, "one", "error function; backward: square, exponential, two multiplications"),
    "polar": Elementwise(4, (4, 3), "one", "cosine, sine, two products; backward: real parts of products, divide"),
    # activations
    "relu": Elementwise(1, 1, "one", "compare; backward: select by a comparison"),
    "threshold": Elementwise(1, 1, "one", "compare"),
    "hardtanh": Elementwise(2, 2, "one", "two comparisons (ReLU6 too)"),
    "hardsigmoid": Elementwise(4, 3, "one", "add, two comparisons, divide"),
    "hardswish": Elementwise(5, 5, "one", "hardsigmoid, multiply"),
    "hardshrink": Elementwise(2, 2, "one", "two comparisons"),
    "softshrink": Elementwise(3, 2, "one", "two comparisons, subtract"),
    "leaky_relu": Elementwise(2, 2, "one", "compare, multiply"),
    "rrelu_with_noise": Elementwise(2, 1, "one", "compare, multiply"),
    "_prelu_kernel": Elementwise(2, 2, "other", "compare, multiply"),
    "elu": Elementwise(4, 3, "one", "compare, exponential, subtract, multiply (SELU too)"),
    "celu": Elementwise(5, 3, "one", "ELU with a division"),
    "sigmoid": Elementwise(4, 3, "one", "negate, exponential, add, divide; backward: g s (1 - s)"),
    "silu": Elementwise(5, 9, "one", "sigmoid, multiply; backward recomputes the sigmoid: g s (1 + x (1 - s))"),
    "gelu": Elementwise(5, 11, "one", "x (1 + erf(x / sqrt 2)) / 2; backward: distribution 4, density 5, g 2"),
    "glu": Elementwise(5, 8, "own", "sigmoid, multiply; backward recomputes the sigmoid: g s and g s a (1 - s)"),
    "softplus": Elementwise(3, 5, "one", "exponential, add, logarithm; backward: sigmoid, multiply"),
    "mish": Elementwise(5, 11, "one", "softplus, hyperbolic tangent, multiply"),
    "log_sigmoid_forward": Elementwise(5, 5, "one", "minimum, absolute value, exponential, logarithm, subtract"),
    "logit": Elementwise(3, 3, "one", "subtract, divide, logarithm"),
    "xlogy": Elementwise(2, 2, "other", "logarithm, multiply"),
    "native_dropout": Elementwise(2, 2, "one", "mask, scale; the random numbers are free"),
}  # fmt: skip

GELU_TANH = Elementwise(9, 16, "one", "the tanh approximation: cube 2, polynomial 3, tanh, add, two products")

# A complex element of these costs more than twice a real one.
COMPLEX_FLOPS = {"mul": 6, "div": 11, "true_divide": 11}

REDUCTIONS = {
    "sum": Reduction(1, 0, 0, "add"),
    "nansum": Reduction(2, 0, 0, "compare, add"),
    "mean": Reduction(1, 1, 0, "add; backward divides"),
    "prod": Reduction(1, 2, 1, "multiply"),
    "var": Reduction(4, 3, 1, "add, subtract, square, add; backward: subtract, scale, multiply"),
    "std": Reduction(4, 4, 1, "as var"),
    "var_mean": Reduction(4, 4, 1, "as var"),
    "std_mean": Reduction(4, 5, 1, "as var"),
    "norm": Reduction(2, 2, 1, "square, add"),
    "linalg_vector_norm": Reduction(2, 2, 1, "square, add"),
    **{name: Reduction(1, 0, 0, "compare") for name in ("max", "min", "amax", "amin", "argmax", "argmin", "aminmax")},
    "logsumexp": Reduction(4, 3, 1, "maximum, subtract, exponential, add"),
    "col2im": Reduction(1, 0, 0, "add each element where it belongs (fold)"),
    "cumsum": Reduction(1, 1, 0, "add"),
    "cumprod": Reduction(1, 3, 1, "multiply"),
    **{name: Reduction(0, 0, 0, "logical") for name in ("any", "all", "_is_all_true", "_is_any_true")},
    "_softmax": Reduction(5, 4, 1, "maximum, subtract, exponential, add, divide; backward: y (g - sum g y)"),
    "_safe_softmax": Reduction(5, 4, 1, "as softmax"),
    "_log_softmax": Reduction(5, 4, 1, "maximum, subtract, exponential, add, subtract"),
    "_adaptive_avg_pool2d": Reduction(1, 1, 0, "add (windows taken to tile the input)"),
    "_adaptive_avg_pool3d": Reduction(1, 1, 0, "add (windows taken to tile the input)"),
    "adaptive_max_pool2d": Reduction(1, 0, 0, "compare (windows taken to tile the input)"),
    "adaptive_max_pool3d": Reduction(1, 0, 0, "compare (windows taken to tile the input)"),
    "_weight_norm_interface": Reduction(3, 5, 1, "square, add, multiply"),
    "mse_loss": Reduction(3, 3, 2, "subtract, square, add"),
    "smooth_l1_loss": Reduction(5, 3, 2, "subtract, absolute value, compare, scale, add"),
    "huber_loss": Reduction(5, 3, 2, "subtract, absolute value, compare, scale, add"),
    "binary_cross_entropy": Reduction(7, 4, 2, "two logarithms, two products, subtract, add, sum"),
    "binary_cross_entropy_with_logits": Reduction(8, 6, 2, "softplus and product in its stable form, sum"),
    "nll_loss_forward": Reduction(0, 0, 0, "select"),
    "nll_loss2d_forward": Reduction(0, 0, 0, "select"),
}  # fmt: skip

# Weighted sums per output element: (FLOP forward, FLOP backward).
INTERPOLATION = {"upsample_linear1d": (3, 3), "upsample_bilinear2d": (7, 7), "_upsample_bilinear2d_aa": (7, 7),
                 "upsample_trilinear3d": (15, 15), "upsample_bicubic2d": (31, 31), "_upsample_bicubic2d_aa": (31, 31),
                 "grid_sampler_2d": (7, 14), "grid_sampler_3d": (15, 30)}  # fmt: skip

# Normalisations, per element: statistics and scaling where the statistics are this input's own, scaling alone where
# they are stored (batch normalisation in eval), one for the weight, one for the bias; then the same for backward.
NORM_FLOPS = {"own": 5, "stored": 2, "weight": 1, "bias": 1}
NORM_GRADIENT_FLOPS = {"own": 9, "stored": 1, "through_weight": 1, "weight": 2, "bias": 1}
NORMS = frozenset({"native_layer_norm", "native_group_norm", "native_batch_norm", "_native_batch_norm_legit",
                   "_native_batch_norm_legit_no_training", "_batch_norm_with_update", "cudnn_batch_norm",
                   "miopen_batch_norm", "_batch_norm_no_update"})  # fmt: skip

# Nothing is computed and nothing is moved: views, metadata, memory taken without being written.
FREE = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "t", "transpose", "permute", "squeeze", "unsqueeze",
    "select", "slice", "split", "split_with_sizes", "chunk", "unsafe_chunk", "unsafe_split", "unsafe_split_with_sizes",
    "unbind", "narrow", "diagonal", "as_strided", "unfold", "alias", "detach", "view_as_real", "view_as_complex",
    "_conj", "_neg_view", "resolve_conj", "resolve_neg", "lift", "lift_fresh", "empty", "empty_like", "empty_strided",
    "new_empty", "new_empty_strided", "flatten", "unflatten", "swapaxes", "movedim", "is_same_size", "real", "imag",
    "sym_size", "sym_numel", "sym_stride", "sym_storage_offset", "is_contiguous", "set", "_local_scalar_dense", "item",
    "_assert_async", "_assert_tensor_metadata", "_assert_scalar", "result_type", "view_as", "mT", "mH",
    "adjoint", "numpy_T", "ravel", "resize", "_version", "_fw_primal", "_make_dual", "_unpack_dual", "record_stream",
})  # fmt: skip

# Bytes only. FILL writes without reading; COPY reads what it copies; GATHER reads only what it takes; SCATTER
# writes only what it puts.
FILL = frozenset({
    "zeros", "ones", "full", "arange", "linspace", "logspace", "eye", "zeros_like", "ones_like", "full_like",
    "new_zeros", "new_ones", "new_full", "fill", "zero", "scalar_tensor", "bernoulli", "uniform", "normal", "random",
    "exponential", "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "tril_indices",
    "triu_indices", "hann_window", "hamming_window", "log_normal", "geometric", "cauchy",
})  # fmt: skip
COPY = frozenset({
    "clone", "copy", "_to_copy", "contiguous", "cat", "stack", "flip", "roll", "repeat", "repeat_interleave", "tril",
    "_pack_padded_sequence",
    "triu", "where", "masked_fill", "constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
    "replication_pad1d", "replication_pad2d", "replication_pad3d", "im2col", "pixel_shuffle",
    "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle", "diag_embed", "_reshape_copy", "rot90", "complex",
    "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not",
    "bitwise_xor", "__and__", "__or__", "__xor__", "unfold_copy", "view_copy", "expand_copy", "permute_copy",
    "meshgrid", "nan_to_num", "max_unpool2d", "max_unpool3d", "_pin_memory", "searchsorted", "bucketize",
    "bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__",
})  # fmt: skip
GATHER = frozenset({"index", "_unsafe_index", "gather", "index_select", "take", "embedding", "upsample_nearest1d",
                    "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
                    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"})  # fmt: skip
SCATTER = frozenset({"index_put", "_unsafe_index_put", "_index_put_impl", "scatter", "scatter_add", "scatter_reduce",
                     "index_add", "index_copy", "index_fill", "select_scatter", "slice_scatter", "slice_backward",
                     "select_backward", "masked_scatter"})  # fmt: skip
ACCUMULATING = frozenset({"scatter_add", "scatter_reduce", "index_add"})

# No rule counts these, and they hold no product of matrices: where one of them is met the MACs are exact all the same.
# Element-wise operators without a rule are of this kind too.
WITHOUT_PRODUCTS = frozenset({
    "sort", "argsort", "topk", "kthvalue", "median", "nanmedian", "mode", "_unique", "_unique2", "unique_dim",
    "unique_consecutive", "histc", "bincount", "nonzero", "nonzero_static", "count_nonzero", "masked_select", "cummax",
    "cummin", "_logcumsumexp", "logcumsumexp", "multinomial", "isin", "equal", "trace", "renorm", "embedding_renorm",
    "_ctc_loss", "_pdist_forward", "fractional_max_pool2d", "fractional_max_pool3d", "segment_reduce",
    "multi_margin_loss", "multilabel_margin_loss_forward", "_foreach_norm", "is_nonzero", "nan_to_num_", "polygamma",
    "_nested_tensor_from_mask", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "unfold_backward",
    "torchvision::nms", "torchvision::roi_align", "torchvision::roi_pool", "torchvision::ps_roi_align",
    "torchvision::ps_roi_pool", "_linalg_check_errors", "_fused_moving_avg_obs_fq_helper", "randperm",
    "_to_sparse", "fake_quantize_per_tensor_affine_cachemask", "fake_quantize_per_channel_affine_cachemask",
})  # fmt: skip


def convention_table() -> pd.DataFrame:
    """Return the conventions as a table: operator, FLOP per element forward and backward, and the steps counted.

    ``per`` says of which elements: the output's for element-wise operators, the input's for reductions.
    Lesson 07.
    """
    rows = [(name, "output element", rule.flops, rule.gradient_flops, rule.steps) for name, rule in ELEMENTWISE.items()]
    rows += [(name, "input element", rule.flops, rule.gradient_flops, rule.steps) for name, rule in REDUCTIONS.items()]
    rows += [(name, "output element", *pair, "weighted sum") for name, pair in INTERPOLATION.items()]
    rows += [("max_pool, avg_pool", "output element", "window", "1, window", "compare, or add, each element"),
             ("normalisation", "element", "5, 2 stored", "9, 1 stored",
              "statistics and scaling; weight: 1 forward, 3 backward; bias: 1 and 1")]  # fmt: skip
    return pd.DataFrame(rows, columns=["operator", "per", "flops", "gradient_flops", "steps"])
