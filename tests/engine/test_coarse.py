"""Coarse batches in a user's loop: the invariants on smaller samples."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.amp.grad_scaler import GradScaler

from adagp import AdaGP, Phase, Plan, coarse, schedules
from tests.nets import equal_parameters, sgd


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(inplace=True),
        nn.Conv2d(6, 8, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


def data(count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 2, 8, 8, generator=generator), torch.randint(3, (8,), generator=generator))
        for _ in range(count)
    ]


def loss_at(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, scale: float) -> Tensor:
    return nn.functional.cross_entropy(model(coarse.images(x, scale)), y)


def train_plainly(model: nn.Module, optimizer: torch.optim.Optimizer, scales: Sequence[float]) -> None:
    """The loop without `adagp`. After a full batch, running statistics are those of full batches."""
    was_full = False
    for scale, (x, y) in zip(scales, data(len(scales)), strict=True):
        model[1].track_running_stats = scale == 1 or not was_full  # type: ignore[index, assignment, union-attr]
        was_full |= scale == 1
        loss_at(model, x, y, scale).backward()
        optimizer.step()
        optimizer.zero_grad()


SCHEDULES = {
    "progressive": lambda: schedules.progressive(10, ((0.5, 0.6), (1.0, 0.4))),
    "ladder": lambda: schedules.ladder(2, 1, 1, source="coarse"),
    "fixed": lambda: schedules.fixed(1, 1, source="coarse", scale=0.75),
}


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("form", ["step", "with"])
def test_training_is_the_plain_loop_on_the_same_images(name: str, optimizer: Any, form: str) -> None:
    schedule = SCHEDULES[name]()
    plain, model = network(), network()
    train_plainly(plain, optimizer(plain.parameters(), lr=0.05), [schedule(step).scale for step in range(10)])
    gp = AdaGP(model, optimizer(model.parameters(), lr=0.05), schedule, None)
    for x, y in data(10):
        if form == "step":
            gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))
        else:
            with gp.batch() as batch:
                batch.backward(loss_at(model, x, y, batch.scale))
            gp.optimizer.step()
            gp.optimizer.zero_grad()
    assert {schedule(step).scale for step in range(10)} == schedule.scales
    assert len(schedule.scales) == 2
    assert equal_parameters(plain, model)


def statistics(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def test_coarse_batches_leave_running_statistics_alone_after_a_full_one() -> None:
    """Before the first full batch they are all there is to test with; after it they would spoil those of full size."""
    model = network()
    scales = (0.5, 1.0, 0.5, 1.0)
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", scale=scales[step]), None)
    changed = []
    for x, y in data(4):
        before = statistics(model)
        gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))
        changed.append([not torch.equal(*pair) for pair in zip(before, statistics(model), strict=True)])
    assert changed == [[True] * 3, [True] * 3, [False] * 3, [True] * 3]


def test_running_statistics_are_left_alone_where_a_coarse_batch_fails_or_has_two_parts() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", scale=0.5 if step else 1.0), None)
    x, y = data(1)[0]
    gp.step(lambda scale: loss_at(model, x, y, scale))
    before = statistics(model)
    with pytest.raises(ZeroDivisionError), gp.batch() as batch:
        batch.backward(loss_at(model, x, y, batch.scale) / (1 // 0))
    for last in (False, True):
        gp.step(lambda scale: loss_at(model, x, y, scale), last=last)
    assert all(torch.equal(*pair) for pair in zip(before, statistics(model), strict=True))


@pytest.mark.parametrize("name", ["progressive", "fixed"])
@pytest.mark.parametrize("cut", [3, 7])
def test_a_resumed_run_is_the_same(cut: int, name: str) -> None:
    def run(gp: AdaGP, model: nn.Module, part: list[tuple[Tensor, Tensor]]) -> None:
        for x, y in part:
            gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))

    whole, resumed = network(), network()
    gp = AdaGP(whole, sgd(whole), SCHEDULES[name]())
    run(gp, whole, data(10)[:cut])
    saved = copy.deepcopy({"model": whole.state_dict(), "optimizer": gp.optimizer.state_dict(), "gp": gp.state_dict()})
    run(gp, whole, data(10)[cut:])
    second = AdaGP(resumed, sgd(resumed), SCHEDULES[name]())
    resumed.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["gp"])
    run(second, resumed, data(10)[cut:])
    assert equal_parameters(whole, resumed)


def test_the_predictor_learns_from_full_batches_only() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="coarse"), "paper")
    for x, y in data(6):
        gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))
    assert gp.counts() == {"backprop": 18}
    assert {quality.batches for quality in gp.quality().values()} == {3}


def test_coarse_batches_mix_with_every_source() -> None:
    def plans(step: int) -> Plan:
        overrides = [{"0": "topk"}, {"3": "zero"}, {"6": "mean"}, {"0": "predicted"}][step % 4]
        return Plan(Phase.BP, "backprop", overrides, scale=0.5 if step % 3 else 1.0)

    model = network()
    gp = AdaGP(model, sgd(model), plans, "paper")
    for x, y in data(12):
        gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))
    counts = gp.counts()
    assert (counts["topk"], counts["zero"]) == (3, 3)
    assert counts["mean"] + counts["predicted"] + counts.get("skip", 0) == 6


def test_a_gp_batch_may_be_coarse() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.GP, "predicted", scale=0.5), "paper")
    x, y = data(1)[0]
    sizes = []
    model[0].register_forward_hook(lambda _, inputs, output: sizes.append(output.shape[-1]))
    gp.step(lambda scale: loss_at(model, x, y, scale))
    assert sizes == [4]


def test_micro_batches_and_a_scaler() -> None:
    model, twin = network(), network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0, source="coarse"), None)
    x, y = data(1)[0]
    with gp.batch(scaler=GradScaler("cpu", init_scale=64.0)) as batch:
        for part, label in zip(x.chunk(2), y.chunk(2), strict=True):
            batch.backward(loss_at(model, part, label, batch.scale) / 2)
    for part, label in zip(x.chunk(2), y.chunk(2), strict=True):
        (loss_at(twin, part, label, 0.5) / 2).backward()
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert one.grad is not None
        assert two.grad is not None
        assert torch.allclose(one.grad, two.grad, atol=1e-7)


def test_channels_last_and_autocast() -> None:
    model, twin = (network().to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    schedule = schedules.progressive(6)
    gp, own = AdaGP(model, sgd(model), schedule, None), sgd(twin)
    layouts = set()
    model[0].register_forward_hook(
        lambda _, inputs, output: layouts.add(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    for step, (x, y) in enumerate(data(6)):
        images = x.contiguous(memory_format=torch.channels_last)

        def loss(scale: float, of: nn.Module = model, images: Tensor = images, y: Tensor = y) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return loss_at(of, images, y, scale)

        gp.step(loss)
        loss(schedule(step).scale, twin).backward()
        own.step()
        own.zero_grad()
    assert layouts == {True}
    assert equal_parameters(model, twin)


@pytest.mark.filterwarnings("ignore")
def test_one_graph_is_compiled_for_each_size() -> None:
    torch._dynamo.reset()
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="coarse"), None)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=False)
    for x, y in data(8):
        gp.step(lambda scale, x=x, y=y: loss_at(compiled, x, y, scale))
    assert counter.frame_count == 2


def test_a_closure_without_a_scale_is_refused_before_the_first_batch() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1, source="coarse"), None)
    x, y = data(1)[0]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match=r"coarse batches \(scale 0.5\), and the closure takes no scale .*: write"):
        gp.step(lambda: loss_at(model, x, y, 1))
    with pytest.raises(ValueError, match="takes no scale"):
        gp.step(lambda x=x, y=y: loss_at(model, x, y, 1))
    with pytest.raises(ValueError, match=r"takes no scale \(an argument without a default\)"):
        gp.step(lambda scale=1.0: loss_at(model, x, y, scale))
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert gp.step_index == 0


def test_a_closure_with_a_scale_serves_every_schedule() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    scales: list[float] = []
    for x, y in data(2):
        gp.step(lambda scale, x=x, y=y: (scales.append(scale), loss_at(model, x, y, scale))[1])
    assert scales == [1.0, 1.0]


def test_a_batch_whose_scale_nobody_read_is_refused() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0, source="coarse"), None)
    x, y = data(1)[0]
    message = r"step 0 is a coarse batch \(scale 0.5\), and batch.scale was not read"
    with pytest.raises(RuntimeError, match=message), gp.batch() as batch:
        batch.backward(loss_at(model, x, y, 1))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.progressive(0), "steps: must be at least 1"),
        (lambda: schedules.progressive(10, ()), "levels: needs at least one"),
        (lambda: schedules.progressive(10, ((0.5, 0.5), (1.0, 0.4))), "levels: the shares add up to 0.9"),
        (lambda: schedules.progressive(10, ((0.5, 0.0), (1.0, 1.0))), "levels: .*share of the steps must be positive"),
        (lambda: schedules.progressive(10, ((1.5, 1.0),)), "scale = 1.5: .*above 0 and at most 1"),
        (lambda: schedules.progressive(10, ((float("nan"), 0.5), (1.0, 0.5))), "scale = nan: .*at most 1"),
        (lambda: schedules.progressive(10, ((0.5, float("nan")), (1.0, 0.5))), "levels: .*share of the steps must be"),
        (lambda: schedules.progressive(10, ((0.5, "a"), (1.0, 0.5))), "levels: .*share of the steps must be"),
        (lambda: schedules.progressive(10, ((1.0, 0.4), (0.5, 0.6))), "levels: end with scale 0.5: .* with full size"),
        (lambda: schedules.progressive(10, ((0.5, 1.0),)), "levels: end with scale 0.5: .* with full size"),
        (lambda: schedules.progressive(10, (0.5, 1.0)), "levels: 0.5 is no .scale, share. pair"),
        (lambda: schedules.progressive(10.5), "steps: must be a whole number, not 10.5"),
        (lambda: schedules.ladder(5, source="coarse", scale=0), "scale = 0: .*above 0 and at most 1"),
        (lambda: Plan(Phase.BP, "backprop", scale=2.0), "scale = 2.0: .*above 0 and at most 1"),
    ],
)
def test_what_is_no_schedule_is_refused(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_levels_end_where_their_shares_say() -> None:
    schedule = schedules.progressive(10, ((0.5, 0.45), (0.75, 0.25), (1.0, 0.3)))
    assert [schedule(step).scale for step in range(12)] == [0.5] * 4 + [0.75] * 3 + [1.0] * 5
    assert schedule(0).note == "x0.5"


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_shortest_run_ends_at_full_size(steps: int) -> None:
    schedule = schedules.progressive(steps, ((0.5, 0.6), (0.75, 0.3), (1.0, 0.1)))
    assert schedule(steps - 1).scale == 1.0
    assert sum(share for _, share in schedule.plan_shares()) == pytest.approx(1)


def grown(gp: AdaGP, model: nn.Module, part: list[tuple[Tensor, Tensor]]) -> list[float]:
    scales = []
    for x, y in part:
        scales.append(gp.next_plan().scale)
        gp.step(lambda scale, x=x, y=y: loss_at(model, x, y, scale))
    return scales


def growing() -> schedules.Growing:
    return schedules.growing(40, (0.5, 0.75, 1.0), probe_every=3, patience=2, last_share=0.25)


def test_a_growing_schedule_moves_on_by_what_it_measures() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), growing(), None)
    scales = grown(gp, model, data(40))
    assert scales[:3] == [0.5, 0.5, 1.0]
    assert scales[30:] == [1.0] * 10
    assert isinstance(gp.schedule, schedules.Growing)
    assert gp.schedule.explain(), "it moved at least once, and says why"
    assert "cosine" in gp.schedule.explain()[0]


@pytest.mark.parametrize(("dimensions", "moves"), [(2, False), (1, True)])
def test_the_work_of_a_scale_depends_on_what_shrinks(dimensions: int, moves: bool) -> None:
    """Cosine 0.6 at half size: 1.44 times the progress of full size per unit of work in a plane, 0.72 in a line."""
    schedule = schedules.growing(100, (0.5, 1.0), probe_every=2, patience=1, dimensions=dimensions)
    schedule.observe_probe(1, schedules.Probe(cosines={0.5: 0.6}, loss=1.0))
    assert bool(schedule.explain()) is moves
    with pytest.raises(ValueError, match="dimensions: must be at least 1"):
        schedules.growing(100, dimensions=0)


def test_a_probe_leaves_training_as_it_is() -> None:
    """The same batches at the scales it chose, in a plain loop: bit for bit the same weights and statistics."""
    model, plain = network(), network()
    gp = AdaGP(model, sgd(model), growing(), None)
    scales = grown(gp, model, data(40))
    train_plainly(plain, sgd(plain), scales)
    assert equal_parameters(model, plain)


def test_a_probe_compares_the_gradients_of_the_same_samples() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), growing(), None)
    probes: list[Any] = []
    gp.schedule.observe_probe = lambda step, probe: probes.append(probe)  # type: ignore[method-assign]
    grown(gp, model, data(2))
    x, y = data(3)[2]
    grads = []
    for scale in (1.0, 0.5, 0.75):
        twin = copy.deepcopy(model)
        loss_at(twin, x, y, scale).backward()
        grads.append(torch.cat([part.grad.flatten() for part in twin.parameters() if part.grad is not None]))
    loss = loss_at(copy.deepcopy(model), x, y, 1.0).item()
    grown(gp, model, data(3)[2:])
    (probe,) = probes
    assert probe.loss == pytest.approx(loss)
    for scale, grad in ((0.5, grads[1]), (0.75, grads[2])):
        wanted = float(nn.functional.cosine_similarity(grads[0], grad, dim=0))
        assert probe.cosines[scale] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("cut", [5, 9, 20])
def test_a_growing_schedule_resumes(cut: int) -> None:
    whole, resumed = network(), network()
    gp = AdaGP(whole, sgd(whole), growing(), None)
    first = grown(gp, whole, data(40)[:cut])
    saved = copy.deepcopy({"model": whole.state_dict(), "optimizer": gp.optimizer.state_dict(), "gp": gp.state_dict()})
    rest = grown(gp, whole, data(40)[cut:])
    second = AdaGP(resumed, sgd(resumed), growing(), None)
    resumed.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["gp"])
    assert grown(second, resumed, data(40)[cut:]) == rest
    assert len(first) == cut
    assert equal_parameters(whole, resumed)


def test_growing_moves_on_when_larger_samples_make_more_progress() -> None:
    schedule = schedules.growing(1000, (0.5, 1.0), probe_every=2, patience=2)
    for step, cosine in ((1, 0.9), (3, 0.9), (5, 0.1), (7, 0.1)):
        assert schedule(step).scale == 1.0
        assert schedule(step + 1).scale == 0.5
        schedule.observe_probe(step, schedules.Probe(2.0 - step / 10, {0.5: cosine}))
    assert schedule(8).scale == 1.0
    assert "larger samples make" in schedule.explain()[0]


def test_growing_moves_on_when_the_loss_falls_no_longer() -> None:
    schedule = schedules.growing(1000, (0.5, 1.0), probe_every=2, patience=2)
    for step in (1, 3, 5, 7):
        assert schedule(step + 1).scale == 0.5
        schedule.observe_probe(step, schedules.Probe(2.0, {0.5: 0.9}))
    assert schedule(8).scale == 1.0
    assert "falls no longer" in schedule.explain()[0]


@pytest.mark.parametrize("bad", [(float("inf"), 0.5), (2.0, float("nan"))], ids=["loss", "cosine"])
def test_a_probe_that_is_not_finite_is_forgotten(bad: tuple[float, float]) -> None:
    """A GradScaler's first batches overflow: one infinity would stay in the running figures for good."""
    schedule = schedules.growing(1000, (0.5, 1.0), probe_every=2, patience=2)
    probes = [(2.0, 0.9), bad, (1.9, 0.1), (1.8, 0.1)]
    for step, (loss, cosine) in enumerate(probes):
        schedule.observe_probe(2 * step + 1, schedules.Probe(loss, {0.5: cosine}))
    assert schedule(10).scale == 1.0
    assert "nan" not in schedule.explain()[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: must be"),
        ({"probe_every": 2.5}, "probe_every: must be a whole number, not 2.5"),
        ({"patience": 1.5}, "patience: must be a whole number, not 1.5"),
        ({"scales": (1.0,)}, "scales: needs at least two"),
        ({"scales": (0.75, 0.5, 1.0)}, "scales: must grow"),
        ({"scales": (0.5, 0.75)}, "scales: must grow, and end with 1"),
        ({"scales": (0.0, 1.0)}, "scale = 0.0"),
        ({"probe_every": 1}, "probe_every: must be at least 2"),
        ({"patience": 0}, "patience"),
        ({"last_share": 0}, "last_share"),
    ],
)
def test_what_is_no_growing_schedule_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schedules.growing(**{"steps": 100, **options})


def test_probes_need_step() -> None:
    model = network()
    gp = AdaGP(model, sgd(model), growing(), None)
    with pytest.raises(ValueError, match=r"Growing evaluates some batches at several scales, which only"):
        gp.batch()
    with pytest.raises(ValueError, match="LBFGS evaluates the loss several times"):
        AdaGP(model, torch.optim.LBFGS(model.parameters()), growing(), None)
