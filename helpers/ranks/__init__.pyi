from ._failures import RankError as RankError, RankState as RankState
from ._ranks import Ranks as Ranks
from ._scripts import (
    RankOutput as RankOutput,
    ScriptRun as ScriptRun,
    TorchrunError as TorchrunError,
    torchrun as torchrun,
)
