import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adagp import Phase, Plan, schedules
from adagp.quality import GradientAlignment


def phases(schedule: schedules.Schedule, start: int, count: int) -> str:
    letter = {Phase.WARMUP: "w", Phase.BP: "b", Phase.GP: "g"}
    return "".join(letter[schedule(step).phase] for step in range(start, start + count))


def test_the_ladder_is_the_papers() -> None:
    schedule = schedules.ladder(steps_per_epoch=20)
    assert phases(schedule, 0, 200) == "w" * 200
    for rung, cycle in enumerate(["ggggb", "gggb", "ggb", "gb"]):
        text = phases(schedule, 200 + 80 * rung, 80)
        assert text == (cycle * 80)[:80]
    assert phases(schedule, 10_000, 2) == "gb"


def test_the_ladders_share_of_gp_gives_the_papers_speed_up() -> None:
    """90 epochs with a backward twice the forward and a free predictor: 1.465 (schedule algebra of section 3.7)."""
    steps = 60
    schedule = schedules.ladder(steps_per_epoch=steps)
    found = Counter(schedule(step).phase for step in range(90 * steps))
    seconds = 3 * (found[Phase.WARMUP] + found[Phase.BP]) + found[Phase.GP]
    assert 3 * 90 * steps / seconds == pytest.approx(1.465, abs=0.001)


def test_epochs_may_be_fractions_and_the_gp_source_is_chosen() -> None:
    schedule = schedules.ladder(10, warmup_epochs=0.5, rung_epochs=0.3, source="mean")
    assert phases(schedule, 0, 14) == "wwwww" + "ggg" + "ggg" + "ggb"
    assert schedule(5).source("any") == "mean"
    assert schedule(5).note == "4:1"
    assert schedule.sources == {"backprop", "mean"}


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 200))
def test_fixed_is_k_then_m(k: int, m: int, step: int) -> None:
    if k + m == 0:
        with pytest.raises(ValueError, match="rungs"):
            schedules.fixed(k, m)
        return
    assert (schedules.fixed(k, m)(step).phase is Phase.GP) == (step % (k + m) < k)


def test_bad_numbers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"steps_per_epoch.*loader empty"):
        schedules.ladder(0)
    with pytest.raises(ValueError, match="warmup_epochs"):
        schedules.ladder(10, warmup_epochs=-1)
    with pytest.raises(ValueError, match="warmup_epochs"):
        schedules.adaptive(10, warmup_epochs=-1)
    with pytest.raises(ValueError, match="rung_epochs"):
        schedules.ladder(10, rung_epochs=0)
    with pytest.raises(ValueError, match="source='oracle' is unknown"):
        schedules.fixed(1, 1, source="oracle")
    with pytest.raises(ValueError, match="max_k"):
        schedules.adaptive(10, max_k=0)


def test_a_callable_must_return_a_plan() -> None:
    with pytest.raises(TypeError, match="schedule at step 3 returned str"):
        schedules.from_function(lambda step: "BP")(3)


def observed(cosine: float) -> dict[str, GradientAlignment]:
    return {
        "a": GradientAlignment(cosine, 1.0, 1.0, 1, 0.0),
        "b": GradientAlignment(-0.1 if cosine > 0 else cosine, 1.0, 1.0, 1, 0.0),
    }


def drive(schedule: schedules.Adaptive, start: int, cosine: float, batches: int) -> str:
    """Run batches with a given quality of predictions, as the engine does: only true gradients say anything."""
    text = ""
    for step in range(start, start + batches):
        plan = schedule(step)
        text += phases(schedule, step, 1)
        schedule.observe(step, {} if plan.phase is Phase.GP else observed(cosine))
    return text


def test_adaptive_climbs_falls_back_recovers_and_says_why() -> None:
    schedule = schedules.adaptive(10, warmup_epochs=1, patience=2)
    assert drive(schedule, 0, 0.5, 10) == "w" * 10
    assert drive(schedule, 10, 0.5, 20) == "bb" + "gb" * 2 + "ggb" * 2 + "gggb" * 2
    assert schedule(30).note == "4:1"
    assert schedule(30).overrides == {"b": "skip"}
    drive(schedule, 30, -0.9, 60)
    assert schedule(90).note == "0:1"
    assert schedule(90).phase is Phase.BP
    drive(schedule, 90, 0.9, 200)
    assert schedule(290).note == "4:1"
    log = "\n".join(schedule.explain())
    assert "0:1 -> 1:1, predictions point the right way" in log
    assert "back to BP" in log
    assert "1 of 2 layers rest" in log


def test_adaptive_doubts_what_it_cannot_tell_from_noise() -> None:
    schedule = schedules.adaptive(1, warmup_epochs=0, patience=1)
    drive(schedule, 0, 0.5, 14)
    assert schedule(14).note == "4:1"
    noise = itertools.cycle([0.9, -0.7])
    for step in range(14, 100):
        true_grad = {"a": GradientAlignment(next(noise), 1.0, 1.0, 1, 0.0)}
        schedule.observe(step, {} if schedule(step).phase is Phase.GP else true_grad)
    assert any("4:1 -> 3:1, predictions cannot be distinguished from noise" in line for line in schedule.explain())


def test_adaptive_goes_on_from_its_saved_state() -> None:
    one, two = (schedules.adaptive(10, warmup_epochs=1, patience=1) for _ in range(2))
    drive(one, 0, 0.4, 25)
    two.load_state_dict(one.state_dict())
    assert drive(one, 25, 0.2, 60) == drive(two, 25, 0.2, 60)
    assert one.explain() == two.explain()
    assert one.state_dict() == two.state_dict()


def test_uncovered_modules_follow_the_phase_unless_named() -> None:
    assert Plan(Phase.GP, "zero").source_of_uncovered("norm") == "skip"
    assert Plan(Phase.BP, "backprop").source_of_uncovered("norm") == "backprop"
    assert Plan(Phase.BP, "backprop", {"norm": "skip"}).source_of_uncovered("norm") == "skip"
