from .conventions import convention_table as convention_table
from .formulas import register as register, work as work
from .peers import PeerTable as PeerTable, count_with_peers as count_with_peers
from .profile import ForwardError as ForwardError, ModelError as ModelError, profile_ops as profile_ops
from .report import (
    LayerOperations as LayerOperations,
    LayerOperator as LayerOperator,
    LectureLayer as LectureLayer,
    LectureTable as LectureTable,
    OperationProfile as OperationProfile,
    OperatorOperations as OperatorOperations,
)
