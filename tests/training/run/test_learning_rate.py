import pytest

from adagp.training.run import learning_rate


@pytest.mark.parametrize("schedule", ["cosine", "step", "exponential"])
def test_lr_decays_over_the_run_whatever_its_length(schedule: str) -> None:
    assert learning_rate.factor(schedule, 0.0) == 1.0
    assert learning_rate.factor(schedule, 0.999) <= 0.0101
    values = [learning_rate.factor(schedule, progress / 50) for progress in range(50)]
    assert values == sorted(values, reverse=True)


def test_the_rate_rises_before_its_schedule_begins() -> None:
    rising = [learning_rate.factor("cosine", step / 100, 0.2) for step in range(20)]
    assert rising == pytest.approx([step / 20 for step in range(20)])
    # What is left of the run has the whole schedule.
    for progress in (0.2, 0.6, 0.99):
        assert learning_rate.factor("cosine", progress, 0.2) == pytest.approx(
            learning_rate.factor("cosine", (progress - 0.2) / 0.8)
        )
