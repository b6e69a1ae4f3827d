from ._calls import (
    CalledLibrary as CalledLibrary,
    DispatchedOperator as DispatchedOperator,
    Gap as Gap,
    GeneratedKernel as GeneratedKernel,
    OperatorCount as OperatorCount,
    Primitive as Primitive,
    StackTrace as StackTrace,
    trace_calls as trace_calls,
)
from ._logs import read_log as read_log
from .figures import draw_levels as draw_levels, draw_tile as draw_tile
