import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapter.conformance.loadgen import hashing
from protocol.keys import BlockHashChain, ReuseScope


@given(seed=st.integers(0, 2**32 - 1), blocks=st.integers(1, 5), size=st.integers(1, 40))
def test_it_hashes_what_the_chain_hashes(seed: int, blocks: int, size: int) -> None:
    tokens = np.random.default_rng(seed).integers(-(2**31), 2**31, blocks * size).tolist()
    chain = BlockHashChain.start(ReuseScope(), size)
    chain.extend(tokens)
    assert hashing.keys_of(tokens, size, ReuseScope().seed()) == bytes(chain.keys)
