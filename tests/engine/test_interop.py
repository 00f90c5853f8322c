"""The engine beside what users bring: mixed precision, accumulation, LR schedulers, other optimizers, compile."""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch.optim import Optimizer

from adagp import AdaGP, Phase, Plan, schedules
from adagp.layers import Layer
from adagp.layers.rows import Rows
from adagp.predictors import Features, PaperPredictor
from tests.nets import batches, build, equal_parameters, loss_of, sgd

OPTIMIZERS: list[Callable[[Any], Optimizer]] = [
    torch.optim.Adadelta,
    torch.optim.Adafactor,
    torch.optim.Adagrad,
    torch.optim.Adam,
    torch.optim.Adamax,
    torch.optim.AdamW,
    torch.optim.ASGD,
    lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_every_torch_optimizer_goes_through_all_phases(make: Callable[[Any], Optimizer]) -> None:
    model = build()
    gp = AdaGP(model, make(model.parameters()), schedules.ladder(2, 1, 1), "paper")
    for x, y in batches(9):
        loss = gp.step(lambda x=x, y=y: loss_of(model, x, y))
        assert loss is not None
        assert torch.isfinite(loss)
    assert gp.step_index == 9
    assert gp.counts()["predicted"] > 0


def test_lbfgs_under_backprop_is_the_plain_loop() -> None:
    plain, ours = build(), build()
    x, y = batches(1)[0]
    one, two = torch.optim.LBFGS(plain.parameters()), torch.optim.LBFGS(ours.parameters())

    def closure() -> Tensor:
        one.zero_grad()
        loss = loss_of(plain, x, y)
        loss.backward()
        return loss

    one.step(closure)
    AdaGP(ours, two, schedules.always_backprop()).step(lambda: loss_of(ours, x, y))
    assert equal_parameters(plain, ours)


def test_lr_schedulers_see_an_ordinary_optimizer() -> None:
    model = build()
    optimizer = sgd(model)
    groups = len(optimizer.param_groups)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    gp = AdaGP(model, optimizer, schedules.fixed(1, 1))
    for x, y in batches(4):
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
        scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 / 4)
    assert len(optimizer.param_groups) == groups


@pytest.mark.parametrize(("warmup", "tolerance"), [(6, 1e-6), (1, 2e-2)])
def test_accumulated_micro_batches_stand_for_one_large_batch(warmup: int, tolerance: float) -> None:
    """Exact under backprop; in GP each micro-batch is seen at unit scale before averaging, which differs a little."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.ReLU(), nn.Linear(8, 3))
    other = copy.deepcopy(model)
    one, two = sgd(model), sgd(other)
    whole, parts = (AdaGP(m, o, schedules.ladder(1, warmup, 1)) for m, o in ((model, one), (other, two)))
    for x, y in batches(6):
        with whole.batch() as batch:
            batch.backward(loss_of(model, x, y))
        one.step()
        one.zero_grad()
        with parts.batch() as batch:
            for half in (slice(0, 4), slice(4, 8)):
                batch.backward(loss_of(other, x[half], y[half]) / 2)
        two.step()
        two.zero_grad()
    assert parts.step_index == whole.step_index == 6
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance)


@pytest.mark.parametrize("predictor", ["trusted", "with-network", "paper"])
def test_grad_scaler_changes_nothing_that_is_learned(predictor: str, device: str) -> None:
    """A scale that is a power of two is exact in float32, so both runs must agree bit for bit."""
    plain, scaled = build().to(device), build().to(device)
    runs = []
    for model, scaler in ((plain, None), (scaled, torch.amp.GradScaler(device, init_scale=1024.0))):
        gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1), predictor)
        for x, y in batches(9):
            gp.step(lambda x=x, y=y, m=model: loss_of(m, x.to(device), y.to(device)), scaler=scaler)
        runs.append(gp)
    assert equal_parameters(plain, scaled)
    assert runs[0].quality() == runs[1].quality()


def test_scaled_gradients_that_overflow_skip_the_step_and_teach_nothing() -> None:
    model = build()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**120)
    gp = AdaGP(model, sgd(model), schedules.always_backprop())
    before = copy.deepcopy(model[0].weight.detach())
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y) * 1e6, scaler=scaler)
    assert torch.equal(before, model[0].weight)
    assert gp.counts()["nonfinite"] > 0
    assert scaler.get_scale() == 2.0**119


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype, device: str) -> None:
    model = build().to(device)
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1), "paper")
    for x, y in batches(9):
        with torch.autocast(device, dtype=dtype):
            loss = gp.step(lambda x=x, y=y: loss_of(model, x.to(device), y.to(device)))
        assert loss is not None
    assert gp.counts()["predicted"] > 0
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_half_precision_models_get_gradients_of_their_own_type() -> None:
    model = build().to(torch.bfloat16)
    gp = AdaGP(model, sgd(model), schedules.ladder(1, 1, 1, rungs=((1, 0),)), "paper")
    data = [(x.bfloat16(), y) for x, y in batches(2)]
    gp.step(lambda: loss_of(model, *data[0]))
    with gp.batch() as batch:
        batch.backward(loss_of(model, *data[1]))
    assert model[0].weight.grad is not None
    assert model[0].weight.grad.dtype == torch.bfloat16


def test_activation_checkpointing_is_seen_once() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "paper")
    x, y = batches(1)[0]
    with gp.batch() as batch:
        hidden = torch.utils.checkpoint.checkpoint(model[:7], x, use_reentrant=False)
        batch.backward(nn.functional.cross_entropy(model[7:](hidden), y))
    assert {len(entry.outputs) for entry in batch._layers.values()} == {1}


def compiled_run(compiled: bool, backend: str) -> tuple[nn.Module, AdaGP]:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(2, 1, 1), "paper")
    forward: Callable[[Tensor], Tensor] = torch.compile(model, backend=backend) if compiled else model
    for x, y in batches(12):
        gp.step(lambda x=x, y=y: loss_of(forward, x, y))
    return model, gp


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("backend", "tolerance"), [("aot_eager", 1e-4), pytest.param("inductor", 1e-3, marks=pytest.mark.slow)]
)
def test_a_model_compiled_after_attaching_trains_alike(backend: str, tolerance: float) -> None:
    """Fused kernels round differently, and the predictor's Adam makes a whole step of the sign of a rounding error."""
    plain, one = compiled_run(False, backend)
    ours, two = compiled_run(True, backend)
    assert one.counts() == two.counts()
    for a, b in zip(plain.parameters(), ours.parameters(), strict=True):
        assert torch.allclose(a, b, atol=tolerance)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_takes_batches_of_any_size() -> None:
    runs = []
    for compiled in (False, True):
        model = build()
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "paper")
        forward = torch.compile(model, backend="aot_eager", dynamic=True) if compiled else model
        for size, (x, y) in zip((8, 5, 7, 3, 8, 6), batches(6), strict=True):
            gp.step(lambda x=x[:size], y=y[:size], forward=forward: loss_of(forward, x, y))
        runs.append(model)
    for a, b in zip(runs[0].parameters(), runs[1].parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_compiled_once_for_each_phase_whatever_it_learns_from() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    counter = CompileCounter()
    forward = torch.compile(model, backend=counter)
    x = torch.randn(8, 4)
    found = []
    for _ in range(12):
        gp.step(lambda: forward(x).square().mean())
        found.append(counter.frame_count)
    assert found[-1] <= 3, "the first BP batch, the others, and GP"
    assert found[-1] == found[3]
    assert len(gp.quality()) == 6


@pytest.mark.filterwarnings("ignore")
def test_compiling_a_copy_changes_nothing_for_the_model() -> None:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), "with-network")
    x = torch.randn(8, 4)
    for _ in range(2):
        with gp.batch() as batch:
            torch.compile(copy.deepcopy(model), backend="eager")(x)
            batch.backward(model(x).square().mean())
        gp.optimizer.zero_grad()
        recorded = [name for name, entry in batch._layers.items() if entry.outputs]
        assert recorded == [name for name, entry in batch._layers.items() if entry.uses_features]
        assert 0 < len(recorded) < 6


@pytest.mark.filterwarnings("ignore")
def test_code_compiled_for_an_equal_plain_model_is_noticed() -> None:
    torch.compiler.reset()
    (x, y), *_ = batches(1)
    plain = build()
    compiled, optimizer = torch.compile(plain, backend="eager"), sgd(plain)
    for _ in range(2):
        loss_of(compiled, x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    model = build()
    gp, forward = AdaGP(model, sgd(model), schedules.fixed(1, 1)), torch.compile(model, backend="eager")
    for _ in range(2):  # GP first, then BP
        gp.step(lambda: loss_of(forward, x, y))
    assert "torch.compiler.reset()" in gp.coverage().rows[0].reason


@pytest.mark.filterwarnings("ignore")
def test_a_model_compiled_before_attaching_is_refused() -> None:
    model = torch.compile(build(), backend="eager")
    with pytest.raises(ValueError, match="already compiled: attach AdaGP to the plain module first"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1))


class Encoder(nn.Module):
    """Self-attention from explicit linear layers, with a dictionary as batch and a tuple as output."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x = self.table(batch["tokens"])
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))
        return self.head(x), x


def test_a_transformer_with_its_own_batch_structure_learns() -> None:
    model = Encoder()
    gp = AdaGP(model, torch.optim.Adam(model.parameters(), lr=3e-3), schedules.ladder(20, 1, 1))
    tokens = torch.randint(0, 20, (16, 7))

    def closure() -> Tensor:
        logits, _ = model({"tokens": tokens})
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    losses = [float(loss) for loss in (gp.step(closure) for _ in range(80)) if loss is not None]
    assert losses[-1] < 0.5 * losses[0]
    assert {"qkv", "out", "head"} == gp.quality().keys()


def test_a_plain_function_is_a_schedule() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), lambda step: Plan(Phase.BP, "backprop", {"0": "mean"} if step % 2 else {}))
    for x, y in batches(4):
        gp.step(lambda x=x, y=y: loss_of(model, x, y))
    assert gp.counts()["mean"] == 2


# ---- what users' loops do


class Broken(PaperPredictor):
    """Predicts NaN for every layer, a given number of times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    def trust(self, layer: str) -> float:
        return 1.0

    def predict(self, requests: Sequence[tuple[Layer, Features]]) -> Iterator[Rows | None]:
        self._times -= 1
        for rows in super().predict(requests):
            assert rows is not None
            yield Rows(rows.weight * float("nan"), rows.bias) if self._times >= 0 else rows


def test_a_mixed_batch_with_a_scaler_recovers_from_a_prediction_that_is_not_finite() -> None:
    mixed = schedules.from_function(lambda step: Plan(Phase.BP, "backprop", {"7": "predicted"}))
    model, plain = build(), build()
    gp = AdaGP(model, sgd(model), mixed, Broken(times=1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = batches(1)[0]
    gp.step(lambda: loss_of(model, x, y), scaler=scaler)
    optimizer = sgd(plain)
    loss_of(plain, x, y).backward()
    optimizer.step()
    assert gp.counts()["fallback"] == 1
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))
    assert {quality.batches for quality in gp.quality().values()} == {1}  # the batch that failed taught nothing
    assert all(quality.norm_ratio < 2 for quality in gp.quality().values())
    gp.step(lambda: loss_of(model, x, y), scaler=scaler)
    assert gp.counts()["predicted"] == 1


@pytest.mark.parametrize("scaler", [None, torch.amp.GradScaler("cpu", init_scale=1024.0)], ids=["plain", "scaled"])
def test_in_the_batch_form_nothing_of_a_mixed_batch_that_failed_is_applied(scaler: Any) -> None:
    mixed = schedules.from_function(lambda step: Plan(Phase.BP, "backprop", {"7": "predicted"}))
    model = build()
    gp = AdaGP(model, sgd(model), mixed, Broken(times=1))
    before = copy.deepcopy([parameter.detach() for parameter in model.parameters()])
    with gp.batch(scaler=scaler) as batch:
        batch.backward(loss_of(model, *batches(1)[0]))
    assert batch.failed
    assert all(parameter.grad is None for parameter in model.parameters())
    batch.step()
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert not gp.quality()


def test_a_scaler_divides_true_gradients_only() -> None:
    mixed = schedules.from_function(lambda step: Plan(Phase.BP, "backprop", {"7": "random"}))
    found = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        model = build()
        gp = AdaGP(model, sgd(model), mixed, None)
        for x, y in batches(3):
            gp.step(lambda x=x, y=y, model=model: loss_of(model, x, y), scaler=scaler)
        found.append(model)
    assert equal_parameters(*found)


def test_vmap_is_refused_by_name() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), "with-network")
    x = torch.randn(8, 3)
    gp.step(lambda: model(x).square().mean())
    with pytest.raises(TypeError, match=r"layer '0' ran under torch\.vmap"):
        gp.step(lambda: torch.vmap(model)(x).square().mean())
    torch.vmap(model)(x)  # outside of a batch it is nobody's business
    gp.optimizer.zero_grad()
    gp.step(lambda: model(x).square().mean())


@pytest.mark.parametrize("set_to_none", [True, False])
def test_sparse_gradients_train_like_the_plain_loop(set_to_none: bool) -> None:
    def net() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))

    model, plain = net(), net()
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, plain)]
    gp = AdaGP(model, optimizers[0], schedules.always_backprop())
    for step in range(4):
        x, y = torch.tensor([[step, 1], [2, step]]), torch.tensor([0, 2])
        with gp.batch() as batch:
            batch.backward(loss_of(model, x, y))
        loss_of(plain, x, y).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=set_to_none)
    assert equal_parameters(model, plain)


def test_opacus_is_refused_because_predictions_carry_no_privacy_guarantee() -> None:
    kind = type("DPOptimizer", (torch.optim.SGD,), {"__module__": "opacus.optimizers.optimizer"})
    model = build()
    with pytest.raises(ValueError, match=r"opacus\.optimizers\.optimizer\.DPOptimizer.*privacy"):
        AdaGP(model, kind(model.parameters(), lr=0.1), schedules.fixed(1, 1))


@pytest.mark.parametrize("schedule", [schedules.always_backprop(), schedules.fixed(1, 0)], ids=["bp", "gp"])
def test_a_closure_may_return_more_than_the_loss(schedule: schedules.Schedule) -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedule)
    x, y = batches(1)[0]

    def closure() -> tuple[Tensor, Tensor, str]:
        outputs = model(x)
        return nn.functional.cross_entropy(outputs, y), outputs, "more"

    result = gp.step(closure)
    assert result is not None
    loss, outputs, more = result
    assert not loss.requires_grad
    assert outputs.shape == (8, 3)
    assert more == "more"
    with pytest.raises(TypeError, match=r"the loss is \(\), not a tensor"):
        gp.step(lambda: ())  # type: ignore[arg-type, return-value]


def test_a_gradient_penalty_in_gp_is_told_what_to_do() -> None:
    model = build()
    gp = AdaGP(model, sgd(model), schedules.ladder(1, 1, 1, rungs=((1, 0),)))
    x, y = batches(1)[0]

    def penalised() -> Tensor:
        inputs = x.clone().requires_grad_()
        loss = loss_of(model, inputs, y)
        return loss + torch.autograd.grad(loss, inputs, create_graph=True)[0].square().mean()

    gp.step(penalised)
    with pytest.raises(RuntimeError, match=r"step 1 is a GP batch.*no autograd graph.*gp\.phase is Phase\.GP"):
        gp.step(penalised)
    gp.step(lambda: penalised() if gp.phase is not Phase.GP else loss_of(model, x, y))
    assert gp.step_index == 2
