"""Layers with many rows, such as a head over a vocabulary: their mean alone, a block of rows at a time."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, predictors, schedules
from adagp.layers import Rows
from adagp.layers.rows import RunningRows
from adagp.predictors.trusted import TrustedPredictor
from tests.ranks import on_ranks

WORDS, WIDTH, MOST = 22, 6, 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(WORDS, WIDTH)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.relu(self.inner(self.words(tokens))))


def loss(model: nn.Module, step: int, rank: int = 0) -> Tensor:
    tokens = torch.randint(0, WORDS, (4, 7), generator=torch.Generator().manual_seed(100 * rank + step))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def attached(model: nn.Module, plans: tuple[str, ...] = ("BP", "GP")) -> tuple[AdaGP, torch.optim.Optimizer]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    known = {"BP": Plan(Phase.BP, "backprop"), "GP": Plan(Phase.GP, "predicted")}
    schedule = schedules.from_function(lambda step: known[plans[step % len(plans)]], ["backprop", "predicted"])
    return AdaGP(model, optimizer, schedule, TrustedPredictor(most_rows=MOST, fewest_weights=0)), optimizer


@settings(deadline=None)
@given(
    rows=st.integers(1, 40), most=st.integers(1, 12), steps=st.integers(1, 12), decay=st.sampled_from([0.0, 0.5, 0.9])
)
def test_every_row_is_followed_in_turn(rows: int, most: int, steps: int, decay: float) -> None:
    """Each block is, by itself, the running mean of the gradients of its turns."""
    draw = torch.Generator().manual_seed(rows)
    means, kept = RunningRows(decay, most), torch.zeros(rows, 3)
    blocks = -(-rows // most)
    seen = [0] * rows
    for step in range(steps):
        true = Rows(torch.randn(rows, 3, generator=draw), torch.randn(rows, 1, generator=draw))
        block = list(range(rows))[means.part_due("a", rows)]
        means.add({"a": true})
        for row in block:
            seen[row] += 1
            kept[row].lerp_(true.weight[row], max(1 - decay**blocks, 1 / seen[row]))
        if step == blocks - 1:
            assert seen == [1] * rows
    found = means.get("a")
    assert found is not None
    torch.testing.assert_close(found.weight, kept)


def test_the_head_has_no_features_and_no_correction() -> None:
    model = Net()
    gp, _ = attached(model, ("BP",))
    for step in range(12):
        gp.step(lambda step=step: loss(model, step))
    predictor = gp.predictor
    assert isinstance(predictor, TrustedPredictor)
    assert predictor.needs.except_for == {"head"}
    assert predictor.layers_to_train_on() == {"inner"}
    assert predictor.trust("head") > 0
    mean = predictor.state_dict()["means"]["head"]
    assert mean["count"] == 12
    rows = next(iter(predictor.predict([(gp._setup.by_name["head"], predictors.Features())])))
    assert rows is not None
    torch.testing.assert_close(rows.weight, predictor.trust("head") * mean["rows"][0])
    assert rows.bias is not None
    torch.testing.assert_close(rows.bias, predictor.trust("head") * mean["rows"][1])


def test_quality_is_that_of_the_rows_whose_turn_it_is() -> None:
    model = Net()
    gp, _ = attached(model, ("BP",))
    for step in range(7):
        gp.step(lambda step=step: loss(model, step))
    predictor = gp.predictor
    assert isinstance(predictor, TrustedPredictor)
    mean = copy.deepcopy(predictor.state_dict()["means"]["head"])
    blocks = -(-WORDS // MOST)
    size = -(-WORDS // blocks)
    turn = slice(7 % blocks * size, (7 % blocks + 1) * size)
    found = {}
    gp.schedule.observe = lambda step, alignments: found.update(alignments)  # type: ignore[method-assign]
    twin = copy.deepcopy(model)
    loss(twin, 7).backward()
    gp.step(lambda: loss(model, 7))
    true = torch.cat([twin.head.weight.grad[turn], twin.head.bias.grad[turn, None]], 1)
    guess = torch.cat([part[turn] for part in mean["rows"]], 1)
    cosine = float(nn.functional.cosine_similarity(true.flatten(), guess.flatten(), dim=0))
    assert found["head"].cosine == pytest.approx(cosine, abs=1e-5)
    assert found["head"].true_square == pytest.approx(float(true.square().sum()) * WORDS / len(true), rel=1e-4)


def test_gp_batches_apply_the_mean_and_a_run_resumes_bit_for_bit() -> None:
    def trained(split: int | None) -> Net:
        model = Net()
        gp, optimizer = attached(model, ("BP", "BP", "GP"))
        for step in range(24):
            if step == split:
                saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), gp.state_dict()))
                model = Net()
                model.load_state_dict(saved[0])
                gp, optimizer = attached(model, ("BP", "BP", "GP"))
                optimizer.load_state_dict(saved[1])
                gp.load_state_dict(saved[2])
            gp.step(lambda step=step, model=model: loss(model, step))
        assert gp.counts()["predicted"] > 8
        return model

    whole, resumed = trained(None), trained(14)
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), resumed.parameters(), strict=True))


def _on_rank(rank: int, count: int) -> list[Tensor]:
    model = Net()
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    gp = AdaGP(wrapped, optimizer, schedules.fixed(1, 2), TrustedPredictor(most_rows=MOST, fewest_weights=0))
    for step in range(18):
        gp.step(lambda step=step: loss(wrapped, step, rank))
    assert gp.counts()["predicted"] > 4
    return [parameter.detach().clone() for parameter in model.parameters()]


def test_ranks_stay_equal() -> None:
    first, second = on_ranks(2, _on_rank)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_a_model_of_large_layers_only() -> None:
    model = nn.Linear(3, 30)
    gp, _ = attached(model)
    for _ in range(12):
        gp.step(lambda: model(torch.randn(4, 3)).square().mean())
    assert gp.counts()["predicted"] > 0
