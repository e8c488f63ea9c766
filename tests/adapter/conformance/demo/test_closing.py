from adapter.conformance.demo.cast import Server
from adapter.conformance.demo.closing import look_at_server
from adapter.conformance.demo.outcome import Outcome
from adapter.conformance.demo.processes import stage


def test_a_live_server_is_looked_at_and_ended() -> None:
    outcome = Outcome("look")
    with stage(1 << 20) as on:
        server = Server(on, "server")
        look_at_server(server, outcome)
        assert server.process.returncode == 0
    assert outcome.held, outcome.claims
    assert int(str(outcome.figures["processes"])) >= 2
    assert outcome.figures["heavy_libraries"] == ""


def test_a_server_that_was_killed_did_not_end_cleanly() -> None:
    outcome = Outcome("look")
    with stage(1 << 20) as on:
        server = Server(on, "server")
        ended = server.end
        server.end = lambda: ended() + 9  # type: ignore[method-assign]
        look_at_server(server, outcome)
    assert [claim.held for claim in outcome.claims] == [True, False, True]
