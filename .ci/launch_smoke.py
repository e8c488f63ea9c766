"""Launch the installed server with its defaults from an empty folder, and stop it with SIGTERM.

Shows that the start-up line comes, that the main process has neither torch nor CUDA mapped, and
that it ends by itself with exit code 0. Bounded: 20 s for each wait.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path

WAIT_S = 20.0


def main() -> None:
    """Run the server once; exit with words when something is off."""
    server = subprocess.Popen(
        [sys.executable, "-m", "server", "launch", "--arena-at-exit", "remove"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killer = threading.Timer(WAIT_S, server.kill)
    killer.start()
    try:
        line = server.stdout.readline() if server.stdout else ""
        if not line:
            raise SystemExit(f"no start-up line within {WAIT_S:.0f} s")
        sys.stdout.write(line)
        maps = Path(f"/proc/{server.pid}/maps").read_text(encoding="utf-8")
        heavy = [word for word in ("torch", "libcuda", "libcudart", "cupy") if word in maps]
        if heavy:
            raise SystemExit(f"the server's main process has mapped: {heavy}")
        server.send_signal(signal.SIGTERM)
        rest, _ = server.communicate(timeout=WAIT_S)
        sys.stdout.write(rest)
    finally:
        killer.cancel()
        server.kill()
    if server.returncode != 0:
        raise SystemExit(f"SIGTERM ended the server with exit code {server.returncode}")
    sys.stdout.write("launched, and ended cleanly on SIGTERM\n")


main()
