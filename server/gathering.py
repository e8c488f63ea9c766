"""Which settings were given, and by whom: command line over environment over file.

Purpose: the text of each setting beside the place it came from, so that a wrong one can be named
by it and the effective ones can be shown with it. Must not know: what settings mean. Runs in: the
main process, at start; the command line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from protocol.errors import ConfigError, ErrorCode
from server import configfile, lmcachenames
from server.schema import ENVIRONMENT_PREFIX, SETTINGS, nearest
from server.sizes import invalid

COMMAND_LINE = "command line"

SIMULATION = {
    "KVKEEP_SIMULATED_CUDA",
    "KVKEEP_SIMULATED_CUDA_SEED",
    "KVKEEP_SIMULATED_CUDA_DELAY_US",
}
"""Of tests; read by the device's copier, and by nothing of the server's own process."""

CREDENTIALS = {"KVKEEP_VALKEY_USERNAME", "KVKEEP_VALKEY_PASSWORD"}
"""Read by the porter of a tier, and by nothing of the server's own process."""

_LINKED = re.compile(
    r"KVKEEP(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_[A-Z]+(_[A-Z]+)?)"
)
"""What Kubernetes gives each pod for a service whose name begins with ``kvkeep``: no slip."""


@dataclass(frozen=True)
class Given:
    """A setting that somebody gave.

    Attributes:
        text: as it was given.
        source: ``command line``, the name of a variable, the path of a file, or the key of
            LMCache that it came from, with the place of that.
    """

    text: str
    source: str


@dataclass(frozen=True)
class Gathered:
    """All that were given.

    Attributes:
        values: by key.
        notes: one line for each name of LMCache's that has no counterpart here.
    """

    values: Mapping[str, Given]
    notes: tuple[str, ...] = ()


def gather(options: Mapping[str, str | None], environ: Mapping[str, str]) -> Gathered:
    """Finds each setting where it was given first.

    Args:
        options: from the command line by key; None for what was not given.
        environ: environment variables.

    Returns:
        Texts and sources; nothing of them was checked.

    Raises:
        ConfigError: INVALID_CONFIG, of a file that cannot be read, or a line of it.
    """
    values: dict[str, Given] = {}
    for key, setting in SETTINGS.items():
        typed = options.get(key)
        if typed is not None:
            values[key] = Given(typed, COMMAND_LINE)
        elif setting.variable in environ:
            values[key] = Given(environ[setting.variable], setting.variable)
    path = _config_path(values)
    if path:
        for key, text in _file(path, values["config"].source).items():
            values.setdefault(key, Given(text, path))
    foreign = lmcachenames.of_environment(environ)
    for key, found in foreign.values.items():
        values.setdefault(key, Given(found.text, found.source))
    return Gathered(values, foreign.notes)


def _config_path(values: Mapping[str, Given]) -> str:
    given = values.get("config")
    path = given.text.strip() if given is not None else ""
    if given is not None and path and not path.startswith("/"):
        raise _named(given.source, invalid("config", given.text, "an absolute path"))
    return os.path.normpath(path) if path else ""


def _file(path: str, source: str) -> dict[str, str]:
    keys = tuple(key for key, setting in SETTINGS.items() if setting.is_in_file)
    try:
        return configfile.read(path, keys)
    except ConfigError as error:
        raise _named(source, error) from error


def _named(source: str, error: ConfigError) -> ConfigError:
    """An error that says where the setting came from, if that was not typed."""
    if source == COMMAND_LINE:
        return error
    return ConfigError(error.code, f"{source}: {error.message}", **error.detail)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """Variables that look like settings and are none: a slip that would go unnoticed.

    Args:
        environ: environment variables.

    Returns:
        Names, sorted.
    """
    known = {setting.variable for setting in SETTINGS.values()} | SIMULATION | CREDENTIALS
    return sorted(
        name
        for name, value in environ.items()
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known and not _is_linked(name, value)
    )


def refuse_unknown(environ: Mapping[str, str]) -> None:
    """Refuses variables that look like settings and are none.

    Args:
        environ: environment variables.

    Raises:
        ConfigError: INVALID_CONFIG; it names the first, and what was most likely meant.
    """
    for name in unknown_variables(environ):
        # Without what all of them begin with, or every name would look like one of them.
        meant = nearest(name.removeprefix(ENVIRONMENT_PREFIX), SETTINGS)
        known = ", ".join(setting.variable for setting in SETTINGS.values())
        hint = f": did you mean {SETTINGS[meant].variable}?" if meant else f"; there are {known}"
        raise ConfigError(
            ErrorCode.INVALID_CONFIG,
            f"{name} in the environment is no setting of the server{hint}",
            key=name,
        )


def _is_linked(name: str, value: str) -> bool:
    if name.endswith("_PORT") and value.startswith(("tcp://", "udp://", "sctp://")):
        return True
    return _LINKED.fullmatch(name) is not None
