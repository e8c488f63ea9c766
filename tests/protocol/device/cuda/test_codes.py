import pytest

from protocol.device.cuda import codes
from tests.protocol.device.cuda import pretended

THE_END = "must be terminated and relaunched"


def test_names_are_those_of_the_runtime() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import driver, runtime

    known = {int(each): each.name for each in runtime.cudaError_t}
    assert {code: known[code] for code in codes.NAMES} == codes.NAMES
    used = {int(each) for each in driver.CUresult}
    not_the_drivers = {code for code in codes.NAMES if code not in used}
    assert {35} <= not_the_drivers <= {35, 36}


def test_what_ends_a_process_is_what_the_bindings_say_of_it() -> None:
    pretended.must_have_bindings()
    from cuda.bindings import runtime

    said = {
        int(each)
        for each in runtime.cudaError_t
        if THE_END in " ".join((each.__doc__ or "").split())
    }
    if not said:  # older bindings say nothing of single errors
        pytest.skip("these bindings do not describe errors")
    assert said <= codes.STICKY
    assert {4, 214, 220, 709, 999} == codes.STICKY - said
    assert codes.NAMES.keys() >= codes.STICKY


def test_numbers_without_a_name_keep_the_drivers() -> None:
    assert codes.name_of(700, "CUDA_ERROR_ILLEGAL_ADDRESS") == "cudaErrorIllegalAddress"
    assert codes.name_of(12345, "CUDA_ERROR_OF_NEXT_YEAR") == "CUDA_ERROR_OF_NEXT_YEAR"
