"""schedule(): what it says of each step, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from relax_trace import Action, Schedule, schedule

LETTERS = {
    "-": Action.SKIP,
    "w": Action.WARMUP,
    "r": Action.RECORD,
    "D": Action.RECORD_AND_DELIVER,
}


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        (schedule(active=1), "DDDDDD"),
        (schedule(active=3), "rrDrrDrr"),
        (schedule(wait=2, active=1), "--D--D--D"),
        (schedule(warmup=1, active=1), "wDwDwD"),
        (schedule(wait=1, warmup=2, active=3), "-wwrrD-wwrrD-w"),
        (schedule(active=1, repeat=1), "D---------"),
        (schedule(active=2, repeat=2), "rDrD------"),
        (schedule(wait=1, warmup=1, active=2, repeat=2), "-wrD-wrD------"),
        (schedule(wait=5, active=1, repeat=1), "-----D-----"),
    ],
)
def test_the_action_of_each_step(plan: Schedule, steps: str) -> None:
    """Wait, warm up, record; the last one recorded ends the cycle; after the last cycle nothing."""
    assert [plan(step) for step in range(len(steps))] == [LETTERS[letter] for letter in steps]


def test_it_holds_for_large_numbers() -> None:
    """A year at a thousand a second is 3e10 steps, and numbers up to 2^32 - 1 are allowed."""
    most = (1 << 32) - 1
    plan = schedule(wait=most, warmup=most, active=most, repeat=most)
    assert plan(most - 1) is Action.SKIP
    assert plan(most) is plan(2 * most - 1) is Action.WARMUP
    assert plan(2 * most) is plan(3 * most - 2) is Action.RECORD
    assert plan(3 * most - 1) is Action.RECORD_AND_DELIVER
    assert plan(3 * most * most - 1) is Action.RECORD_AND_DELIVER
    assert plan(3 * most * most + 2 * most) is Action.SKIP


def test_the_words_are_those_of_torch() -> None:
    """They have to be given by name; a schedule is a value."""
    assert schedule(wait=1, warmup=2, active=3, repeat=4) == Schedule(1, 2, 3, 4)
    assert hash(schedule(active=1)) == hash(Schedule(0, 0, 1, 0))
    with pytest.raises(TypeError):
        schedule(1, 1, 1)  # type: ignore[misc]
    with pytest.raises(TypeError):
        schedule()  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("numbers", "error", "text"),
    [
        ({"active": 0}, ValueError, "active must be at least 1: with 0 nothing would be recorded"),
        ({"active": -1}, ValueError, "active must be from 0 to 4294967295, not -1"),
        ({"active": 1, "wait": -5}, ValueError, "wait must be from 0 to 4294967295, not -5"),
        (
            {"active": 1, "repeat": 1 << 32},
            ValueError,
            "repeat must be from 0 to 4294967295, not 4294967296",
        ),
        ({"active": 1, "warmup": 0.5}, TypeError, "warmup must be an integer, not a float"),
        ({"active": "1"}, TypeError, "active must be an integer, not a str"),
        ({"active": None}, TypeError, "active must be an integer, not a NoneType"),
    ],
)
def test_what_makes_no_schedule_says_why(
    numbers: dict[str, Any], error: type[Exception], text: str
) -> None:
    """Through the function and through the class alike."""
    rest = {"wait": 0, "warmup": 0, "repeat": 0}
    for make in (schedule, lambda **given: Schedule(**{**rest, **given})):
        with pytest.raises(error) as caught:
            make(**numbers)
        assert str(caught.value) == text
