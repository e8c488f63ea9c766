"""``doctor``: says what of kvkeep works on this machine, and what to change where it does not.

Must not know: how anything is found out (``hostcheck`` and its like). Runs in: the
process of the command line, which imports nothing of CUDA: that is tried in children.
"""

from __future__ import annotations

import json
import os

import click

from server.cli import reaching

EXIT_BROKEN = 1


@click.command(name="doctor")
@reaching.options
def command(endpoint: str | None, as_json: bool) -> None:
    """Try what kvkeep needs of this machine and its GPUs.

    Run it where the server runs and where each engine runs, containers included. It allocates a
    few MiB on each GPU, shares them with a second process, and page-locks 64 MiB, for a moment.
    The exit code is 1 when something will not work.
    """
    from server.cli import findings, gpucheck, hostcheck, presetcheck, setupcheck, tiercheck

    found = hostcheck.findings(os.environ)
    found += setupcheck.findings(os.environ, endpoint)
    found += tiercheck.findings(os.environ)
    found += presetcheck.findings()
    found += gpucheck.findings(os.environ, gpucheck.driver())
    if as_json:
        click.echo(json.dumps(findings.document(found), indent=2))
    else:
        click.echo(findings.table(found))
    if findings.worst(found) is findings.Level.ERROR:
        raise SystemExit(EXIT_BROKEN)
