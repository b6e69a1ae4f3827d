"""The ranks and links that parallelism stands on, handed on under its name."""

from helpers.links import Link as Link, Recorder as Recorder, joined as joined
from helpers.ranks import (
    FIRST_MACHINE as FIRST_MACHINE,
    RankError as RankError,
    RankOutput as RankOutput,
    Ranks as Ranks,
    RankState as RankState,
    ScriptRun as ScriptRun,
    TorchrunError as TorchrunError,
    available_links as available_links,
    on_two_machines as on_two_machines,
    torchrun as torchrun,
)
