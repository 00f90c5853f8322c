import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import exp

import pytest

from adagp.advice.estimate import PLACEMENT
from adagp.advice.rounds import LEAST_ROUNDS, Candidate, measure


class FakeMachine:
    """A clock that only work moves, with noise that lasts for a while, as another process makes it."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.now, self._noise, self._random = 0.0, noise, random.Random(seed)

    def clock(self) -> float:
        return self.now

    def taking(self, seconds: float) -> Callable[[], None]:
        def work() -> None:
            self.now += seconds * exp(self._noise * abs(self._random.gauss(0, 1)))

        return work


def test_turns_are_taken_in_a_new_order_each_round() -> None:
    machine, order = FakeMachine(), []

    def noting(name: str) -> Callable[[], None]:
        work = machine.taking(1.0)

        def noted() -> None:
            order.append(name)
            work()

        return noted

    rounds = measure([Candidate(name, noting(name)) for name in "abc"], machine.clock, 100.0)
    assert len(rounds.seconds) == (100 - 3) // 3
    turns = ["".join(order[start : start + 3]) for start in range(3, len(order), 3)]
    assert all(sorted(turn) == list("abc") for turn in turns)
    assert len(set(turns)) > 3


def test_no_round_is_begun_that_would_end_too_late() -> None:
    machine = FakeMachine()
    rounds = measure([Candidate("a", machine.taking(1.0)), Candidate("b", machine.taking(3.0))], machine.clock, 14.0)
    assert machine.now <= 14.0
    assert len(rounds.seconds) == 2
    assert len(measure([Candidate("a", machine.taking(1.0))], machine.clock, 0.0).seconds) == 1, "at least one"


def test_getting_ready_is_not_timed() -> None:
    machine = FakeMachine()

    @contextmanager
    def ready() -> Iterator[None]:
        machine.now += 5.0
        yield
        machine.now += 5.0

    rounds = measure(
        [Candidate("a", machine.taking(1.0)), Candidate("b", machine.taking(0.5), ready)], machine.clock, 99
    )
    assert rounds.median("b") == pytest.approx(0.5)
    assert rounds.speed_up("b", "a").ratio == pytest.approx(2.0)


def test_a_candidate_that_fails_is_left_out_by_name() -> None:
    machine = FakeMachine()

    def fail() -> None:
        raise RuntimeError("not here\nand more")

    rounds = measure([Candidate("a", machine.taking(1.0)), Candidate("b", fail)], machine.clock, 9.0)
    assert rounds.failed == {"b": "RuntimeError: not here"}
    assert "b" not in rounds.seconds[0]
    with pytest.raises(RuntimeError):
        measure([Candidate("b", fail)], machine.clock, 9.0)


def test_a_candidate_that_fails_later_is_left_out_from_then_on() -> None:
    machine, left = FakeMachine(), [3]

    def tire() -> None:
        machine.now += 1.0
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("no more")

    rounds = measure([Candidate("a", machine.taking(1.0)), Candidate("b", tire)], machine.clock, 20.0)
    assert rounds.failed == {"b": "MemoryError: no more"}
    assert len(rounds.seconds) > 10
    assert left == [0]


def test_seconds_needed_are_those_to_ask_for() -> None:
    """Rounds that get a tenth of the time need ten times as much of it."""

    def needed(share: float) -> float:
        machine = FakeMachine(0.1)
        candidates = [Candidate(name, machine.taking(1.0)) for name in "ab"]
        return measure(candidates, machine.clock, 60.0, share=share).speed_up("b", "a").seconds_needed

    assert needed(0.1) == pytest.approx(10 * needed(1.0))


def test_a_hopeless_candidate_leaves_its_time_to_the_others() -> None:
    machine = FakeMachine(noise=0.01)
    candidates = [
        Candidate("a", machine.taking(1.0)),
        Candidate("b", machine.taking(0.9)),
        Candidate("c", machine.taking(50.0)),
    ]
    rounds = measure(candidates, machine.clock, 400.0)
    assert sum("c" in one for one in rounds.seconds) == 3
    assert len(rounds.seconds) > 50
    assert rounds.speed_up("c", "a").is_slower


def test_what_would_take_most_of_the_time_is_given_up_after_one_batch() -> None:
    machine = FakeMachine()
    lengths = {"a": 1.0, "b": 0.9, "slow": 10.0}
    candidates = [Candidate(name, machine.taking(seconds)) for name, seconds in lengths.items()]
    rounds = measure(candidates, machine.clock, 40.0)
    assert rounds.given_up == {"slow": "given up after its first batch, which took 10 s instead of 1"}
    assert all(one.keys() == {"a", "b"} for one in rounds.seconds)
    assert len(rounds.seconds) > 10
    patient = measure(candidates, machine.clock, machine.now + 400.0)
    assert patient.given_up == {}
    assert patient.speed_up("slow", "a").is_slower


def test_where_time_is_short_the_slowest_have_one_turn() -> None:
    """A warm-up and a round of all take 11 of 19 seconds; without `slow` two more rounds fit, with it they do not."""
    machine = FakeMachine()
    lengths = {"a": 1.0, "slow": 2.5, "b": 0.9, "c": 1.1}
    candidates = [Candidate(name, machine.taking(seconds)) for name, seconds in lengths.items()]
    rounds = measure(candidates, machine.clock, 19.0)
    assert [sorted(one) for one in rounds.seconds] == [sorted(lengths)] + (LEAST_ROUNDS - 1) * [["a", "b", "c"]]
    assert rounds.speed_up("b", "a").is_faster
    assert rounds.speed_up("slow", "a").text() == "unknown"
    assert rounds.speed_up("slow", "a").seconds_needed == pytest.approx(8 * sum(lengths.values()))
    hurried = measure(candidates, machine.clock, machine.now)
    assert [sorted(one) for one in hurried.seconds] == [sorted(lengths)], "every candidate has its one turn"


@pytest.mark.parametrize("noise", [0.02, 0.2, 1.0])
def test_no_false_promise_on_a_busy_machine(noise: float) -> None:
    """Options that change nothing, on 40 machines: at most as many promises as the confidence allows."""
    promises = turns = 0
    for seed in range(40):
        machine = FakeMachine(noise, seed)
        same = [Candidate(str(place), machine.taking(1.0)) for place in range(6)]
        rounds = measure(same, machine.clock, machine.now + 120, seed=seed)
        left = [one for one in same[1:] if one.name not in rounds.given_up]
        promises += sum(rounds.speed_up(one.name, "0").is_faster for one in left)
        turns += len(left)
    assert promises <= 0.03 * turns


def test_noise_widens_intervals() -> None:
    widths = []
    for noise in (0.0, 0.05, 0.5):
        machine = FakeMachine(noise)
        rounds = measure([Candidate("a", machine.taking(1.0)), Candidate("b", machine.taking(0.8))], machine.clock, 60)
        found = rounds.speed_up("b", "a")
        widths.append(found.high / found.low)
    assert widths == sorted(widths)
    assert widths[0] == pytest.approx(PLACEMENT**2)
    assert widths[2] > widths[1] * 1.05
