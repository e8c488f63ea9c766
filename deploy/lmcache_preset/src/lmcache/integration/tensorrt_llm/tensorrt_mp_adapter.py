"""The preset ``lmcache-mp``: kvkeep's connector, with a server of the node's.

The server is the one that ``server_url`` names, or the first of kvkeep's other settings, as with
kvkeep's own module name. Runs in the engine's process.
"""

from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker

__all__ = ["LMCacheMPKvConnectorScheduler", "LMCacheMPKvConnectorWorker"]


class LMCacheMPKvConnectorScheduler(KvkeepConnectorScheduler):
    """kvkeep's scheduler under the name that the preset asks for."""


class LMCacheMPKvConnectorWorker(KvkeepConnectorWorker):
    """kvkeep's worker under the name that the preset asks for."""
