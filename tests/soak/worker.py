"""Some clients of a soak in one process, each in its own thread, each as fast as it is answered.

    python -m tests.soak.worker URL SIDE CLIENTS CHAINS SEED

Every client takes a chain, looks it up, loads and checks what there is, and saves the rest. Prints
one JSON line a second; ends with its stdin. Knows the wire client. Runs as a child of
``tests.soak.run``.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import traceback

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ReplyError
from protocol.messages import EndSession, Released
from tests.soak.figures import Minute
from tests.wire.client import Engine, make_keys, make_namespace

CHAIN_CHUNKS = 64
PAGE_BYTES = 16_384
_STAMP = np.dtype("<u8")


def stamps(chain: int, count: int) -> NDArray[np.uint64]:
    """What the pages of a chain begin with: uint64[count]."""
    return np.arange(chain * 1000, chain * 1000 + count, dtype=_STAMP)


class Client:
    """One engine at work.

    Args:
        url: of the server.
        side_path: of its side socket.
        chains: how many there are in all.
        seed: of its choices.
    """

    def __init__(self, url: str, side_path: str, chains: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._chains = chains
        space = make_namespace(PAGE_BYTES, "soak")
        self._engine = Engine(url, side_path, space, num_pages=CHAIN_CHUNKS)
        self._engine.register()
        self._engine.pump_while_waiting()
        self._request = 0
        self._lock = threading.Lock()
        self._minute = Minute()

    def take(self) -> Minute:
        """What was done since the last call. Runs in the main thread."""
        with self._lock:
            taken, self._minute = self._minute, Minute()
        return taken

    def cycle(self) -> None:
        """One chain: LOOKUP, load, save."""
        engine, chain = self._engine, self._random.randrange(self._chains)
        keys = make_keys(chain, CHAIN_CHUNKS)
        self._request += 1
        engine.pump()
        begun_s = time.perf_counter()
        found = engine.lookup(keys, self._request)
        took_s = time.perf_counter() - begun_s
        wrong = self._load(found.lease, found.ready, chain) if found.ready else 0
        engine.wire.call(EndSession(session=engine.session, request=self._request), Released)
        saved = self._save(keys, found.ready, chain)
        with self._lock:
            counts = self._minute.counts
            self._minute.lookups.add(took_s)
            counts["lookups"] += 1
            counts["loaded_pages"] += found.ready
            counts["missed_pages"] += CHAIN_CHUNKS - found.ready
            counts["saved_pages"] += saved
            counts["wrong_pages"] += wrong

    def _load(self, lease: bytes, count: int, chain: int) -> int:
        pages = self._engine.read(lease, count)
        self._engine.release(lease)
        found = pages[:, :8].copy().view(_STAMP)[:, 0]
        last = pages[:, -8:].copy().view(_STAMP)[:, 0]
        expected = stamps(chain, count)
        return int(((found != expected) | (last != expected)).sum())

    def _save(self, keys: list[bytes], start: int, chain: int) -> int:
        if start == CHAIN_CHUNKS:
            return 0
        marks = stamps(chain, CHAIN_CHUNKS).view(np.uint8).reshape(CHAIN_CHUNKS, 8)
        self._engine.pages[:, :8] = marks
        self._engine.pages[:, -8:] = marks
        store, reply = self._engine.store(keys, list(range(start, CHAIN_CHUNKS)), start)
        if not reply.copied:
            return 0
        return self._engine.commit(store, reply.copied).published

    def run(self) -> None:
        """Cycles until the process ends; a refusal is counted, any other error ends it all."""
        while True:
            try:
                self.cycle()
            except ReplyError as error:
                with self._lock:
                    self._minute.counts["errors"] += 1
                print(f"refused: {error}", file=sys.stderr, flush=True)


def main() -> None:
    """Starts the clients and reports once a second."""
    url, side_path, clients, chains, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
    made = [Client(url, side_path, chains, seed * 1000 + number) for number in range(clients)]
    failed = threading.Event()

    def work(client: Client) -> None:
        try:
            client.run()
        except BaseException:  # noqa: BLE001 - the parent is told by the exit code
            traceback.print_exc()
            failed.set()

    for client in made:
        threading.Thread(target=work, args=(client,), daemon=True).start()
    over = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    while not over.wait(1.0):
        total = Minute()
        for client in made:
            part = client.take()
            total.counts.update(part.counts)
            total.lookups.merge(part.lookups)
        line = {"counts": dict(total.counts), "lookups": total.lookups.plain()}
        print(json.dumps(line), flush=True)
        if failed.is_set():
            raise SystemExit(1)


if __name__ == "__main__":
    main()
