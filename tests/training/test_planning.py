"""Methods that approximate: the right layers in the right batches, in real runs, resumed and compared."""

from pathlib import Path

import pytest
import torch

from adagp import Phase, Plan, models, schedules
from adagp.data import DataSet
from adagp.training import Recipe, RecipeError, Run, Settings, compare
from adagp.training.batch_kinds import batch_kind
from adagp.training.planning import build_schedule, middle, outline

TABLE = """layer            1         2          3
features.0       backprop  zero       backprop
features.*       topk      predicted  backprop
"""


def advance(run: Run, steps: int) -> Run:
    for _ in range(steps):
        if run.epoch_complete:
            run.finish_epoch()
        run.step()
    return run


def convolutions(model: str) -> list[str]:
    return schedules.layer_names(models.build(model), "Conv")


def test_batches_are_called_by_what_they_do() -> None:
    assert batch_kind(Plan(Phase.BP, "backprop")) == "BP"
    assert batch_kind(Plan(Phase.WARMUP, "backprop")) == "WARMUP"
    assert batch_kind(Plan(Phase.BP, "backprop", {"a": "zero"})) == "MIXED"
    assert batch_kind(Plan(Phase.GP, "predicted", {"a": "skip"})) == "GP"


@pytest.mark.parametrize("method", ["zero", "random", "topk"])
@pytest.mark.parametrize(("schedule", "per_cycle"), [("1", (1, 1, 1, 1)), ("2", (0, 1, 0, 1)), ("3", (0, 0, 0, 3))])
def test_the_papers_schedules_reach_the_counts(
    recipe: Recipe, digits: DataSet, method: str, schedule: str, per_cycle: tuple[int, ...]
) -> None:
    assert len(convolutions("cnn")) == 3
    run = advance(Run(recipe.replace(method=method, schedule=schedule), digits), 12)
    approximated = 3 * sum(per_cycle)
    layers = len(schedules.layer_names(run.model))
    assert run.gp.counts() == {"backprop": 12 * layers - approximated, method: approximated}
    mixed = len(run.batch_seconds["MIXED"])
    assert mixed == 3 * sum(count > 0 for count in per_cycle)
    assert len(run.batch_seconds["BP"]) == 12 - mixed


@pytest.mark.parametrize("source", ["predicted", "zero"])
def test_a_prefix_leaves_the_later_layers_exact_in_gp_batches(recipe: Recipe, digits: DataSet, source: str) -> None:
    method = "prefix" if source == "predicted" else "prefix-zero"
    run = Run(recipe.replace(method=method, warmup_epochs=0, rung_epochs=1), digits)
    layers = schedules.layer_names(run.model)
    assert middle(run.recipe, run.model) == layers[(len(layers) - 1) // 2]
    advance(run, 5)  # 4:1, so four batches with a prefix, of which the first shows the order, and then a whole one
    early = (len(layers) - 1) // 2 + 1
    counts = run.gp.counts()
    assert counts["backprop"] == 3 * (len(layers) - early) + 2 * len(layers)
    assert sum(counts.values()) == 5 * len(layers)
    assert len(run.batch_seconds["MIXED"]) == 3
    with pytest.raises(RecipeError, match="until='nothing'"):
        Run(recipe.replace(method=method, until="nothing"), digits)


def test_a_table_mixes_sources_and_resumes_bit_for_bit(recipe: Recipe, digits: DataSet) -> None:
    layers = convolutions("cnn")
    table = TABLE.replace("features.0", layers[0]).replace("features.*", layers[0].rsplit(".", 1)[0] + ".*")
    chosen = recipe.replace(method="table", schedule=table, predictor="paper")
    whole, first, second = (Run(chosen, digits) for _ in range(3))
    advance(whole, 20)
    advance(first, 9)
    second.load_state_dict(first.state_dict())
    advance(second, 11)
    assert whole.gp.counts() == second.gp.counts()
    assert {"backprop", "zero", "topk", "predicted"} <= whole.gp.counts().keys()
    mine, theirs = whole.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_topk_takes_its_k_and_scale_from_the_recipe(recipe: Recipe, digits: DataSet) -> None:
    everything = advance(Run(recipe.replace(method="topk", schedule="3", topk=10**6), digits), 4)
    exact = advance(Run(recipe.replace(method="bp"), digits), 4)
    one = advance(Run(recipe.replace(method="topk", schedule="3"), digits), 4)
    scaled = advance(Run(recipe.replace(method="topk", schedule="3", topk=10**6, topk_scale=0.5), digits), 4)
    weights = [run.model.state_dict()[f"{convolutions('cnn')[0]}.weight"] for run in (everything, exact, one, scaled)]
    assert torch.allclose(weights[0], weights[1], atol=1e-5)
    assert not torch.allclose(weights[2], weights[1], atol=1e-5)
    assert not torch.allclose(weights[3], weights[1], atol=1e-5)


def test_each_seed_draws_its_own_random_gradients(recipe: Recipe, digits: DataSet) -> None:
    drawn = []
    for seed in (0, 1):
        run = Run(recipe.replace(method="random", seed=seed), digits)
        layer = run.gp._setup.by_name[convolutions("cnn")[1]]
        drawn.append(run.gp.sources["random"].gradient(layer, None, 32))
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert not torch.equal(drawn[0].weight, drawn[1].weight)


def test_approximations_compare_beside_the_others(recipe: Recipe, digits: DataSet, tmp_path: Path) -> None:
    settings = Settings(recipe.replace(schedule="2", epochs=1), ("bp", "zero", "topk", "prefix", "momentum"), (0,))
    result = compare(settings, digits, tmp_path / "c", device=torch.device("cpu"))
    found = {method.method: method for method in result.methods}
    assert found["zero"].batch_ms.keys() == {"BP", "MIXED"}
    assert found["prefix"].batch_ms.keys() == {"BP", "MIXED"}
    assert found["momentum"].batch_ms.keys() == {"BP", "GP"}
    assert found["topk"].peak_bytes.keys() == {"BP", "MIXED"}
    assert found["topk"].batches["MIXED"] == 7
    judged = [line.split(" reached ")[0] for line in result.verdict.splitlines() if " reached " in line]
    assert judged == ["zero", "topk", "prefix"]


def test_sampled_takes_the_convolutions_or_else_the_linear_layers() -> None:
    cnn = Recipe(model="cnn", method="sampled")
    plan = build_schedule(cnn, outline("cnn"), 10, 5)(0)
    kinds = {name: type(outline("cnn").get_submodule(name)).__name__ for name in plan.overrides}
    assert set(kinds.values()) == {"Conv2d"}
    assert set(plan.overrides.values()) == {"sampled"}
    transformer = Recipe(model="transformer", data="multi30k", method="sampled")
    assert build_schedule(transformer, outline("transformer"), 10, 5)(3).overrides
    fewer = build_schedule(cnn.replace(include="Linear"), outline("cnn"), 10, 5)(0).overrides
    assert fewer
    assert not fewer.keys() & plan.overrides.keys()


def test_economical_measures_layers_of_both_kinds_soon_enough_in_a_short_run() -> None:
    schedule = build_schedule(Recipe(model="cnn", method="economical"), outline("cnn"), 40, 20)
    assert schedule(3).trial_rates == ()
    assert schedule(4).trial_rates == (0.1, 0.25, 0.5)
    assert set(schedule(4).overrides) == set(schedules.layer_names(outline("cnn")))
