import dataclasses

import pytest

from adapter.conformance.host.options import CONFORMANCE_DEVICE, HostOptions


def test_defaults_are_those_of_a_late_e2_host() -> None:
    options = HostOptions()
    assert (options.epoch, options.overlap, options.cuda_graphs) == ("E2", True, False)
    assert not options.call_shutdown
    assert options.stream_timeout_s == 300.0


def test_options_do_not_change_under_a_running_host() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HostOptions().overlap = False  # type: ignore[misc]


def test_the_environment_names_the_device_of_those_that_name_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(CONFORMANCE_DEVICE, raising=False)
    assert HostOptions().device == "host"
    monkeypatch.setenv(CONFORMANCE_DEVICE, "simulated")
    assert HostOptions().device == "simulated"
    assert HostOptions(device="host").device == "host"
