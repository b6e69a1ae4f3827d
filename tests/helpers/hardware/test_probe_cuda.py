"""The probe of a GPU without one: its chase compiled and counted, its logic on the CPU and on a
simulated GPU.
"""

import dataclasses
import math
from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch

from helpers.hardware import Gpu, MachineCard, probe
from helpers.hardware.limits import (
    _bandwidth as bandwidth,
    _chase as chase,
    _cpu as probe_cpu,
    _cuda as chase_cuda,
    _cuda as probe_cuda,
    _levels as levels,
    _library as library,
)
from helpers.native import _cubin as cubin_file, _driver as driver, census, compile_cuda
from helpers.native._signatures import parse_signature
from helpers.native._tools import MissingToolError

KIB, MIB, GIB = 2**10, 2**20, 2**30
CPU = torch.device("cpu")
SMALL = probe_cpu.ProbePlan(
    latency_s=0,
    whole_s=0,
    per_octave=2,
    kernel_s=0,
    most_bytes=4 * MIB,
    types=("float32",),
    products=library.Budget(size_s=0, call_s=0.001),
)


def test_the_cuda_chase_loads_64_bits_from_global_memory_and_spills_nothing():
    try:
        cubin = compile_cuda(chase_cuda.source(), architecture="sm_90")
    except MissingToolError:
        pytest.skip("no NVRTC or no nvdisasm")
    assert cubin.kernels == ("chase",)
    counted = census(cubin)
    assert counted.global_stores == 1
    assert (counted.spill_load_bytes, counted.spill_store_bytes, counted.local_loads) == (0, 0, 0)
    assert {access.width_bits for access in counted.accesses if access.space == "global"} == {64}
    assert counted.global_loads >= 2
    given = cubin_file.resources(cubin_file.read(cubin.image), "chase").parameter_bytes
    driver._check_size(parse_signature(chase_cuda.DECLARATION), given)
    with pytest.raises(ValueError, match="bytes of parameters"):
        driver._check_size(
            parse_signature(chase_cuda.DECLARATION.replace(", uint64_t steps", "")), given
        )


def test_the_cycle_that_a_gpu_walks_is_the_hosts():
    host = torch.zeros(KIB, dtype=torch.int64).view(torch.uint64)
    there = chase_cuda.link_on_device(torch.device("cpu"), host, 4 * KIB)
    index, seen = 0, []
    for _ in range(32):
        seen.append(index)
        index = int(there[index])
    assert (index, sorted(seen)) == (0, [16 * line for line in range(32)])
    assert seen == chase.link(host.numpy(), 4 * KIB, line_bytes=128).tolist()


class SimulatedGpu:
    """A GPU whose one cache holds ``lines`` lines (LRU): a hit takes 10 ns, a miss 100 ns, on a
    clock of its own.
    """

    compiler = "a compiler"

    def __init__(self, lines):
        self.lines, self.cached, self.clock_s = lines, OrderedDict(), 0.0

    def touch(self, buffer, place):
        line = (buffer.data_ptr(), place)
        self.clock_s += 1e-8 if line in self.cached else 1e-7
        self.cached[line] = None
        self.cached.move_to_end(line)
        if len(self.cached) > self.lines:
            self.cached.popitem(last=False)

    def load(self, device):
        return self

    def function(self, declaration):
        return self.kernel

    def kernel(self, buffer, state, steps, *, grid, block):
        following, index = buffer.tolist(), int(state[0])
        for _ in range(steps):
            self.touch(buffer, index)
            index = following[index]
        state.view(torch.int64)[0] = index

    def run(self, fn, calls, device, clock):
        begin_s = self.clock_s
        fn()
        return SimpleNamespace(device_s=self.clock_s - begin_s)


def test_a_gpus_walk_is_not_over_lines_that_its_cache_still_holds(monkeypatch):
    """The first walk of a small buffer brings it into the cache; of a large one no walk may see a
    line again.
    """
    gpu, line = SimulatedGpu(lines=80_000), 128
    monkeypatch.setattr(chase_cuda.native, "gpu_architecture", lambda device: "sm_90")
    monkeypatch.setattr(chase_cuda.native, "compile_cuda", lambda source, *, architecture: gpu)
    monkeypatch.setattr(chase_cuda, "run", gpu.run)
    index_select = torch.Tensor.index_select

    def read_in_turn(tensor, axis, places):
        for place in places.tolist():
            gpu.touch(tensor, place)
        return index_select(tensor, axis, places)

    monkeypatch.setattr(torch.Tensor, "index_select", read_in_turn)
    small, large = 1000 * line, 160_000 * line
    plan = dataclasses.replace(SMALL, per_octave=1, least_bytes=small)
    monkeypatch.setattr(levels, "grid", lambda *_, **__: (small, large))
    values, versions = probe_cuda._latencies(CPU, plan, large, -math.inf, [])
    assert values[("latency", small)] == pytest.approx([1e-8])
    assert values[("latency", large)] == pytest.approx([1e-7])
    assert versions == {"chase": "a compiler"}


def test_the_probe_of_a_gpu_puts_its_parts_together(monkeypatch):
    """Its logic alone, on the CPU in place of a GPU, with a walk whose latency is known; no figure
    of a GPU.
    """
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, GIB))
    monkeypatch.setattr(
        probe_cuda,
        "machine_card",
        lambda: MachineCard(gpus=(Gpu("a GPU", "CUDA", None, GIB, MIB),)),
    )

    def walk_s(buffer):
        size = 8 * len(buffer)
        return 1e-8 * (1 + 4 * (size > 64 * KIB) + 15 * (size > MIB))

    monkeypatch.setattr(chase_cuda, "cuda_walk", lambda device: (walk_s, "a compiler"))
    monkeypatch.setattr(library, "launch_s", lambda device: 2e-5)
    monkeypatch.setattr(
        library, "bus_bytes_per_s", lambda device, *, to_device: 2e9 if to_device else 1e9
    )
    on_cpu = type("Cpu", (), {"type": "cpu", "index": 0, "__str__": lambda self: "cuda:0"})()
    plan = dataclasses.replace(SMALL, per_octave=2, least_bytes=16 * KIB)
    product_stages = probe_cpu.product_stages
    monkeypatch.setattr(
        probe_cpu,
        "product_stages",
        lambda plan, device, reasons: product_stages(plan, CPU, reasons),
    )
    monkeypatch.setattr(library, "call_overhead_s", lambda device, **_: 1e-5)
    monkeypatch.setattr(bandwidth, "pool", lambda size, device: torch.ones(size // 4))
    link_on_device = chase_cuda.link_on_device
    monkeypatch.setattr(
        chase_cuda, "link_on_device", lambda device, *given: link_on_device(CPU, *given)
    )
    limits = probe_cuda.measure_cuda(on_cpu, plan)
    assert [(level.name, level.size_bytes, level.latency_s) for level in limits.memory_levels] == [
        ("L1", 64 * KIB, 1e-8),
        ("L2", MIB, 5e-8),
        ("device memory", GIB, 2e-7),
    ]
    assert (limits.device, limits.chase, limits.versions["chase"]) == (
        "cuda:0",
        "CUDA C++",
        "a compiler",
    )
    rates = (limits.host_to_device_bytes_per_s, limits.device_to_host_bytes_per_s)
    assert rates == pytest.approx((2e9, 1e9))
    assert (limits.launch_s, limits.call_overhead_s) == (2e-5, 1e-5)
    assert limits.peak_flops == limits.product_flops != {}
    assert limits.memory_levels[0].bandwidth_bytes_per_s is None
    assert limits.level("L2").bandwidth_bytes_per_s > 0
    assert any(note.startswith("L1: no bandwidth") for note in limits.notes)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_probe_of_a_gpu_has_its_bus_and_its_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("HELPERS_CACHE", str(tmp_path))
    limits = probe(device="cuda")
    assert limits.memory.latency_s > limits.level("L2").latency_s
    assert limits.launch_s > limits.call_overhead_s
    assert limits.host_to_device_bytes_per_s < limits.memory.bandwidth_bytes_per_s
