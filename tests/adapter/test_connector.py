"""The module that a connector config names has the classes it names."""

from __future__ import annotations

import importlib
import inspect

from adapter.config import make_kv_connector_config
from adapter.trtllm_api import KvCacheConnectorScheduler, KvCacheConnectorWorker


def test_classes_are_found_and_complete() -> None:
    config = make_kv_connector_config()
    module = importlib.import_module(config.connector_module)
    scheduler = getattr(module, config.connector_scheduler_class)
    worker = getattr(module, config.connector_worker_class)
    assert issubclass(scheduler, KvCacheConnectorScheduler)
    assert issubclass(worker, KvCacheConnectorWorker)
    assert not inspect.isabstract(scheduler)
    assert not inspect.isabstract(worker)
