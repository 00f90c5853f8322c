"""The projections of `nn.MultiheadAttention` as layers, against the same attention built from linear layers."""

import copy

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, layers, schedules
from adagp.layers.coverage import find_layers, parts_by_weight

WIDTH, HEADS = 8, 2
FORMS = {
    "packed": {},
    "sequence first": {"batch_first": False},
    "other widths": {"kdim": 6, "vdim": 5},
    "no bias": {"bias": False},
    "added bias": {"add_bias_kv": True},
}


class Net(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, **{"batch_first": True} | options)
        self.keys = nn.Linear(WIDTH, self.attention.kdim, bias=False)
        self.values = nn.Linear(WIDTH, self.attention.vdim, bias=False)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        if not self.attention.batch_first:
            x = x.transpose(0, 1)
        mixed, _ = self.attention(x, self.keys(x), value=self.values(x))
        return self.head(mixed)


@pytest.fixture(params=FORMS.values(), ids=FORMS)
def net(request: pytest.FixtureRequest) -> Net:
    return Net(**request.param)


def test_rows_are_autograds_and_every_parameter_is_one_layers(net: Net) -> None:
    found, _ = find_layers(net, net.parameters())
    names = [layer.name for layer in found if layer.is_part]
    packed = net.attention.in_proj_weight is not None
    ways = ["in_proj"] if packed else ["q_proj", "k_proj", "v_proj"]
    assert names == [f"attention.{name}" for name in [*ways, "out_proj"]]
    net(torch.randn(4, 5, WIDTH)).square().sum().backward()
    by_name = {layer.name: layer for layer in found}
    expected = [net.attention.in_proj_weight] if packed else [net.attention.q_proj_weight, net.attention.k_proj_weight]
    for name, weight in zip(ways, expected, strict=False):
        rows = by_name[f"attention.{name}"].gradient()
        assert rows is not None
        torch.testing.assert_close(rows.weight, weight.grad, rtol=0, atol=0)
    out = by_name["attention.out_proj"].gradient()
    assert out is not None
    torch.testing.assert_close(out.weight, net.attention.out_proj.weight.grad, rtol=0, atol=0)
    owned = [id(parameter) for layer in found for parameter in layer.parameters()]
    assert len(owned) == len(set(owned))
    for layer in found:
        rows = layer.gradient()
        before = [parameter.grad.clone() for parameter in layer.parameters()]
        layer.assign(rows)
        assert all(torch.equal(one, part.grad) for one, part in zip(before, layer.parameters(), strict=True))


def test_features_are_the_batch_means_of_the_projections() -> None:
    """What a linear layer in its place would have shown, with the bias left out."""
    net = Net()
    x = torch.randn(4, 5, WIDTH)
    found = {layer.name: layer for layer in find_layers(net, net.parameters())[0]}
    inside, outside = found["attention.in_proj"], found["attention.out_proj"]
    assert net.attention.in_proj_weight is not None
    given, shown = inside.kind.shown(net.attention, (x, x, x), {}, None)
    assert given is x
    assert shown is x
    projected = x @ net.attention.in_proj_weight.t()
    torch.testing.assert_close(inside.reorganise(shown)[:, 0, 0], projected.mean(0).t())
    output = net.attention(x, x, x)
    given, shown = outside.kind.shown(net.attention, (x, x, x), {}, output)
    assert given is None
    torch.testing.assert_close(outside.reorganise(shown)[:, 0, 0], output[0].mean(0).t())


def test_all_backprop_is_bit_for_bit_the_plain_loop(net: Net) -> None:
    plain = copy.deepcopy(net)
    gp = AdaGP(net, torch.optim.SGD(net.parameters(), lr=0.1), schedules.always_backprop(), predictor="trusted")
    own = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 5, WIDTH)
        gp.step(lambda x=x: net(x).square().mean())
        own.zero_grad()
        plain(x).square().mean().backward()
        own.step()
    assert all(torch.equal(one, two) for one, two in zip(net.parameters(), plain.parameters(), strict=True))
    assert "attention.out_proj" in gp.quality()


@pytest.mark.parametrize("source", ["predicted", "zero", "random", "mean"])
@pytest.mark.parametrize("part", ["in_proj", "out_proj"])
def test_another_source_on_one_part_leaves_every_other_gradient_exact(source: str, part: str) -> None:
    net = Net()
    exact = copy.deepcopy(net)
    plans = [Plan(Phase.BP, "backprop"), Plan(Phase.BP, "backprop", {f"attention.{part}": source})]
    gp = AdaGP(
        net,
        torch.optim.SGD(net.parameters(), lr=0.0),
        schedules.from_function(lambda step: plans[step], ["backprop", source]),
        predictor="paper",
    )
    x = torch.randn(4, 5, WIDTH)
    exact(x).square().mean().backward()
    gp.step(lambda: net(x).square().mean())
    with gp.batch() as batch:
        batch.backward(net(x).square().mean())
    owned = {f"attention.{part}_weight", f"attention.{part}_bias", f"attention.{part}.weight", f"attention.{part}.bias"}
    for (name, mine), theirs in zip(net.named_parameters(), exact.parameters(), strict=True):
        assert (name in owned) or torch.allclose(mine.grad, theirs.grad), name
    if source == "zero":
        assert all(not parameter.grad.any() for name, parameter in net.named_parameters() if name in owned)


def test_gp_batches_build_no_graph_and_a_run_resumes() -> None:
    def run(split: int | None) -> nn.Module:
        net = Net()
        gp, optimizer = attached(net)
        for step in range(6):
            if step == split:
                state, weights, moments = gp.state_dict(), net.state_dict(), optimizer.state_dict()
                net = Net()
                net.load_state_dict(weights)
                gp, optimizer = attached(net)
                optimizer.load_state_dict(moments)
                gp.load_state_dict(state)
            x = torch.randn(4, 5, WIDTH, generator=torch.Generator().manual_seed(step))
            loss = gp.step(lambda x=x, net=net: net(x).square().mean())
            assert loss.requires_grad is (step % 2 == 0) or not loss.requires_grad
        assert gp.counts()["predicted"] == gp.counts()["backprop"] == 3 * 5
        return net

    def attached(net: Net) -> tuple[AdaGP, torch.optim.Optimizer]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        return AdaGP(net, optimizer, schedules.fixed(1, 1), predictor="paper"), optimizer

    whole, resumed = run(None), run(3)
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def test_a_source_that_needs_grad_output_is_refused_by_name() -> None:
    net = Net()
    plan = Plan(Phase.BP, "backprop", {"attention.in_proj": "topk"})
    schedule = schedules.from_function(lambda step: plan, ["backprop", "topk"])
    with pytest.raises((TypeError, ValueError), match=r"layer 'attention\.in_proj'.*MultiheadAttention"):
        AdaGP(net, torch.optim.SGD(net.parameters(), lr=0.1), schedule, predictor=None).step(
            lambda: net(torch.randn(4, 5, WIDTH)).square().mean()
        )


def test_a_prefix_ends_at_a_part() -> None:
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), Net())
    ladder = schedules.fixed(1, 1)
    gp = AdaGP(
        net,
        torch.optim.SGD(net.parameters(), lr=0.1),
        schedules.prefix(net, "1.attention.out_proj", ladder),
        predictor="paper",
    )
    for _ in range(4):
        gp.step(lambda: net(torch.randn(4, 5, WIDTH)).square().mean())
    # The first batch shows the order and the even ones are exact: six layers. In the third only the head is.
    assert gp.counts() == {"backprop": 3 * 6 + 1, "predicted": 5}


def test_parts_are_chosen_by_name_and_class() -> None:
    net = Net()
    assert layers.layer_names(net, include="Multihead") == ["attention.in_proj", "attention.out_proj"]
    assert "attention.in_proj" not in layers.layer_names(net, exclude="in_proj")
    assert parts_by_weight(net) == {
        "attention.in_proj_weight": "attention.in_proj",
        "attention.out_proj.weight": "attention.out_proj",
    }


def test_a_type_is_registered_by_its_path() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2, 3))

    path = f"{Odd.__module__}.{Odd.__qualname__}"
    assert layers.kind_of(Odd()) is None
    for given in (path, f"{Odd.__module__}.*Odd"):
        layers.register(given)(layers.FullyConnected)
        assert isinstance(layers.kind_of(Odd()), layers.FullyConnected)
        layers.unregister(given)
        assert layers.kind_of(Odd()) is None
