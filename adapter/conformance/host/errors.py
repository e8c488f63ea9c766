"""What the conformance host raises, and at whom.

Must not know: any other part of the host. Plain types, any thread.
"""

from __future__ import annotations


class HostError(Exception):
    """Base of everything the host itself raises."""


class ConnectorContractError(HostError, RuntimeError):
    """A connector broke a rule that the real host checks and dies of."""


class ConnectorAnswerError(ConnectorContractError, ValueError):
    """An answer of a wrong kind, which the newest epoch refuses as a ``ValueError``."""


class ConnectorFailedError(HostError):
    """A hook raised: "KV connector failed", fatal in E3 and later; its cause is chained."""


class ExecutorDiedError(HostError):
    """The executor loop ended with an error; its cause is chained."""


class ForwardFailedError(HostError):
    """The forward of a request raised; the executor went on without it."""


class RequestCancelledError(HostError):
    """The request was cancelled, or the engine shut down before it ended."""


class StreamError(HostError):
    """Work queued on a stream raised earlier; its cause is chained."""


class PageMismatchError(HostError):
    """A page that counts as computed does not hold its tokens' bytes."""
