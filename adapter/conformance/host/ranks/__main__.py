"""``python -m adapter.conformance.host.ranks FD``: the process that jobs are forked from."""

from __future__ import annotations

import sys

from adapter.conformance.host.ranks.launcher import main
from adapter.conformance.host.ranks.nursery import tend

if __name__ == "__main__":
    sys.exit(tend(int(sys.argv[1]), main))
