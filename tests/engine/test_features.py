"""What a predictor is given: only what it asked for, and the same whatever ran the passes."""

import copy
import gc
import weakref
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from adagp import AdaGP, Phase, Plan, schedules
from adagp._engine.capture.recorder import Poolers
from adagp.layers.coverage import find_layers
from adagp.predictors import Features, FeatureSpec, Pooling
from tests.nets import sgd
from tests.watcher import Watcher

ALL = FeatureSpec(output=Pooling(2), input=Pooling(2), loss_grad=True, weighted_input=True)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 4 * 4, 3)
    )


def data(samples: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(samples, 2, 8, 8, generator=generator), torch.randint(3, (samples,), generator=generator)


def expected(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Features]:
    """The same features, written out."""
    inputs: dict[str, Tensor] = {}
    outputs: dict[str, Tensor] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(_: nn.Module, given: Any, output: Tensor) -> None:
            inputs[name], outputs[name] = given[0].detach().clone(), output.detach().clone()

        return keep

    handles = [model.get_submodule(name).register_forward_hook(hook(name), prepend=True) for name in ("0", "2", "4")]
    output = model(x).detach().requires_grad_()
    (grad,) = torch.autograd.grad(nn.functional.cross_entropy(output, y), output)
    for handle in handles:
        handle.remove()

    def pooled(tensor: Tensor) -> Tensor:
        maps = tensor if tensor.dim() == 4 else tensor[:, :, None, None]
        return nn.functional.adaptive_avg_pool2d(maps.mean(0), 2).flatten(1)

    def by_sample(tensor: Tensor) -> Tensor:
        return tensor.flatten(2).mean(2) if tensor.dim() == 4 else tensor

    return {
        name: Features(pooled(outputs[name]), pooled(inputs[name]), grad.sum(0), grad.t() @ by_sample(inputs[name]))
        for name in inputs
    }


def assert_close(found: Mapping[str, Features], wanted: Mapping[str, Features]) -> None:
    assert found.keys() == wanted.keys()
    for name, features in found.items():
        for field, one, two in zip(Features._fields, features, wanted[name], strict=True):
            assert one is not None, (name, field)
            assert two is not None
            assert torch.allclose(one, two, atol=1e-6), (name, field)


@pytest.mark.parametrize("phase", ["GP", "BP"])
def test_every_feature_is_what_it_says(phase: str) -> None:
    model, (x, y) = network(), data()
    watcher = Watcher(ALL)
    schedule = schedules.fixed(1, 1) if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, watcher)
    wanted = expected(model, x, y)
    gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    assert_close(watcher.seen[0], wanted)


def test_the_weighted_input_of_a_last_linear_layer_is_its_gradient() -> None:
    model, (x, y) = network(), data()
    watcher = Watcher(FeatureSpec(weighted_input=True))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
    gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    nn.functional.cross_entropy(model(x), y).backward()
    found = watcher.seen[0]["4"].weighted_input
    assert found is not None
    assert torch.allclose(found, model[4].weight.grad, atol=1e-6)


@pytest.mark.parametrize(
    "needs",
    [
        FeatureSpec(output=Pooling(3, samples=2)),
        FeatureSpec(input=Pooling(1)),
        FeatureSpec(loss_grad=True, output=Pooling(1)),
        FeatureSpec(weighted_input=True),
    ],
    ids=["output", "input", "loss_grad", "weighted_input"],
)
def test_nothing_else_is_computed(needs: FeatureSpec) -> None:
    model, (x, y) = network(), data()
    watcher = Watcher(needs)
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
    before = [len(model._forward_hooks), len(model._forward_pre_hooks)]
    assert before == ([1, 1] if needs.needs_loss_grad else [0, 0])
    for _ in range(2):
        gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    asked = [needs.output is not None, needs.input is not None, needs.loss_grad, needs.weighted_input]
    for seen in watcher.seen:
        assert [part is not None for part in seen["2"]] == asked
    gp.remove()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_micro_batches_average_activations_and_add_gradients() -> None:
    model, (x, y) = network(), data()
    whole, halves = Watcher(ALL), Watcher(ALL)
    for watcher, parts in ((whole, 1), (halves, 2)):
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
        with gp.batch() as batch:
            for part in zip(x.chunk(parts), y.chunk(parts), strict=True):
                batch.backward(nn.functional.cross_entropy(model(part[0]), part[1]) / parts)
        gp.remove()
    assert_close(halves.seen[0], whole.seen[0])


def test_a_model_called_twice_keeps_its_calls_apart() -> None:
    model, (x, y) = network(), data()
    once, twice = Watcher(ALL), Watcher(ALL)
    for phase in (schedules.fixed(1, 1), schedules.always_backprop()):
        gp = AdaGP(model, sgd(model), phase, once)
        gp.step(lambda: nn.functional.cross_entropy(model(x), y))
        gp.remove()
    model = network()
    for phase in (schedules.fixed(1, 1), schedules.always_backprop()):
        gp = AdaGP(model, sgd(model), phase, twice)

        def closure() -> Tensor:
            losses = [
                nn.functional.cross_entropy(model(part), label)
                for part, label in zip(x.chunk(2), y.chunk(2), strict=True)
            ]
            return torch.stack(losses).mean()

        gp.step(closure)
        gp.remove()
    for one, two in zip(once.seen, twice.seen, strict=True):
        assert_close(two, one)


def test_in_gp_only_the_loss_has_a_graph() -> None:
    model, (x, y) = network(), data()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(ALL))
    with gp.batch() as batch:
        assert batch.plan.phase is Phase.GP
        output = model(x)
        assert output.is_leaf
        assert output.requires_grad
        loss = nn.functional.cross_entropy(output, y)
        batch.backward(loss)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_scaler_does_not_change_what_is_seen() -> None:
    model, (x, y) = network(), data()
    seen = []
    for scaler in (None, GradScaler("cpu", init_scale=1024.0)):
        watcher = Watcher(ALL)
        gp = AdaGP(model, sgd(model), schedules.always_backprop(), watcher)
        with gp.batch(scaler=scaler) as batch:
            batch.backward(nn.functional.cross_entropy(model(x), y))
        gp.optimizer.zero_grad()
        gp.remove()
        seen.append(watcher.seen[0])
    assert_close(*seen)


def test_sequences_are_summed_over_their_positions() -> None:
    model = nn.Sequential(nn.Embedding(7, 5), nn.Linear(5, 4), nn.Linear(4, 7))
    tokens = torch.randint(7, (3, 6), generator=torch.Generator().manual_seed(0))
    watcher = Watcher(FeatureSpec(loss_grad=True, weighted_input=True))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
    gp.step(lambda: nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()))
    features = watcher.seen[0]["1"]
    assert features.loss_grad is not None
    assert features.weighted_input is not None
    assert features.loss_grad.shape == (7,)
    assert features.weighted_input.shape == (7, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models_show_the_same(backend: str) -> None:
    x, y = data()
    seen = []
    for compiled in (False, True):
        torch._dynamo.reset()
        model, watcher = network(), Watcher(ALL)
        gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
        called = torch.compile(model, backend=backend) if compiled else model
        for _ in range(4):
            gp.step(lambda: nn.functional.cross_entropy(called(x), y))  # noqa: B023
        seen.append(watcher.seen)
    assert len(seen[0]) == 4
    for one, two in zip(*seen, strict=True):
        assert_close(two, one)


def test_what_cannot_be_given_is_refused_by_name() -> None:
    x, y = data()
    model = network()
    with pytest.raises(ValueError, match="immediate=True: the predictor asks for the gradient of the loss"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(ALL), immediate=True)
    with pytest.raises(TypeError, match="it has no needs, attach, layers_to_train_on"):
        AdaGP(model, sgd(model), schedules.fixed(1, 1), object())  # type: ignore[arg-type]
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(ALL))
    with pytest.raises(RuntimeError, match=r"step 0 \(GP\) has none: call the model itself.*batch.backward in GP too"):
        gp.step(lambda: nn.functional.cross_entropy(model[4](model[:4](x)), y))
    with pytest.raises(RuntimeError, match="has none"), gp.batch():
        model(x)
    gp.remove()

    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Linear(2, 2)

        def forward(self, given: Tensor) -> tuple[Tensor, Tensor]:
            return self.only(given), given

    several = Several()
    gp = AdaGP(several, sgd(several), schedules.fixed(1, 1), Watcher(ALL))
    with pytest.raises(TypeError, match="the model returned tuple, not a tensor, and the predictor asks"):
        gp.step(lambda: several(torch.ones(3, 2))[0].mean())


class Folded(nn.Module):
    """A layer that sees two patches of every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Linear(2, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.patches(x.reshape(-1, 2)).reshape(len(x), -1))


def test_a_layer_with_other_samples_than_the_model_cannot_be_weighted() -> None:
    model = Folded()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(FeatureSpec(weighted_input=True)))
    with pytest.raises(ValueError, match=r"'patches' had 10 samples where the model's output has 5.*exclude"):
        gp.step(lambda: model(torch.ones(5, 4)).square().mean())
    gp.remove()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(FeatureSpec(weighted_input=True)), exclude="patches")
    gp.step(lambda: model(torch.ones(5, 4)).square().mean())


def test_a_mixed_plan_gives_features_too() -> None:
    model, (x, y) = network(), data()
    watcher = Watcher(ALL)
    plan = Plan(Phase.BP, "backprop", {"0": "predicted"})
    gp = AdaGP(model, sgd(model), lambda step: plan, watcher)
    wanted = expected(model, x, y)
    gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    predicted, learned = watcher.seen
    assert_close(predicted | learned, wanted)


@pytest.mark.parametrize("last", [nn.LogSoftmax(1), nn.Softmax(1), nn.Sigmoid(), nn.Tanh(), nn.ReLU()])
def test_a_model_may_end_in_an_activation(last: nn.Module) -> None:
    """Its backward needs its output as it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), last)
    plain = copy.deepcopy(model)
    x = torch.randn(5, 4)
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), Watcher(FeatureSpec(loss_grad=True, output=Pooling())))
    with gp.batch() as batch:
        batch.backward(model(x).square().mean())
    plain(x).square().mean().backward()
    assert torch.allclose(model[0].weight.grad, plain[0].weight.grad)


@pytest.mark.parametrize("phase", ["GP", "BP"])
def test_the_users_own_grad_mode_counts(phase: str) -> None:
    """A target computed under no_grad by the same model takes no part."""
    model, (x, _) = network(), data()
    watcher = Watcher(ALL)
    schedule = schedules.fixed(1, 1) if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, watcher)

    def closure() -> Tensor:
        with torch.no_grad():
            target = model(x + 1)
            assert not target.requires_grad
            target.numpy()
        return nn.functional.mse_loss(model(x), target)

    output = model(x).detach().requires_grad_()
    with torch.no_grad():
        target = model(x + 1)
    (wanted,) = torch.autograd.grad(nn.functional.mse_loss(output, target), output)
    gp.step(closure)
    found = watcher.seen[0]["4"].loss_grad
    assert found is not None
    assert torch.allclose(found, wanted.sum(0), atol=1e-6)
    assert torch.is_grad_enabled()


def test_grad_mode_survives_an_error_in_the_model() -> None:
    model, (x, y) = network(), data()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(ALL))
    with pytest.raises(RuntimeError):
        gp.step(lambda: nn.functional.cross_entropy(model(x[:, :1]), y))
    assert torch.is_grad_enabled()
    with torch.no_grad():
        with pytest.raises(RuntimeError):
            gp.step(lambda: nn.functional.cross_entropy(model(x[:, :1]), y))
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("predictor", ["trusted", "with-network", "watcher"])
@pytest.mark.parametrize("immediate", [False, True])
def test_a_batch_is_freed_at_once(predictor: str, immediate: bool) -> None:
    """Without the garbage collector: nothing that a batch recorded may wait for it."""
    model, (x, y) = network(), data()
    needs = FeatureSpec(output=Pooling()) if immediate else ALL
    gp = AdaGP(
        model,
        sgd(model),
        schedules.fixed(1, 1),
        Watcher(needs) if predictor == "watcher" else predictor,
        immediate=immediate,
    )
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            with gp.batch() as batch:
                batch.backward(nn.functional.cross_entropy(model(x), y))
            gp.optimizer.zero_grad()
            alive = weakref.ref(batch)
            del batch
            assert alive() is None
    finally:
        gc.enable()


def test_logits_that_are_kept_keep_no_inputs() -> None:
    model, (x, y) = network(), data()
    gp = AdaGP(model, sgd(model), schedules.always_backprop(), Watcher(ALL))
    with gp.batch() as batch:
        logits = model(x)
        batch.backward(nn.functional.cross_entropy(logits, y))
        calls = list(batch._forward.recorder._calls)
    assert logits is not None
    assert [(call.inputs, call.loss_grad) for call in calls] == [([], None)]


class Shaped(nn.Module):
    """A model whose output has any shape."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.inner, self.shape = nn.Linear(4, prod(shape)), shape

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).reshape(len(x), *self.shape)


@pytest.mark.parametrize(
    ("shape", "outputs", "summed"),
    [((3,), 3, ()), ((5, 3), 3, (1,)), ((3, 2, 2), 3, (2, 3)), ((), 1, ())],
    ids=["classes", "tokens", "maps", "one"],
)
def test_the_outputs_of_a_model_are_where_torch_has_them(
    shape: tuple[int, ...], outputs: int, summed: tuple[int, ...]
) -> None:
    model = Shaped(shape)
    watcher = Watcher(FeatureSpec(loss_grad=True, weighted_input=True))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), watcher)
    x = torch.randn(6, 4)
    gp.step(lambda: model(x).square().mean())
    features = watcher.seen[0]["inner"]
    output = model(x).detach()
    grads = 2 * output / output.numel()
    grads = grads.sum(summed) if summed else grads
    assert features.loss_grad is not None
    assert features.loss_grad.shape == (outputs,)
    assert torch.allclose(features.loss_grad, grads.reshape(6, outputs).sum(0), atol=1e-6)
    assert features.weighted_input is not None
    assert features.weighted_input.shape == (outputs, 4)


def test_an_output_without_samples_is_refused() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x).mean()

    model = Mean()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1), Watcher(FeatureSpec(loss_grad=True, output=Pooling())))
    with pytest.raises(ValueError, match=r"the model's output is one number.*samples"):
        gp.step(lambda: model(torch.ones(3, 4)))


@pytest.mark.parametrize("phase", ["GP", "BP"])
def test_an_empty_batch_has_features_of_zeros(phase: str) -> None:
    model = network()
    watcher = Watcher(FeatureSpec(loss_grad=True, weighted_input=True))
    schedule = schedules.fixed(1, 1) if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, watcher)
    gp.step(lambda: model(torch.ones(0, 2, 8, 8)).sum())
    features = watcher.seen[0]["4"]
    assert features.loss_grad is not None
    assert features.loss_grad.tolist() == [0.0] * 3
    assert features.weighted_input is not None
    assert not features.weighted_input.any()


@pytest.mark.parametrize("phase", ["GP", "BP"])
def test_a_checkpointed_model_shows_the_same(phase: str) -> None:
    model, (x, y) = network(), data()
    watcher = Watcher(ALL)
    schedule = schedules.fixed(1, 1) if phase == "GP" else schedules.always_backprop()
    gp = AdaGP(model, sgd(model), schedule, watcher)
    wanted = expected(model, x, y)
    images = x.clone().requires_grad_()
    gp.step(
        lambda: nn.functional.cross_entropy(torch.utils.checkpoint.checkpoint(model, images, use_reentrant=False), y)
    )
    assert_close(watcher.seen[0], wanted)


def test_inputs_are_counted_by_their_own_positions() -> None:
    """Of maps with many positions fewer samples are read; a Linear layer's input has one."""
    wide, image = nn.Linear(4096, 10), nn.Conv2d(3, 64, 3)
    for module, tensor, samples in ((wide, torch.randn(32, 4096), 16), (image, torch.randn(32, 3, 48, 48), 4)):
        (layer,) = find_layers(module, module.parameters())[0]
        pooler = Poolers.of(FeatureSpec(input=Pooling(1, samples=16))).input
        assert pooler is not None
        assert pooler.sum_samples(layer, tensor).layout.rows[0] == samples


def test_the_loss_is_differentiated_on_the_predictors_clock() -> None:
    model, (x, y) = network(), data()
    ticks = iter(range(1000))
    gp = AdaGP(
        model, sgd(model), schedules.fixed(1, 0), Watcher(FeatureSpec(loss_grad=True)), timer=lambda: next(ticks)
    )
    gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    with_grad = gp.predictor_seconds
    gp.remove()
    ticks = iter(range(1000))
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 0), Watcher(FeatureSpec()), timer=lambda: next(ticks))
    gp.step(lambda: nn.functional.cross_entropy(model(x), y))
    assert with_grad >= gp.predictor_seconds + 2


def test_a_batch_made_before_a_state_was_loaded_is_refused() -> None:
    model, (x, y) = network(), data()
    gp = AdaGP(model, sgd(model), schedules.fixed(1, 1))
    early = gp.batch()
    twin = network()
    further = AdaGP(twin, sgd(twin), schedules.fixed(1, 1))
    further.step(lambda: nn.functional.cross_entropy(twin(x), y))
    gp.load_state_dict(further.state_dict())
    with pytest.raises(RuntimeError, match="this batch was made for step 0, and step 1 is next"), early:
        pass
