"""``quota``: what tenants keep whatever others store, and what they may not exceed.

Must not know: how a server is asked. Runs in: the process of the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from server.cli import prefixes, reaching
from server.cli.salts import salt_options

if TYPE_CHECKING:
    from protocol.messages import QuotasReply
    from protocol.quotas import QuotaChange, TenantKind
    from server.asking import Asker

AGE = "what lower tiers hold is as of their last look, 10 s ago at most while they are used"
"""Under a table with such rows: who just deleted something would take them for now."""


@click.group(name="quota")
def command() -> None:
    """Keep tenants a share of L1 or of a disk; limit them there, or in a store.

    A share is left alone whatever others store. A store takes limits alone, and only with ledger=
    in its URL: of what this server wrote there.

    A tenant is a namespace, or all requests with one cache salt. What is set here is kept with the
    arena; the option --quota of launch has quotas from the start.
    """


def tenant_options(inner: Callable[..., Any]) -> Callable[..., Any]:
    """``--namespace``, ``--salt`` and ``--tenant``: whose quota is meant."""
    inner = click.option(
        "--tenant",
        metavar="NAME",
        help="A tenant as kvkeep quota list shows it: namespace/DIGITS or salt/DIGITS.",
    )(inner)
    inner = salt_options("All requests with this cache salt, in every namespace.")(inner)
    return prefixes.namespace_option(inner)


def tier_option(inner: Callable[..., Any]) -> Callable[..., Any]:
    """``--tier``: where the quota holds."""
    return click.option(
        "--tier",
        metavar="NAME",
        default="",
        help="In this lower tier, a disk or a store with ledger=: its name as kvkeep status "
        "shows it.  [default: in L1]",
    )(inner)


@command.command(name="list")
@reaching.options
def list_(endpoint: str | None, as_json: bool) -> None:
    """Show every quota, and what its tenant holds now."""
    at = reaching.place(endpoint)
    with reaching.connected(at, "quota") as asker:
        reply = _ask(asker, None)
    _show(reply, as_json)


@command.command(name="set")
@reaching.options
@tenant_options
@tier_option
@click.option("--limit", metavar="SIZE", default="", help="Most that it may have.  [default: any]")
@click.argument("size", metavar="SIZE")
def set_(
    endpoint: str | None, as_json: bool, size: str, tier: str, limit: str, **named: str | None
) -> None:
    """Leave a tenant SIZE bytes, such as 20G, whatever others store; 0 for a limit alone.

    What others have above their own share makes room for it. All shares together fit L1, or 7/8 of
    the tier. A salt's chunks that were stored before its first quota do not count for it in L1.
    In a store SIZE is 0, and each server has a limit of its own.
    """
    from protocol.errors import ConfigError
    from server import quotaspec
    from server.sizes import invalid

    at = reaching.place(endpoint)
    try:
        with reaching.connected(at, "quota") as asker:
            change = quotaspec.change_of(_tenant(asker, **named), size, limit, "limit", tier)
            if not change.floor_bytes and not change.limit_bytes:
                raise invalid(
                    "quota", size, "a size or a limit above 0; kvkeep quota unset ends it"
                )
            reply = _ask(asker, change)
    except ConfigError as error:
        reaching.refuse(str(error))
    _show(reply, as_json)


@command.command(name="unset")
@reaching.options
@tenant_options
@tier_option
def unset(endpoint: str | None, as_json: bool, tier: str, **named: str | None) -> None:
    """Take a tenant's quota back: its chunks are evicted as anybody's, and may be any number.

    The exit code is 3 when it had none.
    """
    from protocol.errors import ConfigError
    from protocol.quotas import QuotaChange
    from server.quotaspec import tenant_name

    at = reaching.place(endpoint)
    try:
        with reaching.connected(at, "quota") as asker:
            kind, tenant = _tenant(asker, **named)
            had = {(one.kind, one.tenant, one.tier) for one in _ask(asker, None).quotas}
            change = QuotaChange(kind=kind, tenant=tenant, floor_bytes=0, tier=tier)
            reply = _ask(asker, change)
    except ConfigError as error:
        reaching.refuse(str(error))
    _show(reply, as_json)
    if (kind, tenant, tier) not in had:
        click.echo(f"kvkeep: {tenant_name(kind, tenant)} had no quota", err=True)
        raise SystemExit(reaching.EXIT_OTHER)


def _tenant(
    asker: Asker, namespace: str | None, salt: str | None, tenant: str | None
) -> tuple[TenantKind, bytes]:
    """Whose quota is meant.

    Raises:
        ConfigError: INVALID_CONFIG: none of them, several, or one that is not there.
    """
    from protocol.keys import ReuseScope
    from protocol.quotas import TenantKind
    from server import quotaspec
    from server.sizes import invalid

    if sum(one is not None for one in (namespace, salt, tenant)) != 1:
        valid = "one of --namespace NAME, --salt TEXT, --salt-file FILE and --tenant NAME"
        raise invalid("tenant", tenant or "", valid)
    if salt is not None:
        return TenantKind.SALT, ReuseScope(cache_salt=salt).tenant()
    if tenant is not None:
        found = quotaspec.parse_tenant(tenant)
        if found is None:
            raise invalid("tenant", tenant, "namespace/ or salt/ and 32 hex digits")
        return found
    assert namespace is not None
    known = prefixes.find(asker.status(reaching.LIMIT_S).namespaces, namespace)
    name = bytes.fromhex(namespace) if known is None else known.fingerprint
    return TenantKind.NAMESPACE, name


def _ask(asker: Asker, change: QuotaChange | None) -> QuotasReply:
    from protocol.messages import Quotas, QuotasReply

    return asker.expect(Quotas(change=change), QuotasReply, reaching.LIMIT_S)


def document(reply: QuotasReply) -> dict[str, Any]:
    """What a server said, as plain values."""
    from server.quotaspec import tenant_name

    return {
        "arena_bytes": reply.arena_bytes,
        "quotas": [
            {
                "tenant": tenant_name(one.kind, one.tenant),
                "tier": one.tier or "l1",
                "floor_bytes": one.floor_bytes,
                "limit_bytes": one.limit_bytes,
                "held_bytes": one.held_bytes,
                "tier_bytes": one.tier_bytes,
            }
            for one in reply.quotas
        ],
    }


def _show(reply: QuotasReply, as_json: bool) -> None:
    if as_json:
        reaching.show(document(reply))
        return
    from server.cli.tables import Column, share, table
    from server.quotaspec import tenant_name
    from server.sizes import format_size

    if not reply.quotas:
        click.echo("no tenant has a quota")
        return
    columns = [
        Column("tenant"),
        Column("in"),
        Column("quota", is_number=True),
        Column("limit", is_number=True),
        Column("held", is_number=True),
        Column("of quota", is_number=True),
        Column("of limit", is_number=True),
    ]
    rows = [
        [
            tenant_name(one.kind, one.tenant),
            one.tier or "L1",
            format_size(one.floor_bytes) if one.floor_bytes else "-",
            format_size(one.limit_bytes) if one.limit_bytes else "-",
            format_size(one.held_bytes),
            share(one.held_bytes, one.floor_bytes),
            share(one.held_bytes, one.limit_bytes),
        ]
        for one in reply.quotas
    ]
    click.echo(table(columns, rows))
    if any(one.tier for one in reply.quotas):
        click.echo(AGE)
