"""Coarse batches in a pipeline, against closed forms, the ticking checker and whole simulations."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp import Phase, schedules
from adagp.accelerator.pipeline import SCHEMES, Costs, Pipeline, costs, phases_of, scales_of, simulate
from adagp.accelerator.pipeline.training import training_steps
from tests.accelerator.pipeline import checker

BP, GP, WARMUP = Phase.BP, Phase.GP, Phase.WARMUP


@given(st.integers(1, 8), st.integers(1, 10), st.integers(0, 3), st.sampled_from([0.25, 0.5, 0.75, 1.0]))
@settings(max_examples=60, deadline=None)
def test_equal_stages_take_what_the_closed_form_says(devices: int, microbatches: int, k: int, scale: float) -> None:
    phases, scales = (BP,) * (k + 1), (scale,) * k + (1.0,)
    one = 3 * (microbatches + devices - 1)
    for scheme in ("gpipe", "dapple"):
        found = simulate(Pipeline(scheme, devices, microbatches, phases, scales), costs(devices))
        assert found.steps == one + k * one * scale**2
        work = 3 * microbatches * devices * (1 + k * scale**2)
        assert found.bubbles == pytest.approx(found.steps * devices - work)


@pytest.mark.parametrize(
    ("scheme", "predicted", "coarse"), [("gpipe", 25, 26.25), ("dapple", 25, 26.25), ("chimera", 20, 20)]
)
def test_a_cheap_batch_and_a_bp_batch_of_the_papers_pipeline(scheme: str, predicted: int, coarse: float) -> None:
    assert simulate(Pipeline(scheme, 4, 4, (GP, BP)), costs(4)).steps == predicted
    assert simulate(Pipeline(scheme, 4, 4, (BP, BP), (0.5, 1.0)), costs(4)).steps == coarse


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "local"])
def test_the_predictor_rests_in_coarse_batches(scheme: str) -> None:
    pipeline = Pipeline(scheme, 4, 4, (BP, BP), (0.5, 1.0))
    plain = simulate(Pipeline(scheme, 4, 4, (BP,)), costs(4)).steps
    assert simulate(pipeline, costs(4, predictor=0.25)).steps == plain / 4 + 1.25 * plain


def test_measured_costs_of_a_scale_come_before_its_square() -> None:
    half = Costs((3, 4), (5, 6), (3, 4))
    price = Costs((10, 10), (20, 20), (10, 10), plain={0.5: half, 1.0: Costs((8, 8), (16, 16), (8, 8))})
    small, other = (simulate(Pipeline("gpipe", 2, 1, (BP,), (scale,)), price).steps for scale in (0.5, 0.25))
    assert small == 3 + 4 + 6 + 5
    assert other == (8 + 8 + 16 + 16) / 16
    assert simulate(Pipeline("gpipe", 2, 1, (BP,)), price).steps == 60
    with pytest.raises(ValueError, match="bp_forward: has 2 stages for 3 devices"):
        Costs((1,) * 3, (1,) * 3, (1,) * 3, plain={0.5: half}).check(3)


@st.composite
def coarse_pipelines(draw: st.DrawFn, schemes: tuple[str, ...] = tuple(SCHEMES)) -> tuple[Pipeline, Costs]:
    scheme = draw(st.sampled_from(schemes))
    devices = draw(st.sampled_from([2, 4]) if scheme == "chimera" else st.integers(1, 4))
    batches = draw(
        st.lists(st.sampled_from([(BP, 1.0), (BP, 0.5), (BP, 0.25), (GP, 1.0), (WARMUP, 1.0)]), min_size=1, max_size=5)
    )
    price = st.lists(st.integers(1, 3).map(lambda value: 32 * value), min_size=devices, max_size=devices).map(tuple)
    phases, scales = zip(*batches, strict=True)
    return Pipeline(scheme, devices, draw(st.integers(1, 4)), phases, scales), Costs(*(draw(price) for _ in range(3)))


@given(coarse_pipelines())
@settings(max_examples=40, deadline=None)
def test_every_task_starts_as_early_as_a_ticking_clock_lets_it(case: tuple[Pipeline, Costs]) -> None:
    pipeline, price = case
    timeline = simulate(pipeline, price)
    names = ["GP" if phase is GP else "BP" for phase in pipeline.phases]
    stages = price.bp_forward, price.bp_backward, price.gp_forward, [back / 2 for back in price.bp_backward]
    jobs = checker.jobs_of(pipeline.scheme, pipeline.devices, pipeline.microbatches, names, *stages)
    for job in jobs:
        job.duration = round(job.duration * pipeline.scales[job.batch] ** 2)
    known = {(job.backward, job.batch, job.micro_batch, job.stage, job.weights): job for job in jobs}
    orders = [[known[*slot.task[:4], slot.task.weights] for slot in row] for row in timeline.devices]
    assert timeline.steps == checker.run(jobs, checker.in_given_order(orders), 0, pipeline.devices)
    for slot in timeline.slots:
        job = known[*slot.task[:4], slot.task.weights]
        assert (slot.start, slot.end) == (job.start, job.end)


@given(coarse_pipelines(schemes=("gpipe", "dapple", "chimera")))
@settings(max_examples=60, deadline=None)
def test_a_whole_training_adds_up_to_its_simulation(case: tuple[Pipeline, Costs]) -> None:
    pipeline, price = case
    facts = pipeline.scheme, pipeline.devices, pipeline.microbatches, pipeline.phases
    assert training_steps(*facts, price, pipeline.scales) == simulate(pipeline, price).steps


def test_trainings_by_the_schedules_of_training() -> None:
    steps = 100
    for schedule, cheap in (
        (schedules.progressive(steps, ((0.5, 0.6), (1.0, 0.4))), 60),
        (schedules.fixed(1, 1, source="coarse"), 50),
    ):
        phases, scales = phases_of(schedule, range(steps)), scales_of(schedule, range(steps))
        found = training_steps("gpipe", 4, 4, phases, costs(4), scales)
        assert found == pytest.approx(21 * (cheap / 4 + steps - cheap))
    with pytest.raises(ValueError, match="scales: 1 for 2 phases"):
        training_steps("gpipe", 4, 4, (BP, BP), costs(4), (0.5,))
