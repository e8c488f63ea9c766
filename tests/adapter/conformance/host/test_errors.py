import pytest

from adapter.conformance.host import errors


def test_every_error_is_the_hosts_own() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(kinds) >= 7
    assert all(issubclass(kind, errors.HostError) for kind in kinds)


def test_a_broken_contract_is_a_runtime_error_as_in_the_real_host() -> None:
    with pytest.raises(RuntimeError, match="rule"):
        raise errors.ConnectorContractError("rule")
