from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp import Phase, schedules
from adagp.accelerator.pipeline import (
    SCHEMES,
    Costs,
    Pipeline,
    costs,
    device_orders,
    phases_of,
    scales_of,
    simulate,
)
from adagp.accelerator.pipeline.training import training_steps
from tests.accelerator.pipeline import checker

BP, GP, WARMUP = Phase.BP, Phase.GP, Phase.WARMUP


def steps(scheme, phases, devices=4, microbatches=4, **prices):
    return simulate(Pipeline(scheme, devices, microbatches, tuple(phases)), costs(devices, **prices)).steps


@pytest.mark.parametrize(("scheme", "one", "two"), [("gpipe", 21, 25), ("dapple", 21, 25), ("chimera", 16, 20)])
def test_steps_are_the_papers(scheme, one, two):
    assert steps(scheme, [BP]) == one
    assert steps(scheme, [WARMUP]) == one
    assert steps(scheme, [GP, BP]) == two
    assert steps(scheme, [BP, BP]) == 2 * one


@pytest.mark.parametrize(("k", "expected"), [(1, 25), (2, 29), (3, 33), (4, 37)])
def test_gp_batches_leave_no_bubble(k, expected):
    phases = phases_of(schedules.fixed(k, 1), range(k + 1))
    assert phases == (GP,) * k + (BP,)
    assert steps("gpipe", phases) == steps("dapple", phases) == expected
    assert steps("chimera", phases) == 16 + 4 * k


def test_the_schedule_that_drives_training_drives_the_pipeline():
    ladder = schedules.ladder(steps_per_epoch=4, warmup_epochs=0.5, rung_epochs=1)
    assert phases_of(ladder, range(8)) == (WARMUP, WARMUP, GP, GP, GP, GP, GP, GP)


@given(st.integers(1, 9), st.integers(1, 12), st.integers(0, 3), st.integers(1, 4), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_equal_stages_take_what_the_closed_forms_say(devices, microbatches, k, forward, backward):
    phases = [GP] * k + [BP]
    expected = (microbatches + devices - 1) * (forward + backward) + k * microbatches * forward
    for scheme in ("gpipe", "dapple"):
        assert steps(scheme, phases, devices, microbatches, forward=forward, backward=backward) == expected


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 3), st.integers(1, 5), st.integers(0, 4), st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_zero_bubble_takes_what_its_paper_says(devices, more, batches, weights, ahead, back):
    # Qi et al., table 1: ZB-H1 idles (p - 1) (F + B - W) steps. That needs enough micro-batches, and W not the longest.
    forward, inputs, microbatches = weights + ahead, weights + back, devices + more
    prices = Costs((forward,) * devices, (inputs + weights,) * devices, (1,) * devices, bp_weights=(weights,) * devices)
    timeline = simulate(Pipeline("zero-bubble", devices, microbatches, (BP,) * batches), prices)
    work = microbatches * (forward + inputs + weights)
    assert timeline.steps == batches * (work + (devices - 1) * (forward + inputs - weights))


@given(
    st.integers(1, 9), st.integers(1, 12), st.lists(st.sampled_from([BP, GP]), min_size=1, max_size=4),
    st.integers(1, 4), st.integers(1, 6), st.integers(0, 3),
)  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_local_losses_take_their_work_and_the_way_to_the_last_stage(devices, count, phases, forward, backward, message):
    work = count * (len(phases) * forward + phases.count(BP) * backward)
    expected = work + (devices - 1) * (forward + message)
    assert steps("local", phases, devices, count, forward=forward, backward=backward, communication=message) == expected


@pytest.mark.parametrize("devices", [2, 4, 6, 8])
def test_chimera_takes_what_its_paper_says_for_as_many_micro_batches_as_devices(devices):
    # Li and Hoefler, section 3.3: 3 N / 2 + D - 2 backwards on the critical path, of two steps each.
    assert steps("chimera", [BP], devices, devices) == 3 * devices + 2 * (devices - 2)


@pytest.mark.parametrize("alpha", [0.25, 0.5])
def test_the_predictor_lengthens_every_pass(alpha):
    # Section 3.7: alpha for a forward, 2 alpha for a backward, so that every step is 1 + alpha long.
    for scheme in SCHEMES:
        for phases in ([BP], [GP, BP], [BP, GP, GP]):
            assert steps(scheme, phases, predictor=alpha) == (1 + alpha) * steps(scheme, phases)


def test_messages_delay_only_who_waits_for_them():
    assert steps("gpipe", [BP], communication=1) == 21 + 6  # three forward and three back on the critical path
    assert steps("gpipe", [GP, GP], communication=1) == 8 + 3 + 3
    alone = Pipeline("gpipe", 1, 4, (BP, GP))
    assert simulate(alone, costs(1, communication=9)).steps == 16


@st.composite
def pipelines(draw):
    scheme = draw(st.sampled_from(list(SCHEMES)))
    devices = draw(st.sampled_from([2, 4, 6]) if scheme == "chimera" else st.integers(1, 5))
    phases = draw(st.lists(st.sampled_from([BP, GP, WARMUP]), min_size=1, max_size=4))
    price = st.lists(st.integers(1, 4), min_size=devices, max_size=devices).map(tuple)
    back, weights = draw(price), draw(price)
    backward = tuple(map(sum, zip(back, weights, strict=True)))
    prices = Costs(draw(price), backward, draw(price), draw(st.integers(0, 3)), bp_weights=weights)
    return Pipeline(scheme, devices, draw(st.integers(1, 5)), tuple(phases)), prices


def checked_jobs(pipeline, prices):
    names = ["GP" if phase is GP else "BP" for phase in pipeline.phases]
    return checker.jobs_of(
        pipeline.scheme,
        pipeline.devices,
        pipeline.microbatches,
        names,
        prices.bp_forward,
        prices.bp_backward,
        prices.gp_forward,
        prices.bp_weights,
    )


def facts(job):
    return job.backward, job.batch, job.micro_batch, job.stage, job.weights


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_every_task_is_done_once_and_as_early_as_its_devices_order_allows(case):
    pipeline, prices = case
    timeline = simulate(pipeline, prices)
    jobs = checked_jobs(pipeline, prices)
    by_facts = {facts(job): job for job in jobs}
    assert Counter(facts(slot.task) for slot in timeline.slots) == Counter(by_facts.keys())

    orders = [[by_facts[facts(slot.task)] for slot in row] for row in timeline.devices]
    assert timeline.steps == checker.run(jobs, checker.in_given_order(orders), prices.communication, pipeline.devices)
    for device, row in enumerate(timeline.devices):
        for slot in row:
            job = by_facts[facts(slot.task)]
            assert (slot.start, slot.end, slot.device) == (job.start, job.end, device)
            assert job.device == device


@pytest.mark.parametrize("devices", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 4, 7])
@pytest.mark.parametrize("phases", [[BP], [GP, BP], [BP, GP, BP]])
def test_gpipe_and_dapple_are_what_devices_do_that_follow_their_rule(devices, microbatches, phases):
    for scheme, policy in (("gpipe", checker.gpipe_policy), ("dapple", checker.dapple_policy(devices))):
        pipeline = Pipeline(scheme, devices, microbatches, tuple(phases))
        jobs = checked_jobs(pipeline, costs(devices))
        total = checker.run(jobs, policy, 0, devices)
        for device, order in enumerate(device_orders(pipeline)):
            mine = sorted((job for job in jobs if job.device == device), key=lambda job: job.start)
            assert [facts(job) for job in mine] == [facts(task) for task in order]
        assert simulate(pipeline, costs(devices)).steps == total


def chimera_jobs(devices, microbatches, phases):
    pipeline = Pipeline("chimera", devices, microbatches, tuple(phases))
    timeline = simulate(pipeline, costs(devices))
    jobs = checked_jobs(pipeline, costs(devices))
    by_facts = {facts(job): job for job in jobs}
    streams = [
        [by_facts[facts(slot.task)] for slot in row if slot.task.replica == replica]
        for row in timeline.devices
        for replica in (0, 1)
    ]
    return timeline, jobs, streams


@pytest.mark.parametrize("phases", [[BP], [GP], [GP, BP], [BP, GP], [GP, GP]])
@pytest.mark.parametrize(("devices", "microbatches"), [(2, 1), (2, 2), (2, 3), (2, 4), (4, 1), (4, 2), (4, 3), (6, 2)])
def test_no_order_of_a_small_chimera_is_shorter(devices, microbatches, phases):
    timeline, jobs, _ = chimera_jobs(devices, microbatches, phases)
    assert checker.least_steps(jobs, devices, in_order=[], most=timeline.steps) == timeline.steps


@pytest.mark.parametrize(("microbatches", "phases"), [(4, [BP]), (5, [BP]), (4, [GP]), (4, [GP, BP]), (4, [BP, GP])])
def test_no_merge_of_the_two_pipelines_of_a_chimera_is_shorter(microbatches, phases):
    timeline, jobs, streams = chimera_jobs(4, microbatches, phases)
    assert checker.least_steps(jobs, 4, in_order=streams, most=timeline.steps) == timeline.steps


def test_out_of_the_order_of_1f1b_a_chimera_can_be_shorter_by_a_step():
    timeline, jobs, _ = chimera_jobs(4, 5, [BP])
    assert timeline.steps == 19
    assert checker.least_steps(jobs, 4, in_order=[], most=timeline.steps) == 18


@given(pipelines())
@settings(max_examples=60, deadline=None)
def test_activations_held_are_those_the_schemes_promise(case):
    pipeline, prices = case
    held = simulate(pipeline, prices).held
    devices, microbatches = pipeline.devices, pipeline.microbatches
    if set(pipeline.phases) == {GP}:
        assert held == (0,) * devices
    elif pipeline.scheme == "gpipe":
        assert held == (microbatches,) * devices
    elif pipeline.scheme == "local":
        assert held == (1,) * devices
    elif pipeline.scheme == "zero-bubble":  # the delay of a stage's weights adds up with its forwards ahead
        assert held == (min(microbatches, devices),) * devices
    elif pipeline.scheme == "dapple":
        assert held == tuple(min(microbatches, devices - device) for device in range(devices))
    else:
        assert max(held) <= min(microbatches, devices + 1)


@given(pipelines())
@settings(max_examples=40, deadline=None)
def test_busy_is_the_share_of_work(case):
    pipeline, prices = case
    timeline = simulate(pipeline, prices)
    work = sum(job.duration for job in checked_jobs(pipeline, prices))
    assert timeline.busy == pytest.approx(work / (timeline.steps * pipeline.devices))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("zigzag", 4, 4, (BP,)), "scheme='zigzag'.*gpipe, dapple, chimera"),
        (("gpipe", 0, 4, (BP,)), "devices=0: must be at least 1"),
        (("gpipe", 4, 0, (BP,)), "microbatches=0: must be at least 1"),
        (("chimera", 3, 4, (BP,)), "devices=3: .* even number"),
        (("gpipe", 4, 4, ()), "phases: there is no batch"),
    ],
)
def test_what_is_no_pipeline_is_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(*arguments)


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"forward": [1, 2]}, "forward: 2 values for 4 stages"),
        ({"forward": 0}, "^forward=0: .*must take a positive and finite time"),
        ({"backward": -1}, "^backward=-1: .*must take a positive and finite time"),
        ({"backward": float("nan")}, "^backward=nan: .*must take a positive and finite time"),
        ({"backward": 10**308}, "^backward=1.*must take a positive and finite time"),
        ({"predictor": 10**16}, "predictor=1.*at most 1e15"),
        ({"communication": 10**400}, "communication=1.*at most 1e15"),
        ({"predictor": -0.5}, "predictor=-0.5: must be 0 or more"),
        ({"communication": -1}, "communication=-1"),
        ({"communication": float("inf")}, "communication=inf"),
    ],
)
def test_costs_that_are_none_are_refused_by_name(prices, message):
    with pytest.raises(ValueError, match=message):
        costs(4, **prices)


@pytest.mark.timeout(20)
def test_the_time_of_ordering_grows_with_the_tasks_and_not_with_their_square():
    pipeline = Pipeline("chimera", 1000, 4, (BP,))
    assert simulate(pipeline, costs(1000)).steps > 0


def test_costs_of_another_number_of_stages_are_refused():
    with pytest.raises(ValueError, match="bp_forward: has 3 stages for 4 devices"):
        simulate(Pipeline("gpipe", 4, 4, (BP,)), costs(3))


@pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "local"])
def test_a_coarse_batch_is_short(scheme: str) -> None:
    """A pipeline is empty after a BP batch, so that a quarter of the work takes a quarter of its steps."""
    one = simulate(Pipeline(scheme, 4, 4, (Phase.BP,)), costs(4)).steps
    both = simulate(Pipeline(scheme, 4, 4, (Phase.BP, Phase.BP), (0.5, 1.0)), costs(4)).steps
    assert both == pytest.approx(1.25 * one)


def test_a_coarse_batch_of_local_losses_adds_its_work_alone() -> None:
    assert simulate(Pipeline("local", 4, 4, (BP, BP), (0.5, 1.0)), costs(4)).steps == 3 + 12 + 3


@pytest.mark.parametrize("weights", [(2.0,), (0.0,), (-1.0,)])
def test_gradients_of_weights_are_a_part_of_the_backward(weights) -> None:
    with pytest.raises(ValueError, match=r"bp_weights=.* below 2"):
        Costs((1,), (2,), (1,), bp_weights=weights)
    with pytest.raises(ValueError, match="bp_weights: has 1 stages for 2 devices"):
        simulate(Pipeline("zero-bubble", 2, 2, (BP,)), Costs((1, 1), (2, 2), (1, 1), bp_weights=(1,)))


@pytest.mark.parametrize("scheme", ["zero-bubble", "local"])
def test_steps_that_do_not_add_up_are_refused(scheme: str) -> None:
    with pytest.raises(ValueError, match="use simulate"):
        training_steps(scheme, 2, 2, (BP,), costs(2))


def test_scales_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="scales: 1 for 2 phases"):
        Pipeline("gpipe", 2, 2, (Phase.BP, Phase.BP), (0.5,))
    with pytest.raises(ValueError, match=r"scale = 1.5"):
        Pipeline("gpipe", 2, 2, (Phase.BP,), (1.5,))


def test_scales_follow_the_schedule() -> None:
    assert scales_of(schedules.fixed(1, 1, source="coarse"), range(3)) == (0.5, 1.0, 0.5)
    assert scales_of(schedules.fixed(1, 1), range(3)) == ()
