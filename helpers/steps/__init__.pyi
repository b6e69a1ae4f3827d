from ._inputs import (
    Arguments as Arguments,
    ForwardError as ForwardError,
    Inputs as Inputs,
    ModelError as ModelError,
    Shape as Shape,
    arguments_of as arguments_of,
    check_model as check_model,
    described as described,
    device_of as device_of,
    dtype_of as dtype_of,
    first_line as first_line,
    zeros_of as zeros_of,
)
from ._objects import opaque_classes as opaque_classes, tensors_of as tensors_of
from ._outside import nothing_left as nothing_left
from ._preserve import preserved as preserved, uncompiled as uncompiled, undisturbed as undisturbed
from ._running import (
    PARTS as PARTS,
    Loss as Loss,
    OptimizerFactory as OptimizerFactory,
    Options as Options,
    Step as Step,
    check_optimizer as check_optimizer,
    copied as copied,
    copied_model as copied_model,
    drop_gradients as drop_gradients,
    in_one_thread as in_one_thread,
    kept_tensors as kept_tensors,
    made_optimizer as made_optimizer,
    run as run,
    step as step,
    sum_of_outputs as sum_of_outputs,
    warm_step as warm_step,
    with_optimizer as with_optimizer,
)
from ._turns import ONE_AT_A_TIME as ONE_AT_A_TIME
