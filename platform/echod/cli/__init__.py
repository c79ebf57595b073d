"""The command line: one small file per family of verbs, loaded only when its verb is named."""

from __future__ import annotations

import sys


def main() -> None:
    """Run one verb. Exits 0: done, 1: the run failed, 2: usage or refused input, 3: nothing listens, 4: timed out."""
    from echod.cli.app import run

    sys.exit(run(sys.argv[1:]))
