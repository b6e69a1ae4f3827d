from ._failures import RankError as RankError, RankState as RankState
from ._namespaces import (
    FIRST_MACHINE as FIRST_MACHINE,
    available_links as available_links,
    on_two_machines as on_two_machines,
)
from ._ranks import Ranks as Ranks
from ._scripts import (
    RankOutput as RankOutput,
    ScriptRun as ScriptRun,
    TorchrunError as TorchrunError,
    torchrun as torchrun,
)
