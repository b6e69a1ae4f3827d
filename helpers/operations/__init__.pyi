from ._conventions import convention_table as convention_table
from ._counting import OperationCounter as OperationCounter, count_ops as count_ops
from ._formulas import register as register, work as work
from ._profile import (
    ForwardError as ForwardError,
    ModelError as ModelError,
    profile_ops as profile_ops,
)
from ._report import (
    LayerOperations as LayerOperations,
    LayerOperator as LayerOperator,
    LectureLayer as LectureLayer,
    LectureTable as LectureTable,
    OperationProfile as OperationProfile,
    OperatorOperations as OperatorOperations,
)
from ._specs import Call as Call, Work as Work
