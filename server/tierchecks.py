"""Settings of tiers that can never work, told before anything is started.

Purpose: a tier that cannot be opened is tried again and again, which is right for a store that is
away and wrong for a file that is not there. Files are looked at, never read: a secret is read by
the porter alone. Must not know: engines. Runs in: the main process, at start; the doctor's.
"""

from __future__ import annotations

import importlib.util
import os
import stat
from collections.abc import Sequence

from protocol.errors import ConfigError, ErrorCode
from protocol.extras import install
from server.tieroptions import is_loopback
from server.tierspec import KEY, TierSpec

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check(specs: Sequence[TierSpec]) -> None:
    """Checks what is known without asking anybody.

    Args:
        specs: of a server's tiers.

    Raises:
        ConfigError: INVALID_CONFIG; the line names the tier, what is wrong and what is expected.
    """
    for spec in specs:
        if spec.kind == "s3":
            _check_endpoint(spec)
        if spec.kind == "valkey" and spec.text("ca"):
            if not spec.flag("tls"):
                raise _wrong(spec, "ca= is for TLS: expected tls=yes with it, or no ca")
            _check_file(spec, "ca", spec.text("ca"), is_secret=False)
        if spec.credentials:
            _check_file(spec, "credentials", spec.credentials, is_secret=True)
        if spec.keys:
            _check_keys(spec)


def _check_endpoint(spec: TierSpec) -> None:
    endpoint = spec.text("endpoint")
    is_clear = endpoint.startswith("http://") and not is_loopback(endpoint)
    if is_clear and not spec.flag("insecure"):
        what = "it would carry all values in the clear; expected https://, or insecure=yes"
        raise _wrong(spec, f"endpoint={endpoint}: {what}")


def _check_keys(spec: TierSpec) -> None:
    _check_file(spec, "keys", spec.keys, is_secret=True)
    if os.stat(spec.keys).st_uid not in (os.geteuid(), 0):
        raise _wrong(spec, f"keys={spec.keys}: it is neither this user's nor root's")
    if importlib.util.find_spec("cryptography") is None:
        what = f"the package cryptography is missing: {install('encryption')}"
        raise _wrong(spec, f"keys={spec.keys}: {what}")


def _check_file(spec: TierSpec, option: str, path: str, is_secret: bool) -> None:
    try:
        found = os.stat(path)
    except OSError as error:
        raise _wrong(spec, f"{option}={path}: {error.strerror}") from None
    if not stat.S_ISREG(found.st_mode):
        raise _wrong(spec, f"{option}={path}: it is no regular file")
    if is_secret and found.st_mode & _OTHERS:
        raise _wrong(
            spec,
            f"{option}={path}: others than its owner may use it (mode "
            f"{stat.S_IMODE(found.st_mode):04o}); expected 0600 or 0400",
        )
    if not os.access(path, os.R_OK):
        raise _wrong(spec, f"{option}={path}: this user may not read it")


def _wrong(spec: TierSpec, text: str) -> ConfigError:
    return ConfigError(ErrorCode.INVALID_CONFIG, f"{KEY}: {spec.name}: {text}", key=KEY)
