"""The real porter with a tier in memory in place of the disk, as a program."""

import sys

from server.porter import engines, main

engines._MODULES["disk"] = "tests.server.porter.memorytier"

if __name__ == "__main__":
    main.main(sys.argv[1:])
