"""Invariant 6 with real processes: all ranks hold identical parameters after any mix of phases."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, NonFiniteError, Phase, Plan, coarse, schedules
from adagp.local import cross_entropy
from adagp.predictors import FeatureSpec, Pooling
from adagp.sources import Local, Sampled
from benchmarks.distributed import own_messages
from tests.nets import batches, build, loss_of, sgd
from tests.ranks import logged, on_ranks
from tests.watcher import Watcher


def train(rank: int, count: int, predictor: str, immediate: bool, adaptive: bool) -> dict[str, Any]:
    model = DistributedDataParallel(build())
    schedule = schedules.adaptive(3, 1, patience=1) if adaptive else schedules.ladder(3, 1, 1)
    gp = AdaGP(model, sgd(model), schedule, predictor, immediate=immediate)
    phases = []
    for x, y in batches(14, seed=rank):
        phases.append(gp.next_plan().phase.value)
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    return {
        "parameters": [p.detach().numpy() for p in model.parameters()],
        "phases": phases,
        "layers": sorted(gp.quality()),
        "counts": gp.counts(),
    }


@pytest.mark.parametrize(
    ("predictor", "immediate", "adaptive"),
    [("with-network", False, False), ("paper", True, False), ("with-network", False, True), ("trusted", True, False)],
)
def test_ranks_stay_identical_through_a_mix_of_phases(predictor: str, immediate: bool, adaptive: bool) -> None:
    one, two = on_ranks(2, train, predictor, immediate, adaptive)
    assert one["phases"] == two["phases"]
    assert {"WARMUP", "GP", "BP"} == set(one["phases"])
    if not adaptive:
        assert one["counts"]["predicted"] > 0
    assert one["layers"] == ["0", "3", "7", "9"]
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def accumulate(rank: int, count: int, over_the_loop: bool) -> dict[str, Any]:
    """Micro-batches without synchronisation but for the last, given in one block or one by one."""
    model = DistributedDataParallel(build())
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1), "paper")
    for x, y in batches(8, seed=rank):
        parts = [(x[:5], y[:5]), (x[5:], y[5:])]
        if over_the_loop:
            with model.no_sync():
                gp.step(lambda part=parts[0]: loss_of(model, *part) / 2, last=False)
            gp.step(lambda part=parts[1]: loss_of(model, *part) / 2)
            continue
        with gp.batch() as batch:
            with model.no_sync():
                batch.backward(loss_of(model, *parts[0]) / 2)
            batch.backward(loss_of(model, *parts[1]) / 2)
        batch.step()
        gp.optimizer.zero_grad()
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "counts": gp.counts()}


def test_ranks_accumulate_over_a_loop_as_in_one_block() -> None:
    results = [result for over_the_loop in (False, True) for result in on_ranks(2, accumulate, over_the_loop)]
    assert results[0]["counts"]["predicted"] > 0
    for result in results[1:]:
        assert result["counts"] == results[0]["counts"]
        assert all((a == b).all() for a, b in zip(result["parameters"], results[0]["parameters"], strict=True))


NEEDS = FeatureSpec(output=Pooling(2), input=Pooling(2), loss_grad=True, weighted_input=True)


def watch(rank: int, count: int, phase: str) -> list[dict[str, list[Any]]]:
    """What a predictor is shown on this rank, whose share of the batch is its own."""
    model = DistributedDataParallel(build())
    return watched(model, phase, *(part.chunk(count)[rank] for part in batches(1)[0]))


def watched(model: nn.Module, phase: str, x: Tensor, y: Tensor) -> list[dict[str, list[Any]]]:
    model.eval()  # batch norm would see each share alone
    watcher = Watcher(NEEDS)
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1) if phase == "GP" else schedules.always_backprop(), watcher)
    gp.step(lambda: loss_of(model, x, y))
    return [{name: [part.numpy() for part in features] for name, features in seen.items()} for seen in watcher.seen]


@pytest.mark.parametrize("phase", ["GP", "BP"])
def test_all_ranks_see_the_features_of_the_whole_batch(phase: str) -> None:
    one, two = on_ranks(2, watch, phase)
    (whole,) = watched(build(), phase, *batches(1)[0])
    for seen in (one[0], two[0]):
        assert seen.keys() == whole.keys()
        for name, features in seen.items():
            for mine, wanted in zip(features, whole[name], strict=True):
                assert abs(mine - wanted).max() < 1e-6, name
    assert all((a == b).all() for name in one[0] for a, b in zip(one[0][name], two[0][name], strict=True))


def one_is_compiled(rank: int, count: int, immediate: bool) -> dict[str, Any]:
    """Compiled forwards record every layer, whichever the predictor asks for; the messages must stay the same."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), immediate=immediate)
    gp._current.is_compiled = rank == 0
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(rank))
    for _ in range(6):
        gp.step(lambda: model(x).square().mean())
    return {"parameters": [p.detach().numpy() for p in model.parameters()]}


@pytest.mark.parametrize("immediate", [False, True])
def test_a_rank_that_is_compiled_stays_in_step_with_one_that_is_not(immediate: bool) -> None:
    one, two = on_ranks(2, one_is_compiled, immediate)
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def not_finite(rank: int, count: int, phase: str) -> dict[str, Any]:
    """One rank's loss is NaN, in a GP batch of a method without a predictor or in a BP batch."""
    model = DistributedDataParallel(build())
    schedule = schedules.fixed(1, 0, source="zero") if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, None)
    x, y = batches(1, seed=rank)[0]
    factors = iter([float("nan") if rank else 1.0, 1.0, 1.0])
    before = [p.detach().clone() for p in model.parameters()]
    message = ""
    try:
        gp.step(lambda: loss_of(model, x, y) * next(factors))
    except NonFiniteError as error:
        message = str(error)
    moved = any(not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))
    left = any(p.grad is not None for p in model.parameters())
    return {"message": message, "counts": gp.counts(), "moved": moved, "left": left}


def test_ranks_agree_on_what_to_do_about_a_nan_on_one_of_them() -> None:
    for result in on_ranks(2, not_finite, "GP"):
        assert not result["message"]
        assert result["counts"] == {"fallback": 1, "backprop": 4}
    one, two = on_ranks(2, not_finite, "BP")
    assert one == two
    assert "the loss is not finite at step 0 (BP)" in one["message"]
    assert "the output of every covered layer is finite" in one["message"]
    assert not one["moved"]
    assert not one["left"]
    assert one["counts"] == {}


MIXED = [
    Plan(Phase.BP, "backprop", {"0": "zero"}),
    Plan(Phase.BP, "backprop", {"3": "topk", "7": "sampled"}),
    Plan(Phase.BP, "backprop", {"0": "predicted", "3": "predicted"}),
    Plan(Phase.GP, "predicted"),
    Plan(Phase.BP, "backprop", {"7": "random", "9": "skip"}),
]


def mix(rank: int, count: int, unused: bool) -> Any:
    model = DistributedDataParallel(build(), find_unused_parameters=unused)
    names = ("backprop", "predicted", "zero", "topk", "sampled", "random", "skip")
    gp = AdaGP(model, sgd(model), schedules.from_function(lambda step: MIXED[step % 5], names), "paper")
    try:
        for x, y in batches(11, seed=rank):
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
    except ValueError as error:
        return str(error)
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "counts": gp.counts()}


def test_a_plan_that_mixes_sources_needs_a_reducer_that_expects_it() -> None:
    for message in on_ranks(2, mix, False):
        assert "find_unused_parameters=True" in message
    one, two = on_ranks(2, mix, True)
    assert one["counts"] == two["counts"]
    assert {"backprop", "predicted", "zero", "topk", "sampled", "random", "skip"} <= one["counts"].keys()
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def mixed_gradients(rank: int, count: int) -> Any:
    """The gradients of one mixed batch, and the mean of what each rank's data gives in one process."""
    model = DistributedDataParallel(build(), find_unused_parameters=True)
    plan = schedules.from_function(lambda step: MIXED[1], ("backprop", "topk", "sampled"))
    parts = [batches(1, seed=other)[0] for other in range(count)]
    differences = []
    for keep in ("input", "rows"):
        expected = []
        for x, y in parts:
            alone = build()
            with AdaGP(alone, sgd(alone), plan, None, sources={"sampled": Sampled(keep=keep)}).batch() as batch:
                batch.backward(loss_of(alone, x, y))
            expected.append([p.grad for p in alone.parameters()])
        gp = AdaGP(model, sgd(model), plan, None, sources={"sampled": Sampled(keep=keep)})
        with gp.batch() as batch:
            batch.backward(loss_of(model, *parts[rank]))
        differences += [
            float((p.grad - torch.stack(grads).mean(0)).abs().max())
            for p, grads in zip(model.parameters(), zip(*expected, strict=True), strict=True)
        ]
        gp.optimizer.zero_grad()
        gp.remove()
    return differences


def test_a_mixed_batch_averages_over_ranks_what_backprop_topk_and_sampled_give() -> None:
    for differences in on_ranks(2, mixed_gradients):
        assert len(differences) == 2 * 9
        assert max(differences) < 1e-6


def save(rank: int, count: int) -> dict[str, Any]:
    model = DistributedDataParallel(build(), find_unused_parameters=True)
    schedule = schedules.economical(["0", "3", "7"], measured_batches=2, first=0, every=5)
    gp = AdaGP(model, sgd(model), schedule, None)
    for x, y in batches(7, seed=rank):
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "state": schedule.state_dict()}


def test_ranks_that_measure_for_themselves_decide_alike() -> None:
    one, two = on_ranks(2, save)
    assert one["state"] == two["state"]
    assert len(one["state"]["log"]) == 6
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def send(rank: int, count: int) -> dict[str, list[int]]:
    """The bytes that `adagp` adds to the messages of each batch."""
    model = DistributedDataParallel(build())
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
    sent: dict[str, list[int]] = {}
    for x, y in batches(9, seed=rank):
        phase = gp.next_plan().phase.value
        with own_messages() as messages:
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
        sent.setdefault(phase, []).append(sum(messages))
    return sent


def test_a_batch_adds_pooled_outputs_and_flags_to_the_messages() -> None:
    outputs, flags = 16 * (4 + 4 + 8 + 3), 3 + 2 * 4  # 16 numbers per output channel; three flags, two for each layer
    for sent in on_ranks(2, send):
        assert set(sent["GP"]) == set(sent["BP"]) == {4 * (outputs + flags)}


SOURCES = ("backprop", "predicted", "topk", "random", "last", "zero", "skip")
COUNTED = {
    "BP": (Plan(Phase.BP, "backprop"), "with-network"),
    "topk": (Plan(Phase.BP, "backprop", {"3": "topk", "9": "topk"}), "with-network"),
    "mixed": (Plan(Phase.BP, "backprop", {"0": "predicted", "3": "random"}), "with-network"),
    "GP": (Plan(Phase.GP, "predicted"), "paper"),
    "GP, means": (Plan(Phase.GP, "predicted"), "trusted"),
    "GP, random": (Plan(Phase.GP, "random"), None),
    "GP, last": (Plan(Phase.GP, "last"), None),
}


def messages_of(rank: int, count: int, plan: str, skip_forward: bool) -> dict[str, set[int]]:
    """How many messages a batch sends, DistributedDataParallel's own among them, and how many a plain one does."""
    model = DistributedDataParallel(build(), find_unused_parameters=True, broadcast_buffers=False)
    wanted, predictor = COUNTED[plan]
    schedule = schedules.from_function(lambda step: wanted, SOURCES)
    gp = AdaGP(model, sgd(model), schedule, predictor, skip_forward=skip_forward)
    backend = model.process_group._get_backend(torch.device("cpu"))
    found: dict[str, set[int]] = {"plain": set(), "adagp": set()}
    for x, y in batches(6, seed=rank):
        start = backend._get_sequence_number_for_group()
        loss_of(model, x, y).backward()
        gp.optimizer.step()
        gp.optimizer.zero_grad()
        middle = backend._get_sequence_number_for_group()
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
        found["plain"].add(middle - start)
        found["adagp"].add(backend._get_sequence_number_for_group() - middle)
    return found


@pytest.mark.parametrize("plan", COUNTED)
def test_a_batch_sends_at_most_one_message_more_than_a_plain_one_and_gp_one_in_all(plan: str) -> None:
    for found in on_ranks(2, messages_of, plan, False):
        (plain,) = found["plain"]
        assert found["adagp"] == {1 if plan.startswith("GP") else plain + 1}


def test_gp_sends_nothing_where_nothing_is_looked_at() -> None:
    for found in on_ranks(2, messages_of, "GP, last", True):
        assert found["adagp"] == {0}


class Narrow(nn.Module):
    """Gives some of the network's outputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.network, self.width = build(), width

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[:, : self.width]  # type: ignore[no-any-return]


def widths(rank: int, count: int, given: list[list[int]]) -> tuple[list[int], str]:
    """The number of messages of each batch, whose outputs have a width of their own on each rank, and the error."""
    own = Narrow(3)
    model = DistributedDataParallel(own, broadcast_buffers=False)
    gp = AdaGP(model, sgd(model), schedules.from_function(lambda step: Plan(Phase.GP, "predicted")), Watcher(NEEDS))
    sent = []
    try:
        for (x, _), width in zip(batches(len(given), seed=rank), given, strict=True):
            own.width = width[rank]
            with own_messages() as messages:
                gp.step(lambda x=x: model(x).square().mean())
            sent.append(len(messages))
    except RuntimeError as error:
        return sent, str(error)
    return sent, ""


def test_only_a_shape_that_is_new_takes_more_messages() -> None:
    for sent, error in on_ranks(2, widths, [[3, 3], [3, 3], [2, 2], [2, 2], [3, 3]]):
        assert (sent, error) == ([3, 1, 3, 1, 3], "")


def test_ranks_whose_outputs_differ_in_size_are_refused_on_all() -> None:
    for sent, error in on_ranks(2, widths, [[3, 3], [3, 2]]):
        assert sent == [3]
        assert "the model: its loss_grad has 2 entries on one rank and 3 on another" in error


def draw(rank: int, count: int) -> dict[str, Any]:
    """Ranks with batches of unlike size; the standard deviation must still be the same on both."""
    model = DistributedDataParallel(build())
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1, source="random"), None)
    for x, y in batches(4):
        part = slice(6) if rank else slice(2)
        gp.step(lambda x=x[part], y=y[part]: loss_of(model, x, y))
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "counts": gp.counts()}


def overflow(rank: int, count: int) -> dict[str, Any]:
    """What topk makes of one rank's error is infinite: the scaler must skip the step on every rank."""
    model = DistributedDataParallel(build(), find_unused_parameters=True)
    scaler = torch.amp.grad_scaler.GradScaler("cpu", init_scale=4.0)
    gp = AdaGP(model, sgd(model), schedules.from_function(lambda step: MIXED[1], ("backprop", "topk", "sampled")), None)
    for step, (x, y) in enumerate(batches(3, seed=rank)):
        with gp.batch(scaler=scaler) as batch:
            batch.backward(loss_of(model, x, y))
            weight = gp._setup.by_name["3"].weight
            assert weight.grad is not None
            if rank == 1 and step == 1:
                weight.grad.fill_(float("inf"))
        batch.step()
        gp.optimizer.zero_grad()
    return {"parameters": [p.detach().numpy() for p in model.parameters()], "scale": scaler.get_scale()}


def test_a_scaler_skips_on_all_ranks_what_overflows_on_one() -> None:
    one, two = on_ranks(2, overflow)
    assert one["scale"] == two["scale"] == 2.0
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def wander(rank: int, count: int) -> str:
    """One rank leaves a layer out."""
    network = build()
    model = DistributedDataParallel(network, find_unused_parameters=True)
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
    x, y = batches(1, seed=rank)[0]
    if rank == 1:
        network[3].forward = lambda hidden: nn.functional.pad(hidden, (0, 0, 0, 0)) + 0 * network[3].weight.sum()
        for hook in [gp._hooks[1]]:
            hook.remove()
    try:
        gp.step(lambda: loss_of(model, x, y))
    except RuntimeError as error:
        return str(error)
    return ""


def test_a_layer_that_runs_on_some_ranks_only_is_refused_on_all() -> None:
    assert all("layer '3' ran on 1 of 2 ranks" in message for message in on_ranks(2, wander))


def test_random_gradients_are_the_same_on_all_ranks() -> None:
    one, two = on_ranks(2, draw)
    assert one["counts"] == two["counts"] == {"random": 8, "backprop": 8}
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def warn(rank: int, count: int) -> list[str]:
    """What is logged in the first two batches of a model that nobody wrapped."""
    model = build()
    with logged() as lines:
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), None)
        for x, y in batches(2, seed=rank):
            gp.step(lambda x=x, y=y: loss_of(model, x, y))
    return lines


def test_ranks_whose_model_nobody_wrapped_are_warned_once() -> None:
    for lines in on_ranks(2, warn):
        assert len(lines) == 1
        assert "is not DistributedDataParallel" in lines[0]
        assert "wrap the model first" in lines[0]


def train_coarse(rank: int, count: int, name: str) -> dict[str, Any]:
    """Coarse batches on a rank with data of its own."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    )
    schedule = (
        schedules.growing(24, (0.5, 1.0), probe_every=3, patience=2)
        if name == "growing"
        else schedules.fixed(1, 1, source="coarse")
    )
    gp = AdaGP(model, sgd(model), schedule, None)
    generator = torch.Generator().manual_seed(rank)
    scales = []
    for _ in range(24):
        x, y = torch.randn(8, 2, 8, 8, generator=generator), torch.randint(3, (8,), generator=generator)
        scales.append(gp.next_plan().scale)
        gp.step(lambda scale, x=x, y=y: nn.functional.cross_entropy(model(coarse.images(x, scale)), y))
    parameters = [p.detach().numpy() for p in model.parameters()]
    return {"parameters": parameters, "scales": scales, "reasons": schedule.explain()}


@pytest.mark.parametrize("name", ["growing", "coarse"])
def test_ranks_stay_identical_through_coarse_batches(name: str) -> None:
    one, two = on_ranks(2, train_coarse, name)
    assert one["scales"] == two["scales"]
    assert set(one["scales"]) == {0.5, 1.0}
    assert one["reasons"] == two["reasons"], "both decide by what both measured"
    for a, b in zip(one["parameters"], two["parameters"], strict=True):
        assert (a == b).all()


def train_locally(rank: int, count: int, accumulate: bool) -> dict[str, Any]:
    """Local losses on every rank's own samples; ranks average the gradients of parts and heads."""
    model = DistributedDataParallel(build())
    source = Local(("2", "5"), loss=lambda output, target: cross_entropy(output, target) / (2 if accumulate else 1))
    gp = AdaGP(model, sgd(model), schedules.always_local(), None, sources={"local": source})
    grads: list[Any] = []
    for x, y in batches(4, seed=rank):
        with gp.batch(target=y) as batch:
            if accumulate:
                for part in (slice(0, 4), slice(4, 8)):
                    batch.expect_local(y[part])
                    batch.backward(loss_of(model, x[part], y[part]) / 2)
            else:
                batch.backward(loss_of(model, x, y))
        grads.append([p.grad.clone().numpy() for p in model.parameters() if p.grad is not None])
        batch.step()
        gp.optimizer.zero_grad()
    model(x)  # buffers are those of rank 0 from here on
    return {
        "grads": grads,
        "parameters": [p.detach().numpy() for p in model.parameters()],
        "heads": [p.detach().numpy() for p in source.parameters()],
        "buffers": [b.numpy() for b in model.module.buffers()],
        "syncs": model.require_backward_grad_sync,
    }


@pytest.mark.parametrize("accumulate", [False, True])
def test_ranks_stay_identical_with_local_losses(accumulate: bool) -> None:
    one, two = on_ranks(2, train_locally, accumulate)
    assert one["syncs"] is True
    for part in ("parameters", "heads"):
        assert one[part]
        for a, b in zip(one[part], two[part], strict=True):
            assert (a == b).all()
    # The first gradient is the mean of those that each rank's samples give alone.
    alone = [_local_alone(rank, accumulate) for rank in range(2)]
    for found, *each in zip(one["grads"][0], *alone, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), torch.stack(each).mean(0))


def _local_alone(rank: int, accumulate: bool) -> list[Tensor]:
    model = build()
    source = Local(("2", "5"), loss=lambda output, target: cross_entropy(output, target) / (2 if accumulate else 1))
    gp = AdaGP(model, sgd(model), schedules.always_local(), None, sources={"local": source})
    x, y = batches(1, seed=rank)[0]
    with gp.batch(target=y) as batch:
        for part in (slice(0, 4), slice(4, 8)) if accumulate else (slice(0, 8),):
            batch.expect_local(y[part])
            batch.backward(loss_of(model, x[part], y[part]) / (2 if accumulate else 1))
    return [p.grad for p in model.parameters() if p.grad is not None]


def not_finite_locally(rank: int, count: int) -> dict[str, Any]:
    """A local loss is NaN on one rank, the loss itself is not."""
    model = DistributedDataParallel(build())
    factor = float("nan") if rank else 1.0
    source = Local(("2", "5"), loss=lambda output, target: cross_entropy(output, target) * factor)
    gp = AdaGP(model, sgd(model), schedules.always_local(), None, sources={"local": source})
    x, y = batches(1, seed=rank)[0]
    before = [p.detach().clone() for p in (*model.parameters(), *source.parameters())]
    message = ""
    try:
        gp.step(lambda: loss_of(model, x, y), target=y)
    except NonFiniteError as error:
        message = str(error)
    after = [*model.parameters(), *source.parameters()][: len(before)]
    return {"message": message, "moved": any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))}


def test_a_local_loss_that_is_not_finite_on_one_rank_stops_all() -> None:
    for result in on_ranks(2, not_finite_locally):
        assert "the loss is not finite at step 0" in result["message"]
        assert not result["moved"]
