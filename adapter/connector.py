"""The module that ``kv_connector_config`` names: both connector classes under one import path.

Must not know: anything. Source: host contract §2, ``connector_module``.
"""

from adapter.config import make_kv_connector_config
from adapter.scheduler import KvkeepConnectorScheduler
from adapter.worker import KvkeepConnectorWorker

__all__ = ["KvkeepConnectorScheduler", "KvkeepConnectorWorker", "make_kv_connector_config"]
