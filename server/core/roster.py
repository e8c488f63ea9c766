"""The roll: every namespace, engine and session that is known.

Purpose: one place where each is found by its name, and where a rank's claim to belong to an engine
is checked. Must not know: extents, copiers, how anything ends. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, RequestError
from protocol.ids import Fingerprint, InstanceId, SessionId
from protocol.messages import RegisterKvCache
from protocol.namespace import Namespace
from server.core.accounts import Accounts
from server.core.config import CoreConfig
from server.core.effects import KeepNamespace
from server.core.eviction import LeafLru
from server.core.index import ChunkIndex
from server.core.namespaces import Instance, Owner, Session, shard_groups
from server.core.outbox import Outbox
from server.core.peers import Process
from server.core.slots import SlotTable
from server.core.tenantleaves import TenantLeaves

MOST_NODES = 1 << 24
"""Chunks that an index asks memory for at once; one that outgrows them is copied."""


class Roster:
    """Owners, instances and sessions.

    Args:
        config: settings.
        slots: state of every slot, for new indexes.
        outbox: where effects go.
        accounts: what salts with a quota hold.

    Attributes:
        owners: by fingerprint.
        instances: by id.
        sessions: by number, closing ones included.
    """

    def __init__(
        self, config: CoreConfig, slots: SlotTable, outbox: Outbox, accounts: Accounts
    ) -> None:
        self._accounts = accounts
        self._config = config
        self._slots = slots
        self._outbox = outbox
        self.owners: dict[Fingerprint, Owner] = {}
        self.instances: dict[InstanceId, Instance] = {}
        self.sessions: dict[SessionId, Session] = {}

    def namespace_of(self, session: int) -> bytes:
        """Fingerprint of the namespace of a session; empty for one that is not known."""
        found = self.sessions.get(SessionId(session))
        return found.owner.fingerprint if found is not None else b""

    def instance_for(self, process: Process, body: RegisterKvCache, name: Fingerprint) -> Instance:
        """The engine a rank registers for, new if need be.

        Args:
            process: who asks.
            body: the request.
            name: fingerprint of its namespace.

        Returns:
            The engine, with a free seat for the rank.

        Raises:
            RequestError: INVALID_ARGUMENT, DUPLICATE or LIMIT_EXCEEDED.
        """
        instance = self.instances.get(process.instance)
        if instance is None:
            owner = self.owner_for(body.namespace, name)
            instance = self.instances[process.instance] = Instance(process.instance, owner)
            return instance
        if instance.owner.fingerprint != name:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                "another rank of this engine registered another namespace",
            )
        if body.rank in instance.ranks:
            raise RequestError(
                ErrorCode.DUPLICATE,
                f"rank {body.rank} of this engine is registered already",
                session=instance.ranks[body.rank].session,
            )
        return instance

    def owner_for(self, namespace: Namespace, name: Fingerprint) -> Owner:
        """A namespace's owner, new if need be.

        Args:
            namespace: whose.
            name: its fingerprint.

        Raises:
            RequestError: LIMIT_EXCEEDED.
        """
        owner = self.owners.get(name)
        if owner is None:
            owner = self._new_owner(namespace, name)
            self._outbox.add(KeepNamespace(name, namespace))
        return owner

    def _new_owner(self, namespace: Namespace, name: Fingerprint) -> Owner:
        if len(self.owners) >= self._config.max_namespaces:
            raise RequestError(
                ErrorCode.LIMIT_EXCEEDED,
                f"at most {self._config.max_namespaces} namespaces are kept: CLEAR one",
            )
        return self.adopt(namespace, name)

    def adopt(self, namespace: Namespace, name: Fingerprint) -> Owner:
        """Makes an owner whose namespace's file is there already.

        Args:
            namespace: whose.
            name: its fingerprint, of no owner yet.
        """
        groups = shard_groups(namespace)
        owner = Owner(
            fingerprint=name,
            namespace=namespace,
            index=ChunkIndex(self._slots, ()),
            leaves=LeafLru(ChunkIndex(self._slots, ()), 0),
            extents=[[] for _ in groups],
            readers_per_shard=tuple(
                namespace.num_ranks if namespace.groups[group].replicated else 1 for group in groups
            ),
            window_tokens=tuple(namespace.groups[group].window_tokens for group in groups),
        )
        self.renew_index(owner)
        self.owners[name] = owner
        return owner

    def renew_index(self, owner: Owner) -> None:
        """Gives an owner an empty index; what the old one named is cleared."""
        full = tuple(window == 0 for window in owner.window_tokens)
        groups = shard_groups(owner.namespace)
        windows = {groups[shard] for shard, is_full in enumerate(full) if not is_full}
        window_groups = (
            tuple(shard for shard, one in enumerate(groups) if one == group)
            for group in sorted(windows)
        )
        owner.index = ChunkIndex(
            self._slots,
            full,
            tuple(shards for shards in window_groups if len(shards) > 1),
            room=self._room(owner.namespace, full),
        )
        owner.leaves = LeafLru(owner.index, self._timeout_us)

    @property
    def _timeout_us(self) -> int:
        return int(self._config.incomplete_timeout_s * 1_000_000)

    def count_accounts(self, owner: Owner) -> None:
        """Has an owner's order of eviction tell accounts apart from now on."""
        if not isinstance(owner.leaves, TenantLeaves):
            owner.leaves = TenantLeaves(owner, self._accounts, owner.leaves, self._timeout_us)

    def _room(self, namespace: Namespace, full: tuple[bool, ...]) -> int:
        """About how many chunks of a namespace the whole arena could hold."""
        sizes = [namespace.slot_payload_bytes(shard) for shard in range(len(full))]
        whole = sum(size for size, is_full in zip(sizes, full, strict=True) if is_full)
        return min(MOST_NODES, self._config.arena_bytes // (whole or min(sizes)) + 1)
