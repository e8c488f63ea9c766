"""What ``doctor`` looks at of the server: whether one answers, how it is, what keeps one from it.

Must not know: how findings are shown; it starts and touches nothing, and asks the server as any
operator does. Runs in: the process of the command line.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from protocol import __version__, endpoint
from protocol.errors import ConfigError, KvkeepError
from protocol.messages import StatusReply
from server import asking, config
from server.cli import overview, reaching
from server.cli.findings import Finding, Level
from server.config import ServerConfig
from server.gathering import Gathered
from server.remarks import remarks
from server.web import listen

ASK_LIMIT_S = 3.0
ABOUT = "server"

_STOPPED = "Tt"
"""States of a process that was stopped by a signal, or by whoever traces it."""

_REPLACED = "it is replaced ten seconds after it is next given work"
_CHILDREN = {
    "server.copier.host": ("the copier of host memory", _REPLACED),
    "server.copier.gpu": ("a GPU's copier", _REPLACED),
    "server.porter.main": ("a tier's porter", _REPLACED),
    "server.web": (
        "the process that serves pages",
        "no page is answered until then; it is replaced when silent for 10 s",
    ),
    "server.tracing": (
        "the process that sends spans",
        "none is sent until then; it is replaced when silent for 10 s",
    ),
}
"""What each is, and what follows where it is stopped."""

_ADVICE = (
    ("tier ", "mend what it names: it is tried again by itself; docs/runbook.md, A tier is down"),
    ("the copier ", "docs/runbook.md, Nothing is saved; a stopped one is named below"),
    ("the arena's file system", "free it, or a smaller --l1-size"),
    ("the server is ending", "kvkeep launch, once it has ended: what is cached stays"),
)
ENGINE_VARIABLES = ("TRTLLM_KVKEEP_SERVER_URL", "LMCACHE_SERVER_URL")
"""Of engines, the first that is there holds; the server itself reads none of them."""

EMBEDDED_URL = "inproc://"

_LOG = "docs/runbook.md, and the server's log"


def findings(settings: ServerConfig, source: str, environ: Mapping[str, str]) -> list[Finding]:
    """Whether a server answers where it is looked for, and how it is.

    Args:
        settings: say where.
        source: what named the endpoint; empty for the default one.
        environ: of this process, for the default one.
    """
    side_path = settings.endpoint.side_path(settings.runtime_dir)
    try:
        with asking.connected(side_path, ASK_LIMIT_S, "doctor") as asker:
            status, stats = asker.status(ASK_LIMIT_S), asker.stats(ASK_LIMIT_S)
            quotas = reaching.quotas(asker)
    except asking.EndpointRemovedError as error:
        return [_unreachable(settings.endpoint.url, error)]
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
        if isinstance(error, FileNotFoundError) and asking.is_without_side(side_path):
            gone = asking.EndpointRemovedError(side_path)
            return [_unreachable(settings.endpoint.url, gone)]
        found = [_absent(settings, side_path, error)]
        return [*found, *_elsewhere(settings, source, environ), *ports(settings)]
    except TimeoutError as error:
        return [_silent(settings.endpoint.url, side_path, error)]
    except (OSError, KvkeepError) as error:
        advice = (
            "the same user, or the group of --group? See docs/security.md, and the server's log"
        )
        return [Finding(Level.ERROR, ABOUT, f"{settings.endpoint.url}: {error}", advice)]
    found = [
        *told(settings, status, stats),
        *pages(status, stats, settings.http),
        *stopped(status.server.pid),
    ]
    pages_at = f", pages at {status.server.http}" if status.server.http else ""
    text = f"{status.server.version} at {settings.endpoint.url}, pid {status.server.pid}{pages_at}"
    notes = [Finding(Level.NOTE, ABOUT, line) for line in remarks(status, stats, quotas)]
    return [*(found or [Finding(Level.OK, ABOUT, text)]), *notes]


def told(settings: ServerConfig, status: StatusReply, stats: Mapping[str, int]) -> list[Finding]:
    """What it says of itself.

    Args:
        settings: say where it is.
        status: its answer.
        stats: its counters.
    """
    found = []
    for line in overview.reasons(status, stats):
        advice = next((text for start, text in _ADVICE if line.startswith(start)), _LOG)
        found.append(Finding(Level.WARNING, ABOUT, line, advice))
    version = status.server.version
    if version != __version__:
        text = f"{version} at {settings.endpoint.url}, pid {status.server.pid}; this is "
        advice = f"restart it with {__version__}: what is cached stays"
        found.append(Finding(Level.WARNING, ABOUT, text + __version__, advice))
    return found


# --- nobody there --------------------------------------------------------------------------------


def _absent(settings: ServerConfig, side_path: str, error: OSError) -> Finding:
    url, folder = settings.endpoint.url, Path(side_path).parent
    if isinstance(error, ConnectionRefusedError):
        text = f"none at {url}; one was there, and did not end by itself"
        return Finding(Level.NOTE, ABOUT, text, "kvkeep launch: it takes the cache over")
    if not folder.is_dir():
        advice = (
            "kvkeep launch makes it; in a container, mount the folder that the server has there"
        )
        return Finding(Level.NOTE, ABOUT, f"none at {url}: there is no folder {folder}", advice)
    return Finding(Level.NOTE, ABOUT, f"none at {url}", "kvkeep launch")


def _elsewhere(settings: ServerConfig, source: str, environ: Mapping[str, str]) -> list[Finding]:
    """A server at the default endpoint, where a setting names another one."""
    if not source:
        return []
    default = config.parse(Gathered({}), environ)
    side_path = default.endpoint.side_path(default.runtime_dir)
    if default.endpoint.url == settings.endpoint.url or _owner(side_path) is None:
        return []
    text = f"one is at {default.endpoint.url}, but {source} names {settings.endpoint.url}"
    advice = f"unset {source}, or set it to where the server is, for engines too"
    return [Finding(Level.WARNING, ABOUT, text, advice)]


def engines(settings: ServerConfig, environ: Mapping[str, str]) -> list[Finding]:
    """Where the variables of engines lead, if there are any here: to the server, or to nobody.

    Args:
        settings: say where the server is looked for.
        environ: of this process.
    """
    name = next((one for one in ENGINE_VARIABLES if one in environ), "")
    if not name:
        return []
    if environ[name].strip() == EMBEDDED_URL:
        text = f"{name}: each engine starts a server of its own and uses no other"
        return [Finding(Level.NOTE, "engines", text)]
    try:
        told = endpoint.parse(environ[name])
    except ConfigError as error:
        advice = f"{name}={settings.endpoint.url}: engines with this one run uncached"
        return [Finding(Level.ERROR, "engines", f"{name}: {error.message}", advice)]
    text = f"{name} leads them to {told.url}"
    if (
        told.url == settings.endpoint.url
        or _owner(told.side_path(settings.runtime_dir)) is not None
    ):
        return [Finding(Level.OK, "engines", text)]
    advice = (
        f"{name}={settings.endpoint.url}, where doctor looks for the server, or start one there"
    )
    return [Finding(Level.ERROR, "engines", f"{text}, where nobody listens", advice)]


def ports(settings: ServerConfig) -> list[Finding]:
    """Ports that ``launch`` would need and that another program has.

    Args:
        settings: name them.
    """
    found = []
    if settings.endpoint.is_tcp:
        host, port = settings.endpoint.host.strip("[]"), settings.endpoint.port
        if why := taken(host, port):
            text = f"{settings.endpoint.url} cannot be had: {why}"
            found.append(Finding(Level.ERROR, "ports", text, _who_has(port)))
    if settings.http:
        at = listen.parse(settings.http)
        if why := taken(at.host, at.port):
            text = f"no pages could be served at {at.netloc()}: {why}"
            found.append(Finding(Level.WARNING, "ports", text, _who_has(at.port)))
    return found


def taken(host: str, port: int) -> str:
    """Why nobody could listen at a port now; empty where one could.

    Args:
        host: address or name, without brackets.
        port: 1 to 65535.
    """
    try:
        kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=passive)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        number = error.errno or 0  # below 0: of a name that leads nowhere
        return os.strerror(number) if number > 0 else str(error.strerror)
    return ""


def _who_has(port: int) -> str:
    return f"ss -ltnp 'sport = :{port}' names who has it: end that, or choose another port"


# --- somebody there ------------------------------------------------------------------------------


def _unreachable(url: str, error: asking.EndpointRemovedError) -> Finding:
    """A server that nobody new can come to."""
    advice = "see who removes files there: RemoveIPC of logind, a cleaner of /tmp"
    return Finding(Level.ERROR, ABOUT, f"{url}: {error}", advice)


def _silent(url: str, side_path: str, error: TimeoutError) -> Finding:
    """Somebody has the socket, and does not answer."""
    pid = _owner(side_path) or 0
    if pid and _state(pid) in _STOPPED:
        return Finding(Level.ERROR, ABOUT, f"{url}: pid {pid} is stopped", f"kill -CONT {pid}")
    advice = (
        f"it hangs, is stopped (ps shows T: kill -CONT), or the machine is overloaded: {_LOG}; "
        "kill -9 and kvkeep launch take the cache over"
    )
    who = f", pid {pid}" if pid else ""
    return Finding(Level.ERROR, ABOUT, f"{url}{who}: {error}", advice)


def pages(status: StatusReply, stats: Mapping[str, int], http: str = "") -> list[Finding]:
    """Pages that were asked for and are not served.

    Args:
        status: what the server says of itself.
        stats: its counters.
        http: where this environment has pages served, if its command line does not say.
    """
    if "web_pid" not in stats or status.server.http:
        return []
    if stats.get("complaint_web_refused", 0):
        where = _typed_http(status.server.pid) or http
        at = f" at {where}" if where else ""
        text = f"no pages are served{at}: their port is taken, or may not be used"
        advice = "the log's web_refused names it; ss -ltnp says who has it"
        return [Finding(Level.WARNING, "pages", text, advice)]
    return [Finding(Level.NOTE, "pages", "not served yet, or started again just now")]


def stopped(pid: int) -> list[Finding]:
    """Children of the server that somebody has stopped, as far as they can be seen from here.

    Args:
        pid: of the server, as it says; in another process namespace that is nobody, or another.
    """
    found = []
    for child in _children(pid):
        what, follows = _role(child)
        if what and _state(child) in _STOPPED:
            text = f"{what} (pid {child}) is stopped"
            advice = f"kill -CONT {child}; {follows}"
            found.append(Finding(Level.WARNING, ABOUT, text, advice))
    return found


def _owner(side_path: str) -> int | None:
    """Process that listens at a socket, 0 for one of another namespace; None for nobody."""
    kind = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
    with closing(socket.socket(socket.AF_UNIX, kind)) as asks:
        asks.settimeout(ASK_LIMIT_S)
        try:
            asks.connect(side_path)
            told = asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    return int(struct.unpack("3i", told)[0])


def _children(pid: int) -> Sequence[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    except (OSError, ValueError):
        return []
    return found


def _typed_http(pid: int) -> str:
    """What a server's command line has for ``--http``; empty where it has none, or is hidden."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return ""
    given = [word.removeprefix("--http=") for word in words if word.startswith("--http=")]
    given += [words[at + 1] for at, word in enumerate(words[:-1]) if word == "--http"]
    return given[-1] if given else ""


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return "?"
    return text.rpartition(")")[2].split()[0]


def _role(pid: int) -> tuple[str, str]:
    """Which of kvkeep's children a process is, as above; empty for none of them."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return "", ""
    module = words[words.index("-m") + 1] if "-m" in words[:-1] else ""
    return _CHILDREN.get(module, ("", ""))
