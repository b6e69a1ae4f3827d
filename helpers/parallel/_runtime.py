"""The ranks and links that parallelism stands on, handed on under its name: ``__init__.pyi`` lists which."""

from helpers.links import PUBLISHED_LINKS as PUBLISHED_LINKS, Link as Link, Recorder as Recorder, joined as joined
from helpers.ranks import *  # noqa: F403
