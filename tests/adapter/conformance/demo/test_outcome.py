from adapter.conformance.demo.outcome import Outcome


def test_an_act_holds_only_with_claims_that_all_hold_and_no_error() -> None:
    outcome = Outcome("act")
    held = [outcome.held]
    outcome.claim("first", True)
    held.append(outcome.held)
    outcome.claim("second", False)
    held.append(outcome.held)
    assert held == [False, True, False]


def test_an_error_outweighs_claims() -> None:
    outcome = Outcome("act", error="it broke")
    outcome.claim("first", True)
    assert not outcome.held
