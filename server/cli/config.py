"""``config``: the settings that ``launch`` would use, and where each comes from.

Must not know: what a setting does. Runs in: the process of the command line.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from server.cli import reaching
from server.cli.launch import by_key, lmcache_options, settings_options

if TYPE_CHECKING:
    from server.config import ServerConfig
    from server.gathering import Gathered

DEFAULT = "default"


@click.command(name="config")
@settings_options
@lmcache_options
@click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout.")
@click.option(
    "--reference", is_flag=True, help="Write the reference of all settings, in Markdown, instead."
)
def command(as_json: bool, reference: bool, **options: Any) -> None:
    """Show the settings that launch would use with these options, and where each comes from.

    Nothing is started or touched. The exit code is 2 when a setting is wrong or unknown, as for
    launch.
    """
    from protocol.errors import ConfigError
    from server import config, gathering

    if reference:
        from server.cli.reference import markdown

        click.echo(markdown(), nl=False)
        return
    try:
        gathering.refuse_unknown(os.environ)
        named, notes = by_key(options)
        gathered = gathering.gather(named, os.environ)
        notes += gathered.notes
        rows = effective(config.parse(gathered, os.environ), gathered)
    except ConfigError as error:
        reaching.refuse(str(error))
    if as_json:
        reaching.show({"settings": rows, "notes": notes})
        return
    for note in notes:
        click.echo(f"kvkeep: {note}", err=True)
    click.echo(text(rows))


def effective(settings: ServerConfig, gathered: Gathered) -> dict[str, dict[str, str]]:
    """Each setting as it holds.

    Args:
        settings: checked.
        gathered: what they were made of.

    Returns:
        By key: ``value``, ``source`` and ``variable``.
    """
    from server.schema import SETTINGS
    from server.shell.arena import default_directory
    from server.sizes import format_size

    url, uid = settings.endpoint.url, os.geteuid()
    values = {
        "endpoint": url,
        "l1-size": format_size(settings.arena_bytes) if settings.arena_bytes else "",
        "arena-dir": settings.arena_dir or default_directory(url, uid),
        "arena-at-exit": settings.arena_at_exit,
        "extent-size": format_size(settings.extent_bytes) if settings.extent_bytes else "",
        "incomplete-timeout": f"{settings.incomplete_timeout_s:g} s",
        "promote-deadline": f"{settings.promote_deadline_s:g} s",
        "log-level": settings.log_level,
        "log-format": settings.log_format,
        "cgroup-root": settings.cgroup_root,
    }
    rows = {}
    for key, setting in SETTINGS.items():
        given = gathered.values.get(key)
        text = given.text.strip() if given is not None else ""
        rows[key] = {
            "value": values.get(key) or text or setting.default,
            # Given but empty is as good as not given, wherever it is not refused.
            "source": given.source if given is not None and text else DEFAULT,
            "variable": setting.variable,
        }
    return rows


def text(rows: dict[str, dict[str, str]]) -> str:
    """Settings for people."""
    from server.cli.tables import Column, table

    columns = [Column("setting"), Column("value", can_shrink=True), Column("from")]
    return table(columns, [[key, one["value"], one["source"]] for key, one in rows.items()])
