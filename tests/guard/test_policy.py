from collections.abc import Callable
from typing import Any

import pytest

from spear_hf import GuardPolicy
from spear_hf.errors import ConfigError


def test_json_round_trip_is_equal_and_byte_stable() -> None:
    policy = GuardPolicy(margin=0.1, bad_pixels="refuse")
    assert GuardPolicy.from_json(policy.to_json()) == policy
    assert GuardPolicy.from_json(policy.to_json()).to_json() == policy.to_json()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: GuardPolicy(margin=2),
            r"margin=2 is not allowed; margin is a number in \[0, 1\]; the default is 0.02",
        ),
        (lambda: GuardPolicy(shadow=0), r"shadow=0 is not allowed"),
        (lambda: GuardPolicy(patience=float("nan")), "a finite number of at least 0"),
        (lambda: GuardPolicy(pool=0), "pool is a whole number of at least 1; the default is 8"),
        (lambda: GuardPolicy(bad_pixels="drop"), "bad_pixels='drop' is not allowed; choose repair or refuse"),  # pyright: ignore
        (lambda: GuardPolicy(wait=9, max_wait=4), "max_wait=4 is below wait=9; make it at least as long"),
        (lambda: GuardPolicy.from_dict({"marginn": 1}), "no field 'marginn'; did you mean margin"),
        (lambda: GuardPolicy.from_json("[1]"), "a JSON list is not a GuardPolicy"),
        (lambda: GuardPolicy.from_json("{"), "not JSON"),
    ],
)
def test_a_wrong_policy_says_what_is_allowed(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_calibrated_bounds_come_from_what_was_seen() -> None:
    policy = GuardPolicy().calibrated(entropy_rise=0.12, collapse=0.0)
    assert (policy.max_entropy_rise, policy.max_collapse) == (0.18, 0.1)
    assert GuardPolicy().calibrated(entropy_rise=0.9, collapse=0.9).max_collapse == 0.6
