"""The reference of all settings, written from their schema: docs/configuration.md.

Must not know: where values come from. Runs in: the process of the command line.
"""

from __future__ import annotations

from server.lmcachenames import FILE_VARIABLE, FLAGS, WITHOUT_COUNTERPART
from server.schema import SETTINGS, Setting

_HEAD = """\
# Configuration

<!-- Written by `kvkeep config --reference` out of the schema in the code: change it there. -->

Every setting of the server. The command line comes before the environment, the environment before
the file of `--config`, that before a file of LMCache's, and all of them before the default.
`kvkeep config` shows what holds and where it comes from:

```console
$ kvkeep config --l1-size 20G
```

Sizes are bytes, or numbers with K, M, G or T for powers of 1024 (`512M`, `1.5T`, `20GiB`). The
file has a line `l1-size = 20G` for each setting, named as the options are; `#` begins a comment. A
setting that does not exist is refused, in the file and in the environment, with the one that was
most likely meant. What each does at length is in [operations](operations.md#launch-options), what a
tier can be told [there too](operations.md#lower-tiers); engines have [settings of their
own](operations.md#settings-of-engines).

| option | environment | unit | valid | default | for |
| --- | --- | --- | --- | --- | --- |
"""
_LMCACHE = f"""
## Names of LMCache

`launch` takes these flags of LMCache's server, and reads the file that `{FILE_VARIABLE}` names,
so that scripts go on working. More of it is in [coming from LMCache](from-lmcache.md).

| flag | here |
| --- | --- |
"""
_MAPPED = {
    "host": "with `--port`, the endpoint `tcp://HOST:PORT`; loopback only",
    "port": "the same; 5555 where only `--host` is given",
    "l1-size-gb": "`--l1-size`, in GiB",
}


def markdown() -> str:
    """The whole page, with a line break at its end."""
    rows = [_row(setting) for setting in SETTINGS.values()]
    flags = [
        f"| `--{name}` | {_MAPPED.get(name) or f'no counterpart: {WITHOUT_COUNTERPART[name]}'} |"
        for name in FLAGS
    ]
    return _HEAD + "\n".join(rows) + "\n" + _LMCACHE + "\n".join(flags) + "\n"


def _row(setting: Setting) -> str:
    often = ", more than once if need be" if setting.is_repeated else ""
    hidden = "" if setting.is_shown else "; not in the help"
    cells = (
        f"`--{setting.key}`{often}",
        f"`{setting.variable}`",
        setting.unit,
        setting.valid,
        setting.default,
        setting.purpose + hidden,
    )
    return f"| {' | '.join(cells)} |"
