"""An engine that saves what a test says, page by page, on each way out of the pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from tests.adapter.enginerig import SIZE, EngineRig, write_model
from tests.adapter.hostlike import FakeRequest, Output, Report, tokens
from tests.adapter.test_identity import FakeTensor
from tests.wire.process import ServerProcess

WAYS: Final = ("pool", "ring", "layers")
"""Read by the server, staged whole, staged layer by layer."""


class SavingRig:
    """Engines of one way, on a server of the test's own.

    Attributes:
        rig: the engine; its pool is mapped, and an extent is there.
    """

    def __init__(
        self, way: str, server: ServerProcess, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Registers the engine, and saves what it can save first."""
        if way == "layers":
            monkeypatch.setenv("TRTLLM_KVKEEP_LOAD_MODE", "layerwise")
        self._way, self._url, self._model = way, server.url, write_model(folder / "m")
        self.rig = self.another()
        self.rig.run_saved(tokens(9, seed=1))

    def another(self) -> EngineRig:
        """A further engine of the same kind."""
        rig = EngineRig(self._url, self._model)
        if self._way == "ring":
            array: Any = np.zeros(rig.pages.shape, dtype=np.uint8)
            rig.pages = array
            rig.tensor = FakeTensor(array.view(np.float32).reshape(rig.tensor.array.shape))
        return rig.register()

    def begin(self, prompt: list[int], pages: list[int]) -> FakeRequest:
        """Query, allocation of given pages, and the forward of the whole prompt."""
        rig = self.rig
        request = FakeRequest(rig.next_id, list(prompt))
        rig.next_id += 1
        assert rig.query(request) == 0
        rig.wipe(pages)
        rig.scheduler.update_state_after_alloc(request, pages)
        report = Report(request.request_id, prompt, pages, 0, len(prompt))
        rig.iterate(Output([report]), forward=lambda: rig.fill(prompt, pages, 0))
        return request

    def decode(self, request: FakeRequest, prompt: list[int]) -> None:
        """One step under overlap: the request lives, all of its prompt is valid."""
        self.rig.iterate(Output([], [Report(request.request_id, [], [], len(prompt) - 1, 1)]))

    def offered(self, *prompts: list[int]) -> list[int]:
        """Ends the engine; blocks that a new one is offered of each prompt, their bytes checked."""
        self.rig.close()
        second = self.another()
        try:
            return [second.run(prompt).offered // SIZE for prompt in prompts]
        finally:
            second.close()
