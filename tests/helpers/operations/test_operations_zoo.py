"""Models that others wrote, called with masks, labels and lengths, against torch's own counter of a real run."""

from __future__ import annotations

from math import prod

import model_zoo
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from helpers.operations import profile_ops
from helpers.steps import tensors_of


def _flops_of_convolution_backward(grad, x, w, _bias, _stride, _padding, _dilation, transposed, _output_padding,
                                   _groups, wanted, out_shape=None):  # fmt: skip
    """Torch's own rule takes no heed of groups; one product of the forward's size for each gradient is right."""
    return 2 * prod(x if transposed else grad) * prod(w[1:]) * sum(map(bool, wanted[:2]))


def counted_by_torch(model, inputs):
    """Return the FLOPs of products, forward and backward, of a real step with attention taken apart."""
    rules = {torch.ops.aten.convolution_backward: _flops_of_convolution_backward}
    with FlopCounterMode(display=False, custom_mapping=rules) as counter, sdpa_kernel(SDPBackend.MATH):
        outputs = model(**inputs)
        forward = counter.get_total_flops()
        sum(tensor.float().sum() for tensor in tensors_of(outputs) if tensor.requires_grad).backward()
    return forward, counter.get_total_flops() - forward


@pytest.mark.parametrize("name", model_zoo.CASES)
def test_counted_as_a_real_run_is(name):
    model, inputs = model_zoo.CASES[name]()
    model.eval()
    profile = profile_ops(model, inputs=inputs, values=name == "switch")  # which expert takes whom hangs on values
    if hasattr(model, "set_experts_implementation"):  # torch counts no grouped product, and every other one
        model.set_experts_implementation("eager")
    assert (2 * profile.forward_macs, 2 * profile.backward_macs) == counted_by_torch(model, inputs)
    assert (profile.may_hold_products, profile.random_draws) == ((), ())


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe"])
def test_experts_by_group_and_one_by_one(name):
    model, inputs = model_zoo.CASES[name]()
    grouped, half = profile_ops(model, inputs=inputs), profile_ops(model.bfloat16(), inputs=inputs)
    model.float().set_experts_implementation("eager")
    one_by_one = profile_ops(model, inputs=inputs, values=True)
    assert grouped.forward_macs == half.forward_macs == one_by_one.forward_macs
    assert grouped.backward_macs == half.backward_macs == one_by_one.backward_macs
