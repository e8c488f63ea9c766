"""Builds the server, runs it, and takes it down again.

Purpose: the order of things: endpoint's lock, arena, threads, copier, socket, one line on stdout;
at the end drain, copier, extents, sockets, locks. Must not know: messages, indexes. Runs in: the
main thread of the server's process.
"""

from __future__ import annotations

import logging
import os
import signal
from collections import deque
from functools import partial
from types import FrameType

import zmq

from protocol import __version__
from protocol.errors import ConfigError, ErrorCode, RequestError
from protocol.ids import Epoch
from protocol.logline import Throttle
from server import config as settings
from server import fitting, logsetup, numa, startlines, tierchecks
from server.config import ServerConfig
from server.core.adoption import Adoption
from server.core.config import Adopted, Identity, Outside, TierConfig
from server.core.dispatch import Core, CoreConfig
from server.core.effects import HOST_COPIER
from server.process import (
    calm_collector,
    occupy_standard_descriptors,
    process_age_s,
    raise_descriptor_limit,
)
from server.shell import access, adoption, clock, extents, owedfiles, parties, quotafile
from server.shell import arena as arenas
from server.shell.actions import Actions
from server.shell.awaited import Awaited
from server.shell.complaints import Complaints
from server.shell.copiers import CopierLink
from server.shell.devicecopiers import DeviceCopiers
from server.shell.endpointlock import lock_endpoint
from server.shell.extents import Allocator
from server.shell.guard import Guard
from server.shell.heap import Heap, use_small_pages
from server.shell.journal import STDOUT, Journal
from server.shell.loop import Loop, ThreadDiedError, make_socket
from server.shell.peers import SideSocket
from server.shell.porters import Porters
from server.shell.reports import DrainAsked, Here, Reporter, ReportQueue
from server.shell.sdnotify import Notifier
from server.shell.socketfile import SocketFile
from server.shell.supervisor import Supervisor
from server.sidechildren import SideChildren, wants_traces
from server.tierspec import TierSpec, has_ledger, keeps_quotas

_log = logging.getLogger("kvkeep.server")

DRAIN_LIMIT_S = 5.0
EXIT_FAULT = 1
_END_LIMIT_S = 5.0
_TIERS_LIMIT_S = 2.0
"""Engines of a former server come at once, and what they ask for may lie in a tier. A porter takes
half a second to start, and a tier that takes longer is not waited for."""

_JOURNAL_LIMIT_S = 1.0


class Server:
    """One server in this process.

    Args:
        config: settings.
        journal: writes the start-up line.
        notifier: tells the service manager.
    """

    def __init__(self, config: ServerConfig, journal: Journal, notifier: Notifier) -> None:
        """Takes locks, the arena over, and makes sockets; when it fails, the arena is as it was.

        Raises:
            ConfigError: ENDPOINT_IN_USE, INVALID_CONFIG.
        """
        self._config = config
        self._journal = journal
        self._notifier = notifier
        self._access = access.resolve(config.group)
        self._side_path = config.endpoint.side_path(config.runtime_dir)
        self._epoch = Epoch(os.urandom(16))
        self._begun_ns = clock.now_ns()
        self._started_in_s = 0.0
        self._adopted = Adopted()
        self._own_party = ""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket_file = SocketFile(config.endpoint.path)
        self._watched: list[SocketFile] = []
        self._lock = lock_endpoint(
            config.endpoint, config.runtime_dir, self._access, self._socket_file
        )
        try:
            self._arena = arenas.Arena(
                config.arena_dir or arenas.default_directory(config.endpoint.url, os.geteuid())
            )
        except BaseException:
            self._lock.release()
            raise
        try:
            self._notifier.stage("looking for what the last server left")
            here = parties.Surroundings.here()
            self._parties = parties.Parties(
                self._arena.directory, self._epoch, here, self._arena.foothold.stand
            )
            self._found = adoption.look(
                self._arena.directory, self._arena.id, here, self._arena.outdated
            )
            self._own_party = self._parties.own("server", os.getpid())
            self.arena_bytes = fitting.fit_arena(
                config, self._arena.free_bytes(), self._found.held_bytes, self._arena.is_in_memory
            )
            self.extent_bytes = settings.derive_extent_bytes(self.arena_bytes, config.extent_bytes)
            fitting.check_file_limit(self.extent_bytes)
            self._build()
        except BaseException as error:
            self._context.destroy(linger=0)
            self._end_parties()
            self._arena.close(keep=True)
            self._lock.release()
            if isinstance(error, OSError):
                raise ConfigError(
                    ErrorCode.INVALID_CONFIG,
                    f"arena-dir: {self._arena.directory} cannot be used: {error.strerror}",
                    key="arena-dir",
                ) from error
            raise

    def _build(self) -> None:
        self._complaints = Complaints()
        self._arena.foothold.removed = partial(self._complaints.note, "arena_removed")
        self._queue: ReportQueue = deque()
        self._router = make_socket(self._context)
        core = self._heir()
        for owed in owedfiles.read(self._arena.directory, self._config.tiers):
            core.owes(owed.tier, owed.fingerprint, owed.shards, owed.keys, clock.now_ns())
        # It is up once CopierReady says so; what is to be mapped before that waits for it.
        core.copier_lost(HOST_COPIER, clock.now_ns())
        self._loop = Loop(self._router, core, self._queue, self._complaints, DRAIN_LIMIT_S)
        names = ("signals", "side", "arena", "copier-0")
        self._reporters = {name: Reporter(self._context, name, self._queue) for name in names}
        for reporter in self._reporters.values():
            reporter.post(Here())
        self._sides = SideSocket(
            self._side_path,
            self._config.endpoint.url,
            self._epoch,
            self._arena.id,
            self._reporters["side"],
            complaints=self._complaints,
            access=self._access,
            parties=self._parties,
            awaited=Awaited(self._found.awaited),
        )
        self._allocator = Allocator(
            self._arena.directory,
            self._arena.id,
            self._reporters["arena"],
            self._arena.foothold.stand,
            numa.nodes_of(),
        )
        self._supervisor = Supervisor(
            HOST_COPIER, self._reporters["copier-0"], parties=self._parties
        )
        links = {HOST_COPIER: CopierLink()}
        self._devices = DeviceCopiers(links, self._one_more_reporter, self._parties)
        self._porters = Porters(self._config.tiers, self._one_more_reporter, self._parties)
        self._loop.actions = Actions(
            core,
            self._allocator,
            self._sides,
            links,
            self._devices,
            self._complaints,
            self._porters,
        )
        self._take_over()
        self._guard = Guard(
            self._config.endpoint, self._sides.pids, core.accounted_bytes, self._complaints
        )
        self._beside = SideChildren(self._config, self._side_path, os.environ, self._complaints)
        self._beside.tell(core)
        self._loop.teller.tracer = self._beside.traces
        core.tell_more(self._loop.bursts.counts)
        core.tell_more(self._complaints.figures)
        core.tell_more(self._devices.figures)
        core.tell_more(self._porters.figures)
        core.tell_more(self._loop.actions.figures)
        core.tell_latency(self._loop.latency.told)
        core.tell_outside(self._outside)
        self._loop.each_second = self._each_second

    def _one_more_reporter(self, name: str) -> Reporter:
        """For a thread that starts while the loop runs."""
        reporter = Reporter(self._context, name, self._queue)
        self._loop.admit(reporter.routing_id)
        return reporter

    def _new_core(self) -> Core:
        config = CoreConfig(
            arena_bytes=self.arena_bytes,
            extent_bytes=self.extent_bytes,
            side_path=self._side_path,
            incomplete_timeout_s=self._config.incomplete_timeout_s,
            tiers=tuple(_tier_config(spec) for spec in self._config.tiers),
            promote_deadline_s=self._config.promote_deadline_s,
            namespace_ttl_s=self._config.namespace_ttl_s,
            identity=Identity(__version__, os.getpid(), self._config.endpoint.url, self._begun_ns),
            traces=wants_traces(self._config, os.environ),
        )
        core = Core(config, self._epoch, self._arena.id, os.urandom)
        kept, trouble = quotafile.read(self._arena.directory)
        try:
            refused = core.allot(self._config.quotas, kept)
        except RequestError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG, f"quota: {error.message}", key="quota"
            ) from error
        if lost := [*filter(None, [trouble]), *refused]:  # one line: of more some stay silent
            self._complaints.note("quota_lost", "; ".join(lost))
        self._kept_quotas = len(kept) - len(refused)
        return core

    def _heir(self) -> Core:
        """A core that has what a predecessor held; one without, rather than none."""
        core, begun_ns = self._new_core(), clock.now_ns()
        slots = sum(file.geometry.num_slots for file in self._found.files.values())
        self._notifier.stage(f"taking over what it left in {slots} slots", slots)
        try:
            self._adoption = core.adopt(self._found.heritage(), begun_ns)
        except Exception as error:  # noqa: BLE001 - or no server would start here ever again
            self._complaints.note("adoption_fault", repr(error), error)
            dropped = dict.fromkeys(self._found.files, "by a fault of the server's own")
            core, self._adoption = self._new_core(), Adoption(dropped=dropped)
        if chunks := self._adoption.num_chunks:
            seconds = (clock.now_ns() - begun_ns) / clock.NS_PER_S
            self._adopted = Adopted(chunks, core.stats()["arena_held_bytes"], seconds)
        return core

    def _take_over(self) -> None:
        """Passes kept extents to who works with them; what the core did not want is removed."""
        kept = set(self._adoption.kept)
        for extent, file in self._found.files.items():
            if extent in kept:
                self._loop.actions.adopt(file, clock.now_ns())
            else:
                # Its name goes now, its memory in a while: were the name still there when this
                # server is killed, the next one would find what was cleared meanwhile.
                extents.remove(file.path)
                self._allocator.remove(file)
        names = {self._found.files[extent].geometry.fingerprint for extent in kept}
        adoption.forget_namespaces(self._arena.directory, self._found, names)
        Heap().trim()  # it took several times what it leaves, and malloc would keep that

    def run(self) -> None:
        """Serves until SIGTERM, SIGINT, or SIGHUP unless that is ignored (as nohup has it).

        Raises:
            ConfigError: the endpoint cannot be bound.
            ThreadDiedError: a thread ended; nothing is left behind all the same.
        """
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        try:
            for number in numbers:
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, self._on_signal)
            self._porters.start()
            self._supervisor.start()
            self._allocator.start()
            self._notifier.stage("opening what engines connect to")
            self._porters.settle(_TIERS_LIMIT_S)
            own_ids = [reporter.routing_id for reporter in self._reporters.values()]
            self._loop.bind(self._config.endpoint, own_ids)
            self._open_endpoint()
            self._sides.start()
            self._guard.start()
            self._loop.threads = {
                "guard": self._guard.is_alive,
                "side": self._sides.is_alive,
                "arena": self._allocator.is_alive,
                "copier-0": self._supervisor.is_alive,
                **self._porters.threads(),
            }
            self._say_ready()
            self._beside.start(
                lambda url: self._journal.write(STDOUT, startlines.pages(url)),
            )
            calm_collector()
            self._loop.run()
        finally:
            # It ends already, and what the handler posts with is closed next. They stay ignored,
            # so that the process ends with its own exit code.
            for number in numbers:
                signal.signal(number, signal.SIG_IGN)
            self._close()

    def _open_endpoint(self) -> None:
        """Gives the bound ipc socket its group and mode, and remembers its file."""
        side_file = SocketFile(self._side_path)
        try:
            side_file.bound()
            self._watched.append(side_file)
            if self._config.endpoint.is_tcp:
                return
            self._socket_file.bound()
            self._watched.append(self._socket_file)
            self._access.share(self._socket_file.path)
        except OSError as error:
            raise ConfigError(
                ErrorCode.INVALID_CONFIG,
                f"endpoint {self._config.endpoint.url} cannot be given to who may connect: "
                f"{error.strerror}",
            ) from error

    def _each_second(self) -> None:
        """A turn of the loop has ended."""
        self._notifier.alive()
        self._look_at_sockets()

    def _look_at_sockets(self) -> None:
        """Says so, once, when somebody removed a socket's file (B18): nobody new can come then."""
        for file in [file for file in self._watched if not file.is_there()]:
            self._watched.remove(file)
            self._complaints.note(
                "socket_removed",
                f"somebody removed {file.path}: engines that are connected go on, others cannot "
                "come any more. Restart the server: what is cached stays",
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Runs in the main thread between two steps of it; the loop's recv takes the wake-up.
        self._notifier.stopping()
        self._reporters["signals"].post(DrainAsked())

    def _say_ready(self) -> None:
        self._started_in_s = process_age_s()
        place = startlines.Place(
            self._side_path, self._arena.directory, self.arena_bytes, self.extent_bytes
        )
        line = startlines.ready(self._config, place, self._adopted, self._started_in_s)
        self._journal.write(STDOUT, line)
        self._notifier.ready(startlines.serving(self._config, place, self._adopted))
        if self._kept_quotas:
            _log.info("quotas_adopted: %d that were set before", self._kept_quotas)
        summary = adoption.summary(self._found, self._adoption)
        if summary:
            has_lost = adoption.has_lost(self._found, self._adoption)
            _log.log(logging.WARNING if has_lost else logging.INFO, "arena_adopted: %s", summary)

    def _outside(self) -> Outside:
        """For STATUS."""
        return Outside(
            http=self._beside.url,
            started_in_s=self._started_in_s,
            adopted=self._adopted,
            silent_s=self._loop.actions.silent_s(clock.now_ns()),
        )

    def _close(self) -> None:
        """Children first: they write into extents, which go next. Then what engines connect to."""
        self._socket_file.remove()
        self._beside.abandon()
        self._supervisor.abandon()
        self._porters.abandon()
        ended = self._devices.close(_END_LIMIT_S)
        ended = self._supervisor.stop(_END_LIMIT_S) and ended
        ended = self._porters.stop(_END_LIMIT_S) and ended
        ended = self._guard.stop(_END_LIMIT_S) and ended
        ended = self._sides.stop(_END_LIMIT_S) and ended
        ended = self._allocator.stop(_END_LIMIT_S) and ended
        ended = self._beside.stop(_END_LIMIT_S) and ended
        if ended:
            self._loop.actions.close()
            for reporter in self._reporters.values():
                reporter.close()
            self._devices.close_reporters()
            self._porters.close_reporters()
            self._router.close()
            self._context.destroy(linger=0)
        else:
            # What such a thread uses is left to the end of the process, which is next.
            _log.warning("a thread did not end within %.0f s", _END_LIMIT_S)
        if ended:
            self._end_parties()
        self._arena.close(self._config.arena_at_exit == "keep", self._loop.holds())
        self._lock.release()

    def _end_parties(self) -> None:
        """Nothing of this process writes into the arena any more."""
        path, self._own_party = self._own_party, ""
        if path:
            parties.drop(path)


def _tier_config(spec: TierSpec) -> TierConfig:
    """What the core is told of a tier: bytes on their way are half a second's at most."""
    window_bytes = TierConfig.window_bytes
    if spec.bandwidth_bytes_s:
        window_bytes = min(window_bytes, spec.bandwidth_bytes_s // 2)
    lists = spec.kind == "disk"
    shared_bytes = spec.number("size") * 7 // 8 if keeps_quotas(spec) else 0
    return TierConfig(
        spec.name,
        spec.policy,
        spec.uses,
        window_bytes,
        spec.kind,
        lists,
        shared_bytes,
        has_ledger(spec),
    )


def launch(config: ServerConfig) -> None:
    """Runs a server to its end.

    Args:
        config: settings.

    Raises:
        ConfigError: it cannot start; one line says why.
    """
    tierchecks.check(config.tiers)
    occupy_standard_descriptors()
    os.umask(0o077)
    journal = Journal(throttle=Throttle())
    logsetup.set_up(journal, config.log_level, config.log_format)
    use_small_pages()
    signal.signal(signal.SIGTERM, _stop_early)
    try:
        raise_descriptor_limit()
        Server(config, journal, Notifier.from_environ(os.environ, os.getpid())).run()
    except ThreadDiedError as error:
        _log.critical("%s: the server ends, so that it can be started again", error)
        raise SystemExit(EXIT_FAULT) from None
    finally:
        journal.finish(_JOURNAL_LIMIT_S)


def _stop_early(number: int, frame: FrameType | None) -> None:
    """SIGTERM before it serves: what was made so far is taken down again."""
    raise SystemExit(128 + number)
