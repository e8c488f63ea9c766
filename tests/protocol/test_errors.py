from __future__ import annotations

import pytest

from protocol.errors import (
    REJOIN,
    RETRYABLE,
    ConfigError,
    ErrorCode,
    KvkeepError,
    ReplyError,
    ReplyMalformedError,
    RequestError,
    UnreachableError,
    code_of,
)

# Published numbers: a change here breaks clients in the field.
PUBLISHED = {
    "MALFORMED": 100,
    "TOO_LARGE": 101,
    "UNKNOWN_OPERATION": 102,
    "VERSION_MISMATCH": 103,
    "UNSUPPORTED": 104,
    "UNAUTHENTICATED": 200,
    "STALE_EPOCH": 201,
    "WRONG_ARENA": 202,
    "UNKNOWN_SESSION": 203,
    "NOT_PERMITTED": 204,
    "UNWATCHABLE_PEER": 205,
    "NO_DESCRIPTORS": 206,
    "INVALID_ARGUMENT": 300,
    "UNKNOWN_NAMESPACE": 301,
    "PAGE_OUT_OF_RANGE": 302,
    "COUNT_MISMATCH": 303,
    "PAGE_SIZE_MISMATCH": 304,
    "POOL_INVALID": 305,
    "CHUNK_SIZE_INVALID": 306,
    "UNKNOWN_LEASE": 307,
    "UNKNOWN_STORE": 308,
    "DUPLICATE": 309,
    "INVALID_URL": 310,
    "INVALID_CONFIG": 311,
    "BUSY": 400,
    "NO_ROOM": 401,
    "DEADLINE_EXCEEDED": 402,
    "LIMIT_EXCEEDED": 403,
    "DRAINING": 404,
    "CLEARED": 405,
    "ENDPOINT_IN_USE": 406,
    "UNAVAILABLE": 407,
    "INTERNAL": 500,
    "COPY_FAILED": 501,
}


def test_numbers_never_change() -> None:
    assert {name: int(ErrorCode[name]) for name in PUBLISHED} == PUBLISHED
    assert set(ErrorCode.__members__) == set(PUBLISHED), "publish the new number here as well"


def test_who_should_rejoin_should_not_just_retry() -> None:
    assert not RETRYABLE & REJOIN


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_says_its_code_line_and_facts(code: ErrorCode) -> None:
    error = RequestError(code, "page 12 of 0..7", page=12, pool="main")
    assert str(error) == f"{code.name}: page 12 of 0..7"
    assert error.detail == {"page": 12, "pool": "main"}
    assert error.retryable is (code in RETRYABLE)


def test_every_kind_is_caught_as_one() -> None:
    kinds = (RequestError, ReplyError, ReplyMalformedError, UnreachableError, ConfigError)
    for kind in kinds:
        with pytest.raises(KvkeepError, match="UNAVAILABLE: x"):
            raise kind(ErrorCode.UNAVAILABLE, "x")


def test_the_servers_word_on_retrying_counts() -> None:
    error = ReplyError(code_of(9999), "from a newer server")
    assert error.code is ErrorCode.INTERNAL
    assert not error.retryable
    error.stated_retryable = True
    assert error.retryable


@pytest.mark.parametrize(("number", "code"), [(401, ErrorCode.NO_ROOM), (-1, ErrorCode.INTERNAL)])
def test_numbers_of_newer_servers_read_as_internal(number: int, code: ErrorCode) -> None:
    assert code_of(number) is code
