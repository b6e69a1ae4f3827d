from ._agreement import agree as agree
from ._checks import Checks as Checks, NotYet as NotYet, not_yet as not_yet
from ._lesson_checks import checks_of as checks_of
from ._machine import FakeMachine as FakeMachine
