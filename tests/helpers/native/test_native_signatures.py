"""Declarations read, and values that compiled code would misread refused before it sees them."""

import ctypes

import numpy as np
import pytest
import torch

from helpers.native._signatures import Parameter, Signature, parse_signature, to_c


@pytest.mark.parametrize(
    ("declaration", "expected"),
    [
        ("void f()", ()),
        ("void f(void);", ()),
        (
            "void f(const float* x, float *y)",
            (("x", "float", True, True), ("y", "float", True, False)),
        ),
        ("void f(float const * __restrict__ x)", (("x", "float", True, True),)),
        ("void f(float* const x)", (("x", "float", True, False),)),
        (
            "void f(unsigned long long n, unsigned m)",
            (("n", "unsigned long long", False, False), ("m", "unsigned", False, False)),
        ),
        (
            "void f(long int n, unsigned int*)",
            (("n", "long", False, False), ("argument_1", "unsigned", True, False)),
        ),
        (
            "void f(std::int64_t n, int)",
            (("n", "int64_t", False, False), ("argument_1", "int", False, False)),
        ),
        (
            "void f(float x[4], void* p, float**)",
            (
                ("x", "float", True, False),
                ("p", "void", True, False),
                ("argument_2", "float", True, False),
            ),
        ),
        (
            'extern "C" __global__ void f(const __grid_constant__ Weights w)',
            (("w", "Weights", False, True),),
        ),
        ("  void  f ( int  n ) ; ", (("n", "int", False, False),)),
    ],
)
def test_declarations_are_read(declaration, expected):
    parameters = tuple(Parameter(*fields) for fields in expected)
    assert parse_signature(declaration) == Signature("f", None, parameters)


def test_what_is_returned_is_read():
    assert parse_signature("double f(int n)").returns.c_type is ctypes.c_double
    assert parse_signature("const float* f(int n)").returns.c_type is ctypes.c_void_p


@pytest.mark.parametrize(
    "declaration",
    [
        "",
        "f",
        "f(int n)",
        "void f",
        "void f(int n",
        "void f(int& n)",
        "void f(void n)",
        "void f(int n,)",
        "Weights f()",
        "void f(void (*g)(int))",
        None,
        3,
    ],
)
def test_what_is_no_declaration_is_refused(declaration):
    with pytest.raises(ValueError, match=r"declaration|parameter|returned|void"):
        parse_signature(declaration)


def converted(declaration: str, *values: object, device: str = "cpu") -> list:
    return [value.value for value in to_c(parse_signature(declaration), values, device=device)]


def test_numbers_of_every_type_keep_their_value():
    assert converted("void f(int n, uint8_t m, int64_t k)", -3, np.int32(255), 2**40) == [
        -3,
        255,
        2**40,
    ]
    assert converted("void f(double x, float y, bool b)", 1, torch.tensor(0.5), True) == [
        1.0,
        0.5,
        True,
    ]
    assert converted("void f(float x)", float("-inf")) == [float("-inf")]
    assert converted("void f(size_t n)", torch.tensor(7)) == [7]
    assert np.isnan(converted("void f(float x)", float("nan"))[0])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 2**31),
        ("int", -(2**31) - 1),
        ("uint8_t", -1),
        ("uint8_t", 256),
        ("int64_t", 2**63),
        ("bool", 2),
        ("float", 1e39),
    ],
)
def test_a_number_that_does_not_fit_is_refused(kind, value):
    with pytest.raises(ValueError, match=rf"f: n is {value}".replace("+", r"\+")):
        converted(f"void f({kind} n)", value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 1.0),
        ("int", "1"),
        ("int", None),
        ("int", torch.ones(2)),
        ("float", "1"),
        ("float", None),
        ("float", np.ones(1)),
        ("float*", "x"),
        ("float*", 1.5),
        ("float*", [1.0]),
        ("float*", True),
        ("W", 3),
    ],
)
def test_a_value_of_another_type_is_refused(kind, value):
    with pytest.raises((TypeError, ValueError), match="f: n is"):
        converted(f"void f({kind} n)", value)


@pytest.mark.parametrize(
    ("kind", "dtype", "fits"),
    [
        ("float", torch.float32, True),
        ("float", torch.float64, False),
        ("float", torch.float16, False),
        ("double", torch.float64, True),
        ("int", torch.int32, True),
        ("int", torch.int64, False),
        ("unsigned", torch.int32, False),
        ("int64_t", torch.int64, True),
        ("long long", torch.int64, True),
        ("unsigned short", torch.float16, True),
        ("unsigned short", torch.bfloat16, True),
        ("__half", torch.float16, True),
        ("__half2", torch.float32, False),
        ("float4", torch.float32, True),
        ("bool", torch.bool, True),
        ("bool", torch.uint8, False),
        ("char", torch.int8, True),
        ("void", torch.int8, True),
        ("Any", torch.float64, True),
    ],
)
def test_a_tensor_must_hold_what_the_pointer_points_to(kind, dtype, fits):
    tensor = torch.zeros(4, dtype=dtype)
    if fits:
        assert converted(f"void f({kind}* x)", tensor) == [tensor.data_ptr()]
    else:
        with pytest.raises(
            ValueError, match=rf"declared {kind}\*, which takes .*, not {str(dtype)[6:]}"
        ):
            converted(f"void f({kind}* x)", tensor)


def test_layout_device_and_writing_are_looked_at():
    gaps = torch.zeros(4, 4).T
    with pytest.raises(ValueError, match="contiguous"):
        converted("void f(float* x)", gaps[:, :2])
    with pytest.raises(
        ValueError, match=r"tensor on meta, and the function runs on cpu; give tensor.to\('cpu'\)"
    ):
        converted("void f(float* x)", torch.zeros(1, device="meta"))
    with pytest.raises(ValueError, match=r"tensor on cpu, and the function runs on cuda:0"):
        converted("void f(float* x)", torch.zeros(1), device="cuda:0")
    with pytest.raises(TypeError, match="give a CUDA tensor"):
        converted("void f(float* x)", np.zeros(1, dtype=np.float32), device="cuda:0")
    weight = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="detach"):
        converted("void f(float* x)", weight)
    assert converted("void f(const float* x)", weight) == [weight.data_ptr()]
    locked = np.zeros(3, dtype=np.float32)
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        converted("void f(float* x)", locked)
    assert converted("void f(const float* x)", locked) == [locked.ctypes.data]
    with pytest.raises(ValueError, match="ascontiguousarray"):
        converted("void f(const float* x)", np.zeros((2, 2), dtype=np.float32)[:, 0])


def test_addresses_null_and_structures():
    numbers = (ctypes.c_float * 3)()
    assert converted("void f(float* x, float* y)", numbers, None) == [
        ctypes.addressof(numbers),
        None,
    ]
    assert converted("void f(float* x)", 4096) == [4096]
    with pytest.raises(ValueError, match="which is no address"):
        converted("void f(float* x)", -1)
    assert to_c(parse_signature("void f(W w)"), (b"abcd",), device="cpu")[0].raw == b"abcd"
    with pytest.raises(TypeError, match=r"f takes 2 arguments \(x, n\), not 1"):
        converted("void f(float* x, int n)", 3)
