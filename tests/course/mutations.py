"""Bugs that each lesson must notice: at least two a lesson, planted one at a time by tests/course/test_lessons.py.

Choose what an early cell shows exactly (a count, bytes, a share): a bug in a time is masked, and a lesson is run only
up to the cell that catches the bug.
"""

from __future__ import annotations

from tools.authoring.mutation import Mutation

MUTATIONS = (
    Mutation("00", "helpers/units.py", "_FLOPS_PER_MAC = 2", "_FLOPS_PER_MAC = 1", "a MAC counted as one FLOP"),
    Mutation("00", "helpers/data.py", 'if split == "test" else', 'if split == "train" else', "splits swapped"),
    Mutation(
        "00",
        "helpers/models.py",
        "nn.Linear(self.hidden // 2, 10)",
        "nn.Linear(self.hidden // 2, 10, bias=False)",
        "a layer without its bias",
    ),
    Mutation("01", "helpers/hardware/devices.py", "math.prod(value)", "value[0]", "KB taken for bytes"),
    Mutation(
        "01",
        "helpers/hardware/limits/changepoints.py",
        "return tuple(sizes[peak] for peak",
        "return tuple(sizes[peak + 1] for peak",
        "a cache as large as the first buffer that it does not hold",
    ),
    Mutation(
        "03",
        "helpers/sources/four.py",
        "for _, input_bytes in cut[1:])",
        "for _, input_bytes in cut)",
        "the gradient of the first layer's input counted, which nobody asks for",
    ),
    Mutation(
        "03",
        "helpers/sources/within_layer.py",
        "received_bytes=sum(part.output_bytes for part in work[1:])",
        "received_bytes=sum(part.output_bytes for part in work)",
        "a part receives what it has already",
    ),
    Mutation(
        "06",
        "helpers/feeding/pipeline.py",
        "step_s = sum(longest.values())",
        "step_s = max(longest.values())",
        "what happens in turn takes as long as the longest part",
    ),
    Mutation(
        "06",
        "helpers/feeding/loading.py",
        "if getattr(first, name) != getattr(second, name))",
        "if getattr(first, name) == getattr(second, name))",
        "what stayed the same named as what changed",
    ),
    Mutation(
        "07",
        "helpers/operations/profile.py",
        "return formulas.rule_for(call.name).forward(call).macs + call.output.numel",
        "return formulas.rule_for(call.name).forward(call).macs",
        "the lecture's bias forgotten",
    ),
    Mutation(
        "07",
        "helpers/operations/formulas.py",
        "if wanted.needs_grad:\n                total += _product(call, macs(call)) + traffic([call.output, other]",
        "if True:\n                total += _product(call, macs(call)) + traffic([call.output, other]",
        "the gradient of the input counted, which nobody asks for",
    ),
    Mutation(
        "07",
        "helpers/memory/layers.py",
        "saved[layer] += 0 if storage in trace.carried else sizes[storage]",
        "saved[layer] += sizes[storage]",
        "parameters counted as saved for backward",
    ),
    Mutation(
        "07",
        "helpers/memory/timeline.py",
        "last if life.end is None else life.end",
        "last",
        "no tensor is released before the end of the step",
    ),
    Mutation(
        "02",
        "helpers/hardware/history.py",
        "_slope(years, np.log2(values))",
        "_slope(years, np.log(values))",
        "growth by a factor of e called a doubling",
    ),
    Mutation(
        "02",
        "helpers/hardware/history.py",
        "/ math.log(wide.bits / narrow.bits)",
        "/ math.log2(wide.bits / narrow.bits)",
        "two kinds of logarithm in one exponent",
    ),
    Mutation(
        "08",
        "helpers/training/estimate.py",
        "confidence_share=1 - 2 * 0.5**timed_steps",
        "confidence_share=1 - 0.5**timed_steps",
        "an interval that can be missed on one side only",
    ),
    Mutation(
        "08",
        "helpers/training/estimate.py",
        "return len(loader.sampler) / batch_size",
        "return float(len(loader))",
        "the smaller last batch counted as a whole one",
    ),
    Mutation(
        "04",
        "helpers/parallel/collectives.py",
        'ports["in", message.target] += message.size_bytes',
        'ports["out", message.target] += message.size_bytes',
        "what a port receives counted as sent",
    ),
    Mutation(
        "04",
        "helpers/parallel/data_parallel.py",
        "    flat /= dist.get_world_size()\n",
        "",
        "gradients summed and not averaged",
    ),
    Mutation(
        "12",
        "helpers/studies/fused_bias/counting.py",
        "step.reads * whole + step.bias_reads * bias",
        "step.reads * whole",
        "the bias itself is read for nothing",
    ),
    Mutation(
        "12",
        "helpers/studies/fused_bias/counting.py",
        "return sum(kernel.written_bytes for kernel in self.kernels)",
        "return sum(kernel.written_bytes for kernel in self.kernels[-1:])",
        "only the last kernel writes",
    ),
    Mutation(
        "05",
        "helpers/parallel/towers.py",
        '("all_gather", "reduce_scatter")) * (ranks - 1) // ranks',
        '("all_gather", "reduce_scatter"))',
        "a tower that receives what it has already",
    ),
    Mutation(
        "05",
        "helpers/parallel/towers.py",
        "saved[running[-1]] += storage.nbytes()",
        "saved[running[-1]] += tensor.numel()",
        "elements of a saved tensor taken for bytes",
    ),
    Mutation(
        "05",
        "helpers/parallel/footprint.py",
        "return sum(each.numel() * each.element_size() for each in tensors)",
        "return sum(each.numel() * each.element_size() for each in tensors) // 2",
        "half of the optimizer's state forgotten",
    ),
    Mutation(
        "11",
        "helpers/studies/constant_weights/network.py",
        "return sum(layer.weights.size for layer in self.layers)",
        "return sum(layer.weights.size + layer.bias.size for layer in self.layers)",
        "a bias counted as a multiply-add",
    ),
    Mutation(
        "11",
        "helpers/native/sass.py",
        "return next((kind for kind in OPERAND_KINDS if kind in found), None)",
        "return next((kind for kind in reversed(OPERAND_KINDS) if kind in found), None)",
        "a register taken for what feeds a multiply-add with an immediate",
    ),
)
