"""The real porter with a tier in memory in place of the disk, as a program."""

import os
import sys

from server.porter import engines, jobs, main

engines._MODULES["disk"] = "tests.server.porter.memorytier"
jobs.CALL_S = float(os.environ.get("KVKEEP_TEST_CALL_S", jobs.CALL_S))

if __name__ == "__main__":
    main.main(sys.argv[1:])
