import dataclasses

import numpy as np
import pytest

from adapter.conformance.loadgen.engine import Engine, LoadgenError
from adapter.conformance.loadgen.stamps import Stamps
from adapter.conformance.loadgen.transfers import Reader, give_back, lease, store_s, wait_mapped
from protocol.messages import Lookup, LookupReply


def test_what_was_stored_comes_back(engine: Engine, reader: Reader) -> None:
    random = np.random.default_rng(1)
    stamps = Stamps.put(engine.pool.view, engine.page_bytes, random)
    prompts = engine.prompts(6, 8, random)
    assert store_s(engine, prompts) > 0
    where = wait_mapped(engine, prompts)
    places = {(int(s["extent"]), int(s["slot"])) for one in where for s in one.slots}
    assert len(places) == 48
    stamps.wipe()
    assert reader.retrieve_s(prompts) > 0
    assert stamps.wrong(np.concatenate([prompt.pages for prompt in prompts])) == 0
    assert stamps.wrong(np.arange(engine.num_pages, dtype=np.int32)) == engine.num_pages - 48


def test_a_store_of_what_is_there_already_is_an_error(engine: Engine) -> None:
    prompts = engine.prompts(1, 4, np.random.default_rng(2))
    store_s(engine, prompts)
    again = [dataclasses.replace(prompts[0], number=prompts[0].number + 1000)]
    with pytest.raises(LoadgenError, match="0 of 4 blocks were copied, 4 were there"):
        store_s(engine, again)


def test_an_unknown_request_is_an_error_and_ends_all_threads(
    engine: Engine, reader: Reader
) -> None:
    stored, missing = engine.prompts(2, 4, np.random.default_rng(3))
    store_s(engine, [stored])
    wait_mapped(engine, [stored])
    with pytest.raises(LoadgenError, match="LOOKUP of 4 blocks"):
        reader.retrieve_s([stored, missing])
    assert reader.retrieve_s([stored]) > 0, "it can be used on"


def test_leases_are_given_back(engine: Engine) -> None:
    prompt = engine.prompts(1, 4, np.random.default_rng(4))[0]
    store_s(engine, [prompt])
    wait_mapped(engine, [prompt])
    leased = lease(engine, engine.channel, prompt)
    give_back(engine, engine.channel, leased)
    engine.clear()
    look = Lookup(session=engine.joined.session, request=1, start=0, keys=prompt.keys)
    found = engine.ask(look)
    assert isinstance(found, LookupReply)
    assert found.ready == 0
