"""Runs a page's commands as they stand, one after the other in one shell, in a folder of its own.

What a machine has at fixed places (``/etc``, ports, addresses, hundreds of gigabytes) is swapped
for something of the test's own; nothing else of a command is changed. What a page starts in the
background is ended before the same is started again, and at the end. Runs in the pytest process;
every wait is bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.docs.how import Run
from tests.repository import tree
from tests.stores.valkey import binary
from tests.wire.ports import free_port

LIMIT_S: Final = 100.0
READY_S: Final = 20
END_S: Final = 3
LINKS: Final = ("adapter", "deploy", "docs", "protocol", "server", "tests")
#: Files that an operator has made before.
FILES: Final = {"etc/kvkeep/s3": "access_key_id = a\nsecret_access_key = b\n"}
FOLDERS: Final = (
    *("etc/systemd/system", "etc/kvkeep", "build", "home"),
    *("var/lib", "var/cache", "mnt/nvme", "bin", ".venv/bin"),
)

#: Waits until a file has a line, as long as the program that writes it runs.
FUNCTIONS = f"""
await() {{
  for _ in $(seq {READY_S * 20}); do
    grep -qE -- "$3" "$2" && return 0
    kill -0 "$1" 2>/dev/null || return 1
    sleep 0.05
  done
  return 1
}}
finish() {{ # its process, and where its exit code goes
  kill "$1" 2>/dev/null
  for _ in $(seq {END_S * 20}); do
    kill -0 "$1" 2>/dev/null || break
    sleep 0.05
  done
  kill -9 "$1" 2>/dev/null
  wait "$1"
  echo $? >"$2"
}}
"""


class Scratch:
    """A folder that stands for a machine with a checkout.

    Args:
        folder: empty.
        short: empty, with a path short enough for sockets.
        shared: empty, in shared memory.
        environ: more of the commands' environment, such as the endpoint of a server that runs.
    """

    def __init__(
        self, folder: Path, short: Path, shared: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.short = short
        self.has_server = "KVKEEP_ENDPOINT" in (environ or {})
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        for name, text in FILES.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o600)
        for name in LINKS:
            (folder / name).symlink_to(tree.ROOT / name)
        self._program("python", f'exec {shlex.quote(sys.executable)} "$@"')
        self._program("kvkeep", f'exec {shlex.quote(sys.executable)} -m server "$@"')
        shutil.copy(folder / "bin" / "python", folder / ".venv" / "bin" / "python")
        with contextlib.suppress(ImportError):
            self._program("valkey-server", f'exec {shlex.quote(binary())} "$@"')
        beside = Path(sys.executable).parent
        self.environ = {
            **os.environ,
            "PATH": f"{folder}/bin:{beside}:{os.environ['PATH']}",
            "PYTHONPATH": str(tree.ROOT),
            "HOME": f"{folder}/home",
            "XDG_RUNTIME_DIR": str(short),
            "KVKEEP_ARENA_DIR": str(shared),
            "KVKEEP_ARENA_AT_EXIT": "remove",
            **(environ or {}),
        }

    def _program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def run(self, commands: Sequence[tuple[str, Run]]) -> list[str]:
        """Runs all of them.

        Args:
            commands: with how each is run.

        Returns:
            A line for each that did not come to its exit code, with what it printed.
        """
        ports: dict[str, int] = {}
        lines = [FUNCTIONS, f"cd {shlex.quote(str(self.folder))}", "set -o pipefail"]
        running: dict[str, str] = {}
        for number, (command, how) in enumerate(commands):
            text = self.swapped(f"{command} {how.more}".strip(), ports)
            out, rc = f"out-{number}", f"rc-{number}"
            if not how.ready:
                lines.append(f"{{\n{text}\n}} >{out} 2>&1 </dev/null; echo $? >{rc}")
                continue
            name = program(command)
            if name in running:
                lines.append(running.pop(name))
            if name == "launch" and self.has_server:
                text += f" --endpoint ipc://{self.short}/own"
            lines += [f"{text} >{out} 2>&1 </dev/null &", f"pid{number}=$!"]
            lines.append(
                f"await $pid{number} {out} {shlex.quote(how.ready)} || echo no >not-{number}"
            )
            running[name] = f"finish $pid{number} {rc}"
        lines += reversed(running.values())
        script = "\n".join(lines) + "\n"
        self._bash(script)
        return [line for number, one in enumerate(commands) for line in self._judged(number, *one)]

    def _bash(self, script: str) -> None:
        (self.folder / "script").write_text(script)
        with subprocess.Popen(
            ["bash", "script"], cwd=self.folder, env=self.environ, start_new_session=True
        ) as shell:
            try:
                shell.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(shell.pid, 9)

    def _judged(self, number: int, command: str, how: Run) -> list[str]:
        out = self.folder / f"out-{number}"
        said = out.read_text(errors="replace")[-2000:] if out.exists() else "it was not begun"
        if (self.folder / f"not-{number}").exists():
            return [f"{command}: did not say {how.ready!r}: {said}"]
        rc = self.folder / f"rc-{number}"
        code = int(rc.read_text()) if rc.exists() else None
        if code not in how.codes:
            return [f"{command}: exit code {code}, not one of {how.codes}: {said}"]
        if command.endswith(" --json"):
            json.loads(out.read_text())
        return [] if re.search(how.says, said) else [f"{command}: did not say {how.says!r}: {said}"]

    def swapped(self, command: str, ports: dict[str, int]) -> str:
        """A command with a place, a port and a size of the test's own.

        Args:
            command: as the page has it.
            ports: those of the page so far; a server's pages get a new one each time.
        """
        text = re.sub(r"(?<![\w.])/(etc|usr/share|var|mnt)/", rf"{self.folder}/\1/", command)
        text = text.replace("/run/kvkeep/", f"{self.short}/kvkeep/")
        if program(command) == "launch":
            text = re.sub(r"\b\d+[GT]\b", "64M", text)
        text = re.sub(r"\b64 ?(gb|GB)\b", "64MB", text).replace("9177", str(free_port()))

        def port(found: re.Match[str]) -> str:
            return str(ports.setdefault(found[0], paired_port()))

        text = re.sub(r"\b10\.0\.0\.\d\b", "127.0.0.1", text)
        return re.sub(r"\b(50051|50052|6379|8333|9333)\b", port, text)


def paired_port() -> int:
    """A free port that has one 10,000 above: SeaweedFS listens there, too, unasked."""
    for _ in range(100):
        port = free_port()
        if port + 10_000 < 1 << 16:
            return port
    raise AssertionError("100 free ports, and all of them beyond 55,535")


def program(command: str) -> str:
    """What a command runs, in one word."""
    words = shlex.split(command)
    return next((word for word in ("launch", "server.web") if word in words), words[0])
