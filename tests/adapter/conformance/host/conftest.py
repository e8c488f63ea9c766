"""``TRTLLM_CONFORMANCE_DEVICE=simulated`` runs all of these on a simulated CUDA device."""

from collections.abc import Iterator

import pytest

from tests.adapter.conformance.host.ondevice import default_machine


@pytest.fixture(scope="session", autouse=True)
def machine() -> Iterator[None]:
    yield from default_machine()
