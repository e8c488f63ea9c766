"""Further effects: the porter has a command for each question."""

from __future__ import annotations

from protocol.ids import Fingerprint
from server.core.effects import JobId, TierId
from server.core.tiers.listed import Listed, TierKeep, TierList
from server.porter.wire import Kind
from server.shell.porterlink import _command

SPACE = Fingerprint(b"s" * 16)


def test_each_question_becomes_a_command_of_its_name() -> None:
    for what in Listed:
        command = _command(TierList(TierId(0), JobId(5), what, SPACE, shard=2, most=7))
        assert command.kind is Kind[what.name]
        assert (command.number, command.fingerprint) == (5, SPACE)
        assert (command.first, command.shards) == (2, 7)


def test_what_is_kept_goes_whole() -> None:
    command = _command(TierKeep(TierId(0), JobId(6), SPACE, b"what it is"))
    assert (command.kind, command.number, command.text) == (Kind.KEEP, 6, b"what it is")
    assert command.fingerprint == SPACE
