"""``python -m adapter.conformance.host.ranks FD…``: the process that forks the ranks of a job."""

from __future__ import annotations

import sys

from adapter.conformance.host.ranks.launcher import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
