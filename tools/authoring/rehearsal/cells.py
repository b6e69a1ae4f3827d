"""The program that runs notebooks in a process with a setting's limits, and writes a line of
failures for each.
"""

from __future__ import annotations

import json
import sys
from dataclasses import astuple
from pathlib import Path

from tools.authoring import strict, warm

CELL_TIMEOUT_S = 600  # fewer instructions, and one core, take longer than a test allows


def main() -> None:
    """Read on standard input what to run, and write to the file of the first argument."""
    request = json.load(sys.stdin)
    with warm.kernels() as kernels, Path(sys.argv[1]).open("w", encoding="utf-8") as output:
        for notebook in map(Path, request["notebooks"]):
            failures = strict.failures(
                notebook,
                Path(request["root"]),
                sanitize=Path(request["sanitize"]),
                kernels=kernels,
                variables=request["variables"],
                cell_timeout_s=CELL_TIMEOUT_S,
            )
            output.write(json.dumps([astuple(failure) for failure in failures]) + "\n")
            output.flush()
            print(f"{notebook.name}: {len(failures)} changed", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
