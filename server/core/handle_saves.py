"""Requests about saving: STORE and what follows it.

Must not know: frames, sockets. Runs in: the loop thread.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, RequestError
from protocol.ids import ID_BYTES, StoreId
from protocol.layout import unpack_pages
from protocol.limits import MAX_STORES_PER_SESSION
from protocol.messages import (
    Cancel,
    Commit,
    Done,
    Store,
)
from server.core.desk import Desk, Table, check_keys, check_tenant
from server.core.namespaces import PoolState, Session
from server.core.outbox import Ticket
from server.core.peers import Process
from server.core.stores import Stage, StorePlan


class SaveHandlers:
    """STORE, COMMIT, CANCEL.

    Args:
        desk: references and answers.

    Attributes:
        table: handler of each request.
    """

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._state = desk.state
        self.table: Table = {
            Store: self._store,
            Commit: self._commit,
            Cancel: self._cancel,
        }

    def _store(self, process: Process, body: Store, ticket: Ticket) -> None:
        session = self._desk.of_process(process, body.session)
        num_chunks = check_keys(body.keys, body.start)
        pool = session.pools.get(body.shard)
        if pool is None:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"this session registered no pages of shard {body.shard}; it has "
                f"{', '.join(map(str, session.pools)) or 'none'}",
            )
        if len(body.parent) != (ID_BYTES if body.start else 0):
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                "parent has 16 bytes, or none when the chain starts here",
            )
        pages = unpack_pages(body.pages, pool.num_pages)
        wanted = num_chunks * session.owner.namespace.chunk_blocks
        if pages.size != wanted:
            raise RequestError(
                ErrorCode.COUNT_MISMATCH,
                f"{num_chunks} chunks need {wanted} pages, {pages.size} are named",
                chunks=num_chunks,
                pages=int(pages.size),
            )
        self._check_store(session, body)
        self._state.plans.begin(
            StorePlan(
                store=StoreId(body.store),
                session=session,
                shard=body.shard,
                index=session.owner.index,
                start=body.start,
                parent_key=body.parent,
                keys=body.keys,
                pages=pages,
                ticket=ticket,
                tenant=body.tenant,
                account=self._state.accounts.number(check_tenant(body.tenant)),
            )
        )

    def _check_store(self, session: Session, body: Store) -> None:
        if StoreId(body.store) in session.stores:
            raise RequestError(ErrorCode.DUPLICATE, f"store {body.store} is under way")
        if len(session.stores) >= MAX_STORES_PER_SESSION:
            raise RequestError(
                ErrorCode.BUSY, f"at most {MAX_STORES_PER_SESSION} STOREs may await their end"
            )
        window = self._state.copiers.windows[session.copier]
        if session.pool_state is not PoolState.OPEN or not window.is_up:
            raise RequestError(ErrorCode.UNAVAILABLE, "the copier is starting again")

    def _commit(self, process: Process, body: Commit, ticket: Ticket) -> None:
        session = self._desk.of_process(process, body.session)
        plan = session.stores.get(StoreId(body.store))
        if plan is None or plan.stage in (Stage.COMMITTING, Stage.ENDING):
            raise RequestError(
                ErrorCode.UNKNOWN_STORE, f"store {body.store} awaits no COMMIT of this session"
            )
        if plan.stage is Stage.COPYING:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT, f"store {body.store} was not answered yet"
            )
        if body.count > plan.good:
            raise RequestError(
                ErrorCode.INVALID_ARGUMENT,
                f"{body.count} chunks to commit, {plan.good} were copied",
                copied=plan.good,
            )
        self._state.plans.commit(plan, body.count, ticket)

    def _cancel(self, process: Process, body: Cancel, ticket: Ticket) -> Done | None:
        session = self._desk.of_process(process, body.session)
        plan = session.stores.get(StoreId(body.store))
        if plan is None:
            return Done()
        self._desk.wait(ticket)
        self._state.plans.cancel(plan, ticket)
        return None
