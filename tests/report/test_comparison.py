import dataclasses
import io
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from PIL import Image

from adagp.report import comparison_plots, comparison_table, overview_png, page, seeds_table, write_report
from adagp.report.comparison import applied_table
from adagp.training import methods
from adagp.training.comparison.result import Comparison, MethodResult, SeedResult
from adagp.training.tasks import Metric
from tests.report.pages import Checker


def method(name: str, seeds: int, layers: int = 0, gp: bool = False) -> MethodResult:
    return MethodResult(
        method=name,
        summary=f"what {name} <does>",
        steps=30,
        score=0.9,
        score_std=0.01 if seeds > 1 else None,
        train_seconds=12.5,
        speedup=1.25,
        batch_ms={"BP": 30.0, "GP": 10.0} if gp else {"BP": 30.0},
        predictor_ms={"BP": 3.0, "GP": 1.0} if layers else {},
        peak_bytes={"BP": 5_000_000, "GP": 2_000_000} if gp else {"BP": 5_000_000},
        batches={"WARMUP": 10, "BP": 10, "GP": 10 if gp else 0},
        counts={"backprop": 20, "predicted": 10} if layers else {"backprop": 20},
        cosines={f"layer{index}": [0.1, float("nan"), 0.3] for index in range(layers)},
        seeds=[
            SeedResult(
                seed,
                0.89 + 0.02 * seed,
                0.92,
                {"accuracy": 0.89 + 0.02 * seed},
                0.4,
                12.5,
                [1.0, 2.0, 3.0],
                [0.5, 0.8, 0.9],
                [4.0, 8.0, 12.5],
            )
            for seed in range(seeds)
        ],
    )


def comparison(seeds: int = 2, layers: int = 4) -> Comparison:
    return Comparison(
        protocol="3 epochs each",
        recipe={"model": "cnn", "data": "digits", "lr": 0.1, "steps": None},
        environment={"python": "3.11", "versions": {"torch": "2"}},
        calibration={},
        metrics=(Metric("accuracy", "accuracy", is_share=True), Metric("odd", "odd figure", "", 1.0)),
        items="images",
        test_items=360,
        methods=[method("bp", seeds), method("adagp", seeds, layers, gp=True), method("skip", seeds, gp=True)],
        verdict="adagp < skip & bp: not better.",
    )


def test_comparison_table() -> None:
    table = comparison_table(comparison())
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["bp"]["accuracy %"] == "90.00±1.00"
    assert rows["bp"]["GP ms"] == "-"
    assert rows["adagp"]["pred. ms"] == "3.0/1.0"
    assert rows["adagp"]["peak MB"] == "5.0/2.0"
    assert comparison_table(comparison(seeds=1)).rows[0][1] == "90.00"


def test_the_page_says_why_an_adaptive_schedule_changed() -> None:
    plain = comparison()
    assert "Why k:m changed" not in page(plain, b"x")
    seed = dataclasses.replace(plain.methods[1].seeds[1], reasons=["step 9: 0:1 -> 1:1, <why>"])
    adaptive = dataclasses.replace(plain.methods[1], seeds=[plain.methods[1].seeds[0], seed])
    text = page(dataclasses.replace(plain, methods=[plain.methods[0], adaptive]), b"x")
    assert text.count("<h3>") == 1
    assert "<h3>adagp, seed 1</h3>\n<ul><li>step 9: 0:1 -&gt; 1:1, &lt;why&gt;</li></ul>" in text


def test_a_learning_rate_that_follows_the_test_loss_is_confessed() -> None:
    plain = comparison()
    plateau = dataclasses.replace(plain, recipe=plain.recipe | {"lr_schedule": "plateau"})
    assert any("no images were held out" in note for note in comparison_table(plateau).notes)
    assert not any("held out" in note for note in comparison_table(plain).notes)


def test_detail_tables() -> None:
    seeds = seeds_table(comparison())
    assert len(seeds.rows) == 6
    assert seeds.columns == ("method", "seed", "accuracy %", "best", "odd figure", "test loss", "train s")
    assert seeds.rows[1] == ("bp", "1", "91.00", "92.00", "-", "0.4000", "12.5")
    table = applied_table(comparison())
    adagp = dict(zip(table.columns, table.rows[1], strict=True))
    assert (adagp["GP batches"], adagp["predicted updates"]) == ("10", "10")


@pytest.mark.parametrize(("seeds", "layers"), [(1, 0), (2, 4), (3, 20)])
def test_picture_has_something_in_every_panel(seeds: int, layers: int) -> None:
    picture = Image.open(io.BytesIO(overview_png(comparison(seeds, layers), dpi=60))).convert("RGB")
    assert picture.size == (720, 480)
    for left in (0, 360):
        for top in (0, 240):
            colours = picture.crop((left, top, left + 360, top + 240)).getcolors(100_000)
            assert colours is not None
            assert len(colours) > 20


def test_where_lower_is_better_the_picture_shows_the_lowest_values() -> None:
    metric = Metric("perplexity", "perplexity", "perplexity", 1.0, lower_is_better=True)
    whole = comparison()
    for result, scores in zip(
        whole.methods, ([900.0, 40.0, 30.0], [900.0, 50.0, 33.0], [900.0, 1e6, 1e6]), strict=True
    ):
        for seed in result.seeds:
            object.__setattr__(seed, "scores", scores)
            object.__setattr__(seed, "score", scores[-1])
    found = dataclasses.replace(whole, metrics=(metric,))
    low, high = comparison_plots._score_limits(found)
    assert 0 <= low < 30
    assert 33 < high <= 120, "neither the first epoch nor the method that diverged hides the difference"
    assert "perplexity: mean ± std over 2 seeds, 360 test images, last epoch; lower is better" in (
        comparison_table(found).notes
    )
    assert Image.open(io.BytesIO(overview_png(found, dpi=60))).size == (720, 480)


def test_a_long_title_stays_inside_the_picture() -> None:
    long = dataclasses.replace(comparison(), protocol="as many batches as fit into the time of another method " * 4)
    picture = Image.open(io.BytesIO(overview_png(long, dpi=60))).convert("L")
    for edge in ((0, 0, 4, 24), (716, 0, 720, 24)):
        assert picture.crop(edge).getextrema() == (255, 255)


def test_every_method_can_be_drawn_and_told_apart() -> None:
    drawn = dataclasses.replace(comparison(), methods=[method(name, 1) for name in methods.names()])
    assert overview_png(drawn)
    assert len({comparison_plots.METHOD_STYLES[name] for name in methods.names()}) == len(methods.names())


def test_mixed_batches_have_bars_of_their_own() -> None:
    mixed = dataclasses.replace(method("topk", 1), batch_ms={"BP": 30.0, "MIXED": 20.0})
    panel = Figure().subplots()
    comparison_plots._milliseconds(panel, dataclasses.replace(comparison(), methods=[method("bp", 1), mixed]))
    bars = [
        (round(bar.get_x() + bar.get_width() / 2, 2), bar.get_height(), bar.get_facecolor()) for bar in panel.patches
    ]
    assert [bar[:2] for bar in bars] == [(-0.2, 30.0), (0.8, 30.0), (1.2, 20.0)]
    assert bars[2][2] not in (bars[0][2], bars[1][2])
    _, labels = panel.get_legend_handles_labels()
    assert labels == ["BP batch", "MIXED batch"]


def test_page_is_whole_and_self_contained(tmp_path: Path) -> None:
    png, html = write_report(comparison(), tmp_path)
    checker = Checker()
    text = html.read_text()
    checker.feed(text)
    assert checker.open == []
    assert "http" not in text
    assert all(address.startswith("data:image/png;base64,") for address in checker.addresses)
    shown = "".join(checker.text)
    for part in ("adagp < skip & bp: not better.", "90.00±1.00", "what adagp <does>", "3.11", "predicted updates"):
        assert part in shown
    assert shown.index("not better") < shown.index("90.00")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert page(comparison(), b"x").count("<table>") == 5
