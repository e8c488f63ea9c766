import dataclasses

import pytest

from adapter.conformance.host.options import HostOptions


def test_defaults_are_those_of_a_late_e2_host() -> None:
    options = HostOptions()
    assert (options.epoch, options.overlap, options.cuda_graphs) == ("E2", True, False)
    assert not options.call_shutdown
    assert options.stream_timeout_s == 300.0


def test_options_do_not_change_under_a_running_host() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        HostOptions().overlap = False  # type: ignore[misc]
