"""FSDP2 with real processes: rows are spread over ranks, and the weights are those of DistributedDataParallel."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from adagp import AdaGP, NonFiniteError, Phase, Plan, predictors, schedules
from adagp.distributed.ranks import Ranks
from adagp.layers.sharding import is_distributed
from tests.nets import batches, build, loss_of, sgd
from tests.ranks import on_ranks
from tests.watcher import Watcher

MIXED = [
    Plan(Phase.BP, "backprop"),
    Plan(Phase.BP, "backprop"),
    Plan(Phase.GP, "predicted"),
    Plan(Phase.BP, "backprop", {"0": "predicted", "3": "zero"}),
    Plan(Phase.GP, "mean"),
    Plan(Phase.BP, "backprop", {"7": "random", "9": "skip"}),
    Plan(Phase.GP, "last"),
    Plan(Phase.WARMUP, "backprop"),
]
NAMES = ("backprop", "predicted", "zero", "mean", "random", "skip", "last")


def mixed() -> schedules.Schedule:
    return schedules.from_function(lambda step: MIXED[step % len(MIXED)], NAMES)


def by_module(model: nn.Module) -> None:
    """Every layer by itself, and the rest together."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fully_shard(module)
    fully_shard(model)


def whole(model: nn.Module) -> dict[str, Any]:
    """All weights, gathered."""
    return {
        name: (part.full_tensor() if is_distributed(part) else part).detach().numpy()
        for name, part in model.named_parameters()
    }


def train(gp: AdaGP, model: nn.Module, steps: int, rank: int, start: int = 0) -> None:
    for x, y in batches(start + steps, seed=rank)[start:]:
        gp.step(lambda x=x, y=y: loss_of(model, x, y))


def wrapped(network: nn.Module, rank: int, predictor: str, steps: int) -> AdaGP:
    """Train under DistributedDataParallel."""
    model = DistributedDataParallel(network, find_unused_parameters=True)
    gp = AdaGP(model, sgd(model), mixed(), predictor)
    train(gp, model, steps, rank)
    return gp


def difference(one: nn.Module, two: nn.Module) -> float:
    """The largest between two weights."""
    expected = whole(two)
    return float(max(abs(mine - expected[name]).max() for name, mine in whole(one).items()))


def smooth() -> nn.Sequential:
    """A network without a kink, where a rounding error stays one: it can flip no ReLU and no maximum."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.Tanh(),
        nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 9, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def both(rank: int, count: int, predictor: str, steps: int, units: str, is_smooth: bool) -> dict[str, Any]:
    """How far the weights of both ways differ, how far rounding alone moves them, and what each counted."""
    make = smooth if is_smooth else build
    network, rounded, model = make(), make(), make()
    exact = wrapped(network, rank, predictor, steps)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + 2**-23)
    wrapped(rounded, rank, predictor, steps)
    by_module(model) if units == "modules" else fully_shard(model, reshard_after_forward=units == "reshard")
    gp = AdaGP(model, sgd(model), mixed(), predictor)
    train(gp, model, steps, rank)
    return {
        "difference": difference(model, network),
        "rounding": difference(rounded, network),
        "moved": difference(network, make()),
        "counts": [exact.counts(), gp.counts()],
        "quality": [{name: (q.cosine, q.trust) for name, q in one.quality().items()} for one in (exact, gp)],
    }


@pytest.mark.parametrize(
    ("ranks", "predictor", "steps", "units", "is_smooth"),
    [
        (2, "with-network", 32, "modules", True),
        (2, "trusted", 32, "modules", True),
        (2, "paper", 32, "whole", True),
        (2, "with-network", 24, "reshard", False),
        pytest.param(4, "with-network", 32, "reshard", True, marks=pytest.mark.slow),
        pytest.param(2, "with-network", 300, "modules", True, marks=pytest.mark.slow),
        pytest.param(4, "with-network", 300, "modules", True, marks=pytest.mark.slow),
        pytest.param(2, "with-network", 300, "modules", False, marks=pytest.mark.slow),
        pytest.param(4, "with-network", 300, "modules", False, marks=pytest.mark.slow),
        pytest.param(4, "paper", 300, "reshard", False, marks=pytest.mark.slow),
    ],
)
def test_sharded_training_gives_the_weights_of_whole_ones(
    ranks: int, predictor: str, steps: int, units: str, is_smooth: bool
) -> None:
    for found in on_ranks(ranks, both, predictor, steps, units, is_smooth):
        assert found["moved"] > 0.1
        exact, sharded = found["counts"]
        assert exact == sharded
        assert {"predicted", "mean", "last", "random", "zero", "skip", "backprop"} <= sharded.keys()
        assert found["quality"][0].keys() == found["quality"][1].keys()
        if (
            steps > 100 and not is_smooth
        ):  # training amplifies every difference: here is that of every weight's last bit
            assert found["difference"] < found["rounding"]
            continue
        # Rows in a wrong place would make it 1e-2. Rounding that flips a ReLU makes it 1e-5; 300 batches amplify it.
        assert found["difference"] < (1e-5 if is_smooth and steps < 100 else 1e-3) * found["moved"]
        for exact, sharded in zip(*(one.values() for one in found["quality"]), strict=True):
            assert sharded == pytest.approx(exact, abs=1e-4 if is_smooth and steps < 100 else 1e-2)


class Tied(nn.Module):
    """An embedding whose weight is the head's, a frozen layer, and one whose rows are not its first dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 6)
        self.frozen = nn.Linear(6, 6)
        self.wide = nn.Linear(6, 9)
        self.up = nn.ConvTranspose1d(9, 6, 1)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.wide(self.frozen(self.embedding(tokens)).relu()).relu()
        return self.head(self.up(hidden.transpose(1, 2)).transpose(1, 2))  # type: ignore[no-any-return]


def shard_tied(network: Tied, how: str, count: int, **options: Any) -> None:
    """One unit, because its first and last layer share a weight, under the policy that `how` names."""
    if how == "two axes":
        options["mesh"] = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard"))
    elif how == "bfloat16":
        options["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    elif how == "offload":
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    fully_shard(network, **options)


def tokens_of(step: int) -> Tensor:
    """A batch of eight sentences."""
    return torch.randint(0, 7, (8, 5), generator=torch.Generator().manual_seed(step))


def loss_of_tokens(model: nn.Module, tokens: Tensor) -> Tensor:
    """That of naming the tokens again."""
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def share_of(rank: int, count: int, step: int) -> tuple[Tensor, Tensor]:
    """A rank's part of a batch that does not depend on the number of ranks."""
    x, y = batches(step + 1)[step]
    return x.chunk(count)[rank], y.chunk(count)[rank]


def run(rank: int, count: int, how: str, folder: str, first: int, last: int) -> Any:
    """Resume where `first` is not 0, train until `last`, and save; returns the weights, and what was counted."""
    torch.manual_seed(0)
    model: nn.Module = Tied() if how else build().eval()  # batch norm would see other parts with other ranks
    if isinstance(model, Tied):
        shard_tied(model, how, count)
    else:
        by_module(model)
    optimizer = sgd(model)
    gp = AdaGP(model, optimizer, schedules.fixed(2, 2) if how else mixed())
    weights, moments = get_state_dict(model, optimizer)
    if first:
        checkpoint.load({"model": weights, "optimizer": moments, "gp": gp}, checkpoint_id=f"{folder}/{first}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    for step in range(first, last):
        x, y = share_of(rank, count, step)
        tokens = tokens_of(step).chunk(count)[rank]
        gp.step(lambda x=x, y=y, tokens=tokens: loss_of_tokens(model, tokens) if how else loss_of(model, x, y))
    weights, moments = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": moments, "gp": gp}, checkpoint_id=f"{folder}/{last}")
    return {"weights": whole(model), "counts": gp.counts(), "step": gp.step_index, "quality": sorted(gp.quality())}


@pytest.mark.parametrize("how", ["", "plain", "offload", "bfloat16"])
def test_a_run_of_two_ranks_resumes_on_four_and_back(how: str, tmp_path: Any) -> None:
    """Of a network by layers, or of one with tied and frozen weights under a policy."""
    once = on_ranks(2, run, how, str(tmp_path / "once"), 0, 30)[0]
    folder = str(tmp_path / "parts")
    on_ranks(2, run, how, folder, 0, 11)
    on_ranks(4, run, how, folder, 11, 21)
    for found in on_ranks(2, run, how, folder, 21, 30):
        assert {key: found[key] for key in ("counts", "step", "quality")} == {
            key: once[key] for key in ("counts", "step", "quality")
        }
        assert found["counts"]["predicted"] > 0
        for name, mine in found["weights"].items():
            assert abs(mine - once["weights"][name]).max() < (0.01 if how == "bfloat16" else 1e-5), name


def by_hand(rank: int, count: int, is_whole: bool) -> dict[str, Any]:
    """A loop of its own: micro-batches, of which the last one synchronises, and clipping, under a prefix schedule."""
    network = build()
    model: nn.Module = DistributedDataParallel(network, find_unused_parameters=True) if is_whole else network
    if not is_whole:
        by_module(network)
    gp = AdaGP(model, sgd(model), schedules.prefix(network, "3", schedules.fixed(1, 1)))
    norms = []
    for x, y in batches(12, seed=rank):
        with gp.batch() as batch:
            for part in (slice(4), slice(4, 8)):
                if not is_whole:
                    network.set_requires_gradient_sync(part.start is not None)  # type: ignore[operator]
                batch.backward(loss_of(model, x[part], y[part]) / 2)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        norms.append(float(norm.full_tensor() if is_distributed(norm) else norm))
        batch.step()
        gp.optimizer.zero_grad()
    return {"weights": whole(network), "norms": norms, "counts": gp.counts()}


def test_a_loop_by_hand_with_micro_batches_and_clipping() -> None:
    exact, sharded = (on_ranks(2, by_hand, is_whole)[0] for is_whole in (True, False))
    assert sharded["counts"] == exact["counts"]
    assert exact["counts"]["predicted"] > 0
    assert sharded["norms"] == pytest.approx(exact["norms"], rel=1e-4)
    for name, mine in sharded["weights"].items():
        assert abs(mine - exact["weights"][name]).max() < 1e-5, name


COLLECTIVES = {  # newer torch has other names for two of them
    name: kind
    for name, kind in {
        "all_reduce": "reduce",
        "all_gather_into_tensor": "gather",
        "all_gather_single": "gather",
        "reduce_scatter_tensor": "scatter",
        "reduce_scatter_single": "scatter",
    }.items()
    if hasattr(distributed, name)
}


@contextmanager
def collectives() -> Iterator[Counter[str]]:
    """How often each collective is called."""
    found: Counter[str] = Counter()
    originals = {name: getattr(distributed, name) for name in COLLECTIVES}

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            found[COLLECTIVES[name]] += 1
            return originals[name](*args, **options)

        return call

    for name in COLLECTIVES:
        setattr(distributed, name, counted(name))
    try:
        yield found
    finally:
        for name, original in originals.items():
            setattr(distributed, name, original)


def count(rank: int, ranks: int, predictor: str) -> dict[str, list[dict[str, int]]]:
    """The collectives of each batch, by what it does."""
    model = build()
    by_module(model)
    schedule = schedules.from_function(lambda step: MIXED[step % 3 if step < 6 else 4], NAMES)
    gp = AdaGP(model, sgd(model), schedule, predictor)
    found: dict[str, list[dict[str, int]]] = {}
    for x, y in batches(8, seed=rank):
        plan = gp.next_plan()
        with collectives() as calls:
            loss = gp.step(lambda x=x, y=y: loss_of(model, x, y))
        assert loss is not None
        found.setdefault(f"{plan.phase.value} {plan.default}", []).append(dict(calls))
    with collectives() as calls:
        loss_of(model, *batches(1, seed=rank)[0]).backward()
    found["plain"] = [dict(calls)]
    return found


def test_gp_reduces_no_gradients_and_bp_sends_two_small_messages_more() -> None:
    for found in on_ranks(2, count, "with-network"):
        assert found["plain"] == [{"gather": 9, "scatter": 5}]
        for calls in found["BP backprop"]:
            assert calls == {"gather": 9, "scatter": 5, "reduce": 2}
        for calls in found["GP predicted"]:
            assert calls == {"gather": 5, "reduce": 2}
        for calls in found["GP mean"]:
            assert calls == {"gather": 5, "reduce": 1}


def test_means_alone_send_no_more_than_one_small_message_in_gp() -> None:
    for found in on_ranks(2, count, "trusted"):
        first, *others = found["BP backprop"]
        assert first == {"gather": 9, "scatter": 5, "reduce": 1}, "there is no mean yet"
        assert all(calls == {"gather": 9, "scatter": 5, "reduce": 2} for calls in others)
        assert all(calls == {"gather": 5, "reduce": 1} for calls in found["GP predicted"])


def refuse(rank: int, count: int, what: str) -> str:
    """What the error says."""
    torch.manual_seed(0)
    model = build()
    if what == "old":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        if what == "meshes":
            fully_shard(model[0], mesh=init_device_mesh("cpu", (1, count), mesh_dim_names=("replicate", "shard")))
        fully_shard(model)
    options: dict[str, Any] = {"immediate": True} if what == "immediate" else {}
    schedule = schedules.growing(24, (0.5, 1.0)) if what == "growing" else schedules.fixed(1, 1)
    if what in ("topk", "sampled", "local"):
        schedule = schedules.from_function(lambda step: Plan(Phase.BP, what), (what,))
    predictor = Watcher(predictors.FeatureSpec()) if what == "predictor" else "trusted"
    optimizer = torch.optim.LBFGS(model.parameters()) if what == "LBFGS" else sgd(model)
    scaler = torch.amp.grad_scaler.GradScaler("cpu") if what == "scaler" else None
    x, y = batches(1)[0]
    try:
        AdaGP(model, optimizer, schedule, predictor, **options).step(lambda: loss_of(model, x, y), scaler)
    except ValueError as error:
        return str(error)
    return ""


REASONS = {
    "old": "use torch.distributed.fsdp.fully_shard",
    "topk": "topk computes the gradient of a whole weight",
    "sampled": "sampled computes the gradient of a whole weight",
    "local": "source 'local' runs a backward for each part",
    "immediate": "immediate=True updates a layer while its whole weight is in use",
    "LBFGS": "LBFGS needs inner products of whole gradients",
    "growing": "use schedules.progressive",
    "predictor": "predictor Watcher has no share_rows",
    "scaler": "which needs no GradScaler",
    "meshes": "are spread over different meshes: give fully_shard one mesh",
}


def refuse_all(rank: int, count: int) -> dict[str, str]:
    return {what: refuse(rank, count, what) for what in REASONS}


def test_what_needs_whole_layers_is_refused_with_the_reason() -> None:
    for messages in on_ranks(2, refuse_all):
        for what, reason in REASONS.items():
            assert reason in messages[what], what


class Held(nn.Module):
    """A model of one parameter that is kept and spread as it is said to be."""

    def __init__(self, mesh: SimpleNamespace) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.weight.device_mesh, self.weight.to_local = mesh, lambda: torch.zeros(1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        (
            SimpleNamespace(device_type="cuda", ndim=1),
            "parameter 'weight' is kept on cpu and used on cuda: .* call fully_shard without CPUOffloadPolicy",
        ),
        (
            SimpleNamespace(device_type="cpu", ndim=2, size=lambda: 2),
            "over 2 of 4 ranks by a mesh of 2 axes: let a mesh of several axes have all ranks",
        ),
    ],
)
def test_weights_kept_elsewhere_or_by_some_ranks_are_refused(
    mesh: SimpleNamespace, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("adagp.distributed.ranks.is_distributed", lambda part: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 4)
    with pytest.raises(ValueError, match=reason):
        Ranks(Held(mesh))


def break_one(rank: int, count: int, what: str) -> tuple[str, bool, dict[str, int]]:
    """The error where something is not finite on one rank; whether weights moved; and what was counted."""
    model = build()
    by_module(model)
    phase = Plan(Phase.GP, "predicted") if what == "prediction" else Plan(Phase.BP, "backprop")
    schedule = schedules.from_function(lambda step: MIXED[0] if step < 2 else phase, NAMES)
    gp = AdaGP(model, sgd(model), schedule, "with-network", stop_on_nonfinite=True)
    train(gp, model, 2, rank)
    before = whole(model)
    x, y = batches(1, seed=rank)[0]
    if rank == 1 and what == "loss":
        x = x * float("nan")
    if rank == 1 and what == "prediction":
        gp.predictor._means.get("7").weight[0] = float("inf")  # type: ignore[union-attr]
    layer = gp._setup.by_name["7" if what == "gradient" else "0"]
    message = ""
    try:
        with gp.batch() as batch:
            batch.backward(loss_of(model, x, y))
            if rank == 1 and what == "gradient":
                layer.weight.grad._local_tensor[0] = float("nan")  # type: ignore[union-attr]
    except NonFiniteError as error:
        message = str(error)
    moved = any(abs(mine - before[name]).max() > 0 for name, mine in whole(model).items())
    return message, moved, gp.counts()


@pytest.mark.parametrize("what", ["loss", "gradient", "prediction"])
def test_what_is_not_finite_on_one_rank_is_noticed_by_all(what: str) -> None:
    one, two = on_ranks(2, break_one, what)
    assert one == two
    message, moved, counts = one
    assert not moved
    if what == "prediction":
        assert counts["fallback"] == 1
    else:
        assert {"loss": "the loss is not finite", "gradient": "the weight of layer '7' is not finite"}[what] in message


def train_tokens(rank: int, count: int, how: str, reshards: bool) -> Any:
    """Train the same network whole and sharded in some way; returns the largest difference and the coverage."""
    found = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        network = Tied()
        model: nn.Module = network
        if not is_sharded:
            model = DistributedDataParallel(network, find_unused_parameters=True)
        else:
            shard_tied(network, how, count, reshard_after_forward=reshards)
        most_rows = 4 if how == "large" else 4096
        predictor = predictors.TrustedPredictor(most_rows=most_rows, fewest_weights=0)
        plans = [*MIXED[:3], Plan(Phase.BP, "backprop", {"wide": "predicted"}), Plan(Phase.GP, "predicted")]
        schedule = schedules.from_function(lambda step, plans=plans: plans[step % 5], NAMES)
        gp = AdaGP(model, sgd(model), schedule, predictor, exclude=None if is_sharded else "up")
        for step in range(20):
            tokens = tokens_of(step).chunk(count)[rank]
            gp.step(lambda tokens=tokens, model=model: loss_of_tokens(model, tokens))
        found.append((whole(network), gp.coverage(), gp.counts()))
    (exact, _, counts), (mine, coverage, sharded) = found
    assert counts == sharded
    assert counts["predicted"] > 0
    difference = max(abs(part - exact[name]).max() for name, part in mine.items())
    return difference, {row.layer: row.reason for row in coverage.rows}


@pytest.mark.parametrize(
    ("how", "reshards"),
    [
        ("plain", False),
        ("large", True),
        ("two axes", True),
        ("bfloat16", True),
        ("offload", False),
        ("plain", True),
        ("two axes", False),
        ("bfloat16", False),
        ("offload", True),
    ],
)
def test_tied_frozen_and_other_layers_under_each_policy(how: str, reshards: bool) -> None:
    for difference, reasons in on_ranks(4 if how == "two axes" else 2, train_tokens, how, reshards):
        assert difference < (0.05 if how == "bfloat16" else 1e-5)
        assert "tied to head.weight" in reasons["embedding"]
        assert "frozen" in reasons["frozen"]
        assert "which is not its rows" in reasons["up"]
        assert reasons["wide"] == reasons["head"] == ""
