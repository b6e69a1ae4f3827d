from ._caller import Outcome as Outcome, run_limited as run_limited
