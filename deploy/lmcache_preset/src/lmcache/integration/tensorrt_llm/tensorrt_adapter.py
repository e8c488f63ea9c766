"""The preset ``lmcache``: kvkeep's connector with a private server, which ends with the engine.

LMCache keeps its cache inside the engine with this preset; kvkeep's way to need no service is
embedded mode. ``server_url``, or TRTLLM_KVKEEP_SERVER_URL, names another server. LMCache's own
settings are not asked where the server is: with this preset they never said so. Runs in the
engine's process.
"""

from adapter.connector import KvkeepConnectorScheduler, KvkeepConnectorWorker
from adapter.serverurl import EMBEDDED_URL

__all__ = ["LMCacheKvConnectorScheduler", "LMCacheKvConnectorWorker"]


class LMCacheKvConnectorScheduler(KvkeepConnectorScheduler):
    """kvkeep's scheduler under the name that the preset asks for.

    Attributes:
        default_server_url: where the server is that no setting names.
    """

    default_server_url = EMBEDDED_URL


class LMCacheKvConnectorWorker(KvkeepConnectorWorker):
    """kvkeep's worker under the name that the preset asks for.

    Attributes:
        default_server_url: the same as the scheduler's: whichever is constructed first decides.
    """

    default_server_url = EMBEDDED_URL
