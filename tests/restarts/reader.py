"""An old engine: it was told where chunks lie, is stopped, and reads them a server later.

    python -m tests.restarts.reader URL SIDE CHAIN…

Says ``ready`` when it holds the slots of the main space's chains, waits for a line, reads, prints
how many pages it read and how many were wrong, and ends. Knows the wire client. A child of the
conductor, which stops it in between.
"""

from __future__ import annotations

import json
import sys

from protocol.layout import unpack_slots
from protocol.messages import Retrieve, RetrieveReply
from tests.restarts.content import CHAIN_CHUNKS, MAIN, PAGE_BYTES, as_bytes, keys_of, model
from tests.restarts.content import num_wrong as count_wrong
from tests.restarts.verifier import read_slots
from tests.wire.client import Engine, make_namespace


def main() -> None:
    """Leases, waits, reads."""
    url, side_path, *chains = sys.argv[1:]
    engine = Engine(url, side_path, make_namespace(PAGE_BYTES, model(MAIN)), num_pages=1)
    engine.register()
    told = []
    for number, chain in enumerate(map(int, chains), 1):
        keys = keys_of(MAIN, chain, CHAIN_CHUNKS)
        found = engine.lookup(as_bytes(keys), number)
        if found.ready:
            body = Retrieve(session=engine.session, lease=found.lease, start=0, count=found.ready)
            reply = engine.wire.call(body, RetrieveReply)
            slots = unpack_slots(reply.slots, found.ready, reply.num_shards)
            told.append((keys[: found.ready], slots[:, engine.shard]))
    print("ready", flush=True)
    sys.stdin.readline()
    num_read, num_wrong = 0, 0
    for keys, slots in told:
        num_read += len(keys)
        num_wrong += count_wrong(read_slots(engine, slots), keys)
    print(json.dumps({"read": num_read, "wrong": num_wrong}), flush=True)


if __name__ == "__main__":
    main()
