"""Operations of a model: MACs, FLOPs and bytes by layer and by operator; forward, backward and optimizer.

Lesson 07.
"""

from helpers.operations.conventions import convention_table
from helpers.operations.formulas import register, work
from helpers.operations.peers import PeerTable, count_with_peers
from helpers.operations.profile import profile_ops
from helpers.operations.report import (
    LayerOperations,
    LayerOperator,
    LectureLayer,
    LectureTable,
    OperationProfile,
    OperatorOperations,
)
from helpers.steps import ForwardError, ModelError

__all__ = [
    "ForwardError", "LayerOperations", "LayerOperator", "LectureLayer", "LectureTable", "ModelError",
    "OperationProfile", "OperatorOperations", "PeerTable", "convention_table", "count_with_peers", "profile_ops",
    "register", "work",
]  # fmt: skip
