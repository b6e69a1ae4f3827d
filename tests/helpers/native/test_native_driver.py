"""Kernels launched: through a driver of ours that writes down what it was given, and on a GPU where
there is one.
"""

import ctypes
import re
import shutil
import threading

import numpy as np
import pytest
import torch

from helpers import native
from helpers.native import _driver as driver, _nvrtc as nvrtc

SOURCE = """
extern "C" {
__constant__ float weights[4];
__global__ void scale(const float* x, float* y, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = factor * x[i];
}
__global__ void weigh(const float* x, float* y) { y[threadIdx.x] = weights[threadIdx.x] * x[threadIdx.x]; }
struct Pair { float a, b; };
__global__ void pair(float* y, Pair p) { *y = p.a - p.b; }
__global__ void reverse(float* x, int n) {
    extern __shared__ float room[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) room[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = room[n - 1 - i];
}
}
__global__ void mangled(float* y) { *y = 7; }
"""  # noqa: E501
DRIVER = """
#include <cstdint>
#include <cstring>
extern "C" {
int fail_at = 0, calls = 0, pushed = 0, attribute = 0, largest = 0;
unsigned launch[7]; void* stream; void* pointers[2]; float factor; int n; char copied[64]; size_t copied_bytes;
static int answer() { return ++calls == fail_at ? 209 : 0; }
int cuGetErrorString(int, const char** text) { *text = "no kernel image is available"; return 0; }
int cuCtxGetCurrent(void** context) { *context = (void*)0x1234567890; return answer(); }
int cuCtxPushCurrent_v2(void* context) { pushed += context == (void*)0x1234567890; return 0; }
int cuCtxPopCurrent_v2(void** context) { *context = nullptr; --pushed; return 0; }
int cuModuleLoadData(void** module, const char* image) { *module = (void*)image; return answer(); }
int cuModuleGetFunction(void** function, void*, const char* name) { *function = (void*)(0x100000000 + strlen(name));
    return answer(); }
int cuModuleGetGlobal_v2(void** address, size_t* size, void*, const char*) { *address = copied; *size = 16;
    return answer(); }
int cuMemcpyAsync(void* to, const void* from, size_t bytes, void* on) { memcpy(to, from, bytes); copied_bytes = bytes;
    stream = on; return answer(); }
int cuFuncSetAttribute(void*, int what, int value) { attribute = what; largest = value; return answer(); }
int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned shared,
                   void* on, void** arguments, void** extra) {
    unsigned all[] = {a, b, c, d, e, g, shared};
    memcpy(launch, all, sizeof all);
    stream = on;
    if (f == (void*)(0x100000000 + 5) && !extra) {
        memcpy(pointers, arguments[0], 8); memcpy(pointers + 1, arguments[1], 8);
        memcpy(&factor, arguments[2], 4); memcpy(&n, arguments[3], 4);
    }
    return answer();
}
}
"""  # noqa: E501


def _missing() -> bool:
    try:
        nvrtc.find_nvrtc()
    except native.MissingToolError:
        return True
    return False


needs_fake = pytest.mark.skipif(
    _missing() or shutil.which("g++") is None, reason="needs NVRTC and g++"
)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(scope="module")
def cubin():
    return native.compile_cuda(SOURCE, architecture="sm_80")


@pytest.fixture
def fake(tmp_path):
    """A driver library of ours, freshly loaded."""
    return native.compile_cpp(DRIVER, folder=tmp_path).raw


@pytest.fixture
def module(fake, cubin):
    """The program, loaded by that driver, for tensors of this processor, on stream 7 x 2^32."""
    return driver.module_in_current_context(
        driver.Driver(fake), cubin.image, device="cpu", stream=lambda: 7 << 32
    )


@needs_fake
def test_a_launch_hands_over_grid_block_stream_and_every_argument_whole(fake, module):
    scale = module.function("void scale(const float* x, float* y, float factor, int n)")
    x, y = torch.ones(5), torch.zeros(5)
    assert scale(x, y, 2.5, -5, grid=(3, 2), block=64, shared_bytes=1024) is None
    assert list((ctypes.c_uint * 7).in_dll(fake, "launch")) == [3, 2, 1, 64, 1, 1, 1024]
    assert ctypes.c_void_p.in_dll(fake, "stream").value == 7 << 32
    assert list((ctypes.c_void_p * 2).in_dll(fake, "pointers")) == [x.data_ptr(), y.data_ptr()]
    assert (ctypes.c_float.in_dll(fake, "factor").value, ctypes.c_int.in_dll(fake, "n").value) == (
        2.5,
        -5,
    )
    assert (
        ctypes.c_int.in_dll(fake, "pushed").value,
        ctypes.c_int.in_dll(fake, "attribute").value,
    ) == (0, 0)
    scale(x, y, 1, 1, grid=np.int64(1), block=[8, 8, 2], shared_bytes=64 * 1024)
    assert ctypes.c_int.in_dll(fake, "attribute").value == 8
    assert ctypes.c_int.in_dll(fake, "largest").value == 64 * 1024


@needs_fake
def test_a_declaration_is_held_to_the_kernel(module):
    assert module.function("void mangled(float* y)").signature.name == "mangled"
    module.function("void pair(float* y, Pair p)")
    with pytest.raises(
        ValueError, match="declared with 20 bytes of parameters, and the kernel has 24"
    ):
        module.function("void scale(const float* x, float* y, float factor)")
    with pytest.raises(ValueError, match="declared with 28 bytes"):
        module.function("void scale(const float* x, float* y, double factor, int n)")
    with pytest.raises(ValueError, match=r"no kernel 'other'; it has .*scale"):
        module.function("void other()")
    with pytest.raises(ValueError, match="returns void"):
        module.function("float scale(const float* x)")


@needs_fake
@pytest.mark.parametrize(
    ("grid", "block", "shared"),
    [
        (0, 1, 0),
        (1, 0, 0),
        (1, 1025, 0),
        (1, (32, 33), 0),
        ((1, 65536), 1, 0),
        (1, (1, 1, 65), 0),
        (2**31, 1, 0),
        ((), 1, 0),
        ((1, 1, 1, 1), 1, 0),
        (1.0, 1, 0),
        (None, 1, 0),
        (1, "8", 0),
        (1, 1, -1),
        (1, 1, 1.5),
    ],
)
def test_a_grid_or_block_that_no_gpu_takes_is_refused(grid, block, shared, fake, module):
    kernel = module.function("void mangled(float* y)")
    before = ctypes.c_int.in_dll(fake, "calls").value
    with pytest.raises((TypeError, ValueError), match=r"grid|block|shared_bytes"):
        kernel(torch.zeros(1), grid=grid, block=block, shared_bytes=shared)
    assert ctypes.c_int.in_dll(fake, "calls").value == before


@needs_fake
def test_what_the_driver_refuses_is_told_in_its_words_and_the_context_put_back(fake, module):
    kernel = module.function("void mangled(float* y)")
    ctypes.c_int.in_dll(fake, "fail_at").value = ctypes.c_int.in_dll(fake, "calls").value + 1
    with pytest.raises(
        native.NativeError, match=r"cuLaunchKernel: no kernel image is available \(error 209\)"
    ):
        kernel(torch.zeros(1), grid=1, block=1)
    assert ctypes.c_int.in_dll(fake, "pushed").value == 0
    kernel(torch.zeros(1), grid=1, block=1)
    with pytest.raises(TypeError, match="takes 1 arguments"):
        kernel(grid=1, block=1)


@needs_fake
def test_a_variable_is_written_whole_or_not_at_all(fake, module):
    module.write("weights", torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert list((ctypes.c_float * 4).in_dll(fake, "copied")) == [1, 2, 3, 4]
    assert ctypes.c_void_p.in_dll(fake, "stream").value == 7 << 32
    for wrong in (torch.ones(3), torch.ones(8)[::2], torch.ones(4, device="meta")):
        with pytest.raises(ValueError, match="weights holds 16 bytes on cpu"):
            module.write("weights", wrong)
    with pytest.raises(ValueError, match="no variable 'other'"):
        module.write("other", torch.ones(4))


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100", (10, 3), True),
        ("sm_100a", (10, 3), False),
        ("sm_100f", (10, 3), True),
        ("sm_120", (12, 0), True),
        ("sm_120", (10, 0), False),
    ],
)
def test_a_program_for_another_gpu_is_refused_before_it_is_loaded(architecture, capability, runs):
    if runs:
        driver._check_architecture(architecture, capability)
    else:
        expected = f"compile it with architecture='sm_{capability[0]}{capability[1]}'"
        with pytest.raises(native.NativeError, match=expected):
            driver._check_architecture(architecture, capability)


@pytest.mark.parametrize("architecture", ["sm_8", "compute_90", "sm_90x", "sm_90\n", ""])
def test_what_is_no_architecture_is_refused(architecture):
    with pytest.raises(
        ValueError, match=re.escape(f"architecture={architecture!r} is not known; give what")
    ):
        driver._check_architecture(architecture, (9, 0))


@needs_fake
def test_without_a_gpu_it_says_what_can_be_done_without(cubin, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        native.NativeError, match=r"no CUDA device here.*compiled, read and counted"
    ):
        cubin.load()
    with pytest.raises(native.NativeError, match="no CUDA device here"):
        native.gpu_architecture()


def test_without_nvidias_driver_it_says_so(monkeypatch):
    def refuse(name):
        raise OSError("cannot open shared object file")

    monkeypatch.setattr(driver.ctypes, "CDLL", refuse)
    with pytest.raises(
        native.MissingToolError, match=r"does not load: cannot open.*install NVIDIA's driver"
    ):
        driver._driver_library()


@pytest.mark.cuda
@needs_cuda
def test_kernels_run_on_the_gpu():
    module = native.compile_cuda(SOURCE, architecture=native.gpu_architecture()).load()
    x = torch.arange(1000.0, device="cuda")
    y = torch.empty_like(x)
    scale = module.function("void scale(const float* x, float* y, float factor, int n)")
    scale(x, y, 0.5, 1000, grid=8, block=128)
    assert torch.equal(y, x / 2)
    thread = threading.Thread(target=lambda: scale(x, y, 3.0, 1000, grid=8, block=128))
    thread.start()
    thread.join()
    assert torch.equal(y, 3 * x)
    with torch.cuda.stream(torch.cuda.Stream()):
        scale(x, y, 4.0, 1000, grid=8, block=128)
        assert torch.equal(y, 4 * x)
    module.write("weights", torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda"))
    module.function("void weigh(const float* x, float* y)")(x, y, grid=1, block=4)
    assert y[:4].tolist() == [0, 2, 6, 12]
    pair = (ctypes.c_float * 2)(5.0, 3.0)
    module.function("void pair(float* y, Pair p)")(y, pair, grid=1, block=1)
    assert y[0].item() == 2
    # 64,000 bytes: over the 48 KiB that need no asking
    large = torch.arange(16000.0, device="cuda")
    module.function("void reverse(float* x, int n)")(
        large, 16000, grid=1, block=256, shared_bytes=64000
    )
    assert torch.equal(large, torch.arange(15999.0, -1, -1, device="cuda"))
    with pytest.raises(ValueError, match=r"tensor on cpu, and the function runs on cuda:0"):
        scale(x.cpu(), y, 1.0, 1, grid=1, block=1)
