import io
from dataclasses import replace
from math import inf

import pytest
from PIL import Image

from adagp.advice import Advice, Estimate, LayerFinding, Option, PlanFinding, SourceFinding
from adagp.advice.verdict import with_verdict
from adagp.report.advice import MOST_LAYERS, advice_png, layers_table, options_table, page
from tests.report.pages import Checker

FASTER = Estimate(1.24, 1.2, 1.28, 30, 60.0)


def layer(name: str, milliseconds: float = 1.0) -> LayerFinding:
    seconds = milliseconds / 1e3
    needs = {"topk": "cosine above 0.82"}
    return LayerFinding(name, "Conv2d", seconds, 2 * seconds, 3 * seconds, 1.8, {"topk": seconds / 2}, needs, "topk")


def advice(layers: int = 3, sources: int = 2) -> Advice:
    findings = tuple(
        SourceFinding(
            Option(name, 0.01 * place, FASTER, exact=False, kept=0.5, peak_bytes=3_000_000),
            0.7,
            0.4 * place,
            0.25,
            {"layer0": {"cosine": 0.71, "error": 0.5, "added_variance": 0.3}},
        )
        for place, name in enumerate(["topk", "<coarse>"][:sources])
    )
    exact = Option("channels-last", 0.4, FASTER, code=("model.to(<format>)",))
    return with_verdict(
        Advice(
            seconds=0.03,
            phases={"forward": 0.01, "backward": 0.02},
            peak_bytes=9_000_000,
            exact=(exact,),
            together=None,
            sources=findings,
            layers=tuple(layer(f"layer{place}", place + 1) for place in range(layers)),
            plan=PlanFinding("table"),
            not_measured={},
            spent=60.0,
            spread=1.9 if sources else None,
        )
    )


def test_the_options_with_memory_and_noise() -> None:
    table = options_table(advice())
    rows = {row[0]: dict(zip(table.columns, row, strict=True)) for row in table.rows}
    assert rows["topk"] | {"MB": "3", "noise": "+25 %", "keeps": "50 %"} == rows["topk"]
    assert rows["as it is"]["MB"] == "9"
    assert rows["channels-last"]["pays"] == "yes"


def test_layers_with_what_pays_and_what_they_have() -> None:
    table = layers_table(advice())
    first = dict(zip(table.columns, table.rows[0], strict=True))
    assert (first["forward ms"], first["input gradient ms"], first["weight gradient ms"]) == ("1.00", "2.00", "3.00")
    assert (first["topk ms"], first["topk needs"], first["topk has"]) == ("0.50", "cosine above 0.82", "0.71")
    assert first["plan"] == "topk"
    assert dict(zip(table.columns, table.rows[1], strict=True))["topk has"] == "-", "it was not compared there"


def test_a_source_that_cannot_serve_a_layer_has_no_figures_there() -> None:
    whole = advice()
    odd = replace(whole.layers[1], source_seconds={}, break_even={})
    table = layers_table(replace(whole, layers=(whole.layers[0], odd)))
    assert dict(zip(table.columns, table.rows[1], strict=True))["topk ms"] == "-"


@pytest.mark.parametrize(("layers", "sources"), [(0, 0), (3, 2), (90, 2)])
def test_the_picture_has_something_in_both_panels(layers: int, sources: int) -> None:
    picture = Image.open(io.BytesIO(advice_png(advice(layers, sources), dpi=50))).convert("RGB")
    half = picture.width // 2
    for left in (0, half):
        colours = picture.crop((left, 0, left + half, picture.height)).getcolors(1_000_000)
        assert colours is not None
        assert len(colours) > 20
    assert picture.height < 50 * (2 + 0.2 * MOST_LAYERS), "it does not grow with every layer"


def test_without_layers_the_parts_of_a_batch_are_drawn() -> None:
    picture = Image.open(io.BytesIO(advice_png(advice(0, 0), dpi=50))).convert("RGB")
    colours = picture.crop((0, 0, picture.width // 2, picture.height)).getcolors(1_000_000)
    assert colours is not None
    bars = {colour: count for count, colour in colours}[(0, 0x72, 0xB2)]
    assert bars > 0.05 * picture.width // 2 * picture.height
    text = page(advice(0, 0), "x")
    assert "Layers" not in text
    assert "Layers" in page(advice(1, 0), "x")


def test_the_page_is_whole_and_asks_for_no_other_file() -> None:
    text = page(advice(), "a <model>")
    checker = Checker()
    checker.feed(text)
    assert checker.open == []
    assert all(address.startswith("data:") for address in checker.addresses)
    words = " ".join(checker.text)
    assert "a <model>: what would make it faster?" in words
    assert "model.to(<format>)" in words
    assert "Use channels-last: 1.24 (1.20 to 1.28) x the speed" in words


def test_a_page_where_nothing_is_known() -> None:
    unknown = Option("channels-last", 0.4, Estimate(1.0, 0.0, inf, 1, 9.0), code=("line",))
    text = page(with_verdict(replace(advice(0, 0), exact=(unknown,))), "x")
    assert "<h2>Write</h2>" not in text
    assert "1 round tells nothing" in text
