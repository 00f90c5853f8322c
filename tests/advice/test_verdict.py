"""Every kind of finding as a sentence."""

from dataclasses import replace
from math import inf

import pytest

from adagp.advice.estimate import Estimate
from adagp.advice.exact_study import NO_TIME
from adagp.advice.option import Option
from adagp.advice.result import Advice, LayerFinding, PlanFinding, SourceFinding
from adagp.advice.verdict import with_verdict

FASTER, SAME = Estimate(1.24, 1.2, 1.28, 30, 60.0), Estimate(1.01, 0.97, 1.05, 30, 90.0)
OPEN = Estimate(1.01, 0.9, 1.09, 30, 90.0)
BARELY = Estimate(1.1, 1.02, 1.2, 30, 60.0)
SLOWER, UNKNOWN = Estimate(0.5, 0.4, 0.6, 3, 60.0), Estimate(1.5, 0.0, inf, 2, 140.0)
BASE = Advice(0.5, {"forward": 0.2, "backward": 0.3}, 100_000_000, (), None, (), (), None, {}, 60.0)


def said(option: Option | None = None, **changes: object) -> tuple[str, ...]:
    advice = replace(BASE, exact=() if option is None else (option,), **changes)  # type: ignore[arg-type]
    return with_verdict(advice).verdict


def exact(speed_up: Estimate, **changes: object) -> Option:
    return Option("channels-last", 0.4, speed_up, **changes)  # type: ignore[arg-type]


def source(name: str, speed_up: Estimate, cosine: float, caveat: str = "") -> tuple[SourceFinding]:
    option = Option(name, 0.2, speed_up, exact=False, kept=cosine**2, caveat=caveat)
    return (SourceFinding(option, cosine, 0.9, None),)


NOTHING = "Nothing that was measured makes this training faster on this machine"
UNSURE = "Nothing is sure to make this training faster"


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (exact(FASTER), "channels-last: 1.24 (1.20 to 1.28) x the speed, exact."),
        (
            exact(FASTER, start_seconds=56.2),
            "channels-last: 1.24 (1.20 to 1.28) x the speed, exact, 56 s to start.",
        ),
        (exact(SLOWER), "channels-last: 0.50 (0.40 to 0.60) x the speed, slower."),
        (
            exact(OPEN),
            "channels-last: no difference seen, 0.90 to 1.09 x; about 90 s would tell more.",
        ),
        (exact(SAME), "channels-last: no difference seen, 0.97 to 1.05 x."),
        (exact(replace(OPEN, seconds_needed=60.0)), "channels-last: no difference seen, 0.90 to 1.09 x."),
        (exact(replace(OPEN, seconds_needed=inf)), "channels-last: no difference seen, 0.90 to 1.09 x."),
        (exact(UNKNOWN), "channels-last: 2 rounds tell nothing; about 140 s would tell more."),
    ],
)
def test_an_exact_option(option: Option, sentence: str) -> None:
    headline, first, second = said(option)
    assert first == "A batch takes 500.0 ms as it is: forward 40 %, backward 60 %."
    assert second == sentence
    beginning = UNSURE if option.speed_up is UNKNOWN else NOTHING
    assert headline.startswith("Use channels-last: 1.24 (1.20 to 1.28) x" if option.pays else beginning)


@pytest.mark.parametrize(
    ("last_part", "end", "finding"),
    [
        (FASTER, "x the speed, 1.24 (1.20 to 1.28) x of it by torch.compile, exact, 9 s to start.", "yes"),
        (
            SAME,
            "x the speed, but torch.compile was not seen to add to it, 1.01 (0.97 to 1.05) x, 9 s to start.",
            "unclear",
        ),
        (SLOWER, "x the speed, 0.50 (0.40 to 0.60) x of it by torch.compile, slower, 9 s to start.", "no"),
    ],
)
def test_the_last_part_of_several_has_to_pay_too(last_part: Estimate, end: str, finding: str) -> None:
    option = Option("channels-last + torch.compile", 0.4, FASTER, start_seconds=9.0, last_part=last_part)
    assert said(option)[2] == f"channels-last + torch.compile: 1.24 (1.20 to 1.28) {end}"
    assert option.finding == finding
    assert said(option)[0].startswith("Use channels-last + torch.compile" if option.pays else NOTHING)


def test_the_first_sentence_says_what_to_do() -> None:
    assert said(not_measured={"x": NO_TIME})[0].startswith(
        "There was no time to measure anything but the training as it is"
    )
    assert said(exact(SAME))[0] == f"{NOTHING}; no exact option is more than 1.05 x as fast."
    assert said(source("coarse", SLOWER, 0.5)[0].option)[0] == f"{NOTHING}."
    assert said(exact(UNKNOWN))[0] == f"{UNSURE}; channels-last may, too few rounds tell. About 140 s would tell more."
    assert said(exact(Estimate(1.62, 0.32, 3.11, 5, 96.0)))[0] == (
        f"{UNSURE}; channels-last may, 1.62 (0.32 to 3.11) x. About 96 s would tell more."
    )
    assert said(exact(Estimate(1.62, 0.32, 3.11, 200, inf)))[0] == (
        f"{UNSURE}; channels-last may, 1.62 (0.32 to 3.11) x."
    )
    assert said(not_measured={"channels-last": "it fails here: no"})[0].startswith(
        "Nothing could be measured but the training as it is"
    )
    assert said(exact(FASTER), sources=source("coarse", Estimate(3.0, 2.9, 3.1, 9, 1.0), 0.9))[0] == (
        "Use channels-last: 1.24 (1.20 to 1.28) x the speed, and the gradients stay exact."
    )
    assert said(exact(SAME), sources=source("coarse", FASTER, 0.99))[0] == (
        "No exact option was seen to pay; coarse is worth 1.22 x, with inexact gradients."
    )


def test_what_is_worth_nothing_is_no_open_question() -> None:
    (found,) = source("zero", UNKNOWN, 0.0)
    assert found.option.finding == "no"


def test_less_memory_is_worth_a_word_and_its_lines() -> None:
    option = exact(SLOWER, peak_bytes=40_000_000, code=("line",))
    assert (
        said(option)[2] == "channels-last: 40 MB instead of 100, exact, at 0.50 (0.40 to 0.60) x the speed:\n    line"
    )


@pytest.mark.parametrize(
    ("found", "end"),
    [
        (source("predicted", FASTER, 0.02), "0 % of the progress in 81 % of the time: worth nothing here."),
        (source("topk", FASTER, 0.7), "worth 0.61 x, less than exact batches."),
        (source("coarse", FASTER, 0.99), "98 % of the progress in 81 % of the time: worth 1.22 x."),
        (
            source("last", FASTER, 0.99, "they point the same way"),
            "they point the same way; raise it before you try this.",
        ),
        (source("topk", SAME, 0.99), "in 99 % of the time: worth 0.95 to 1.03 x, not sure to pay."),
        (source("topk", UNKNOWN, 0.99), "in 67 % of the time; 2 rounds tell nothing; about 140 s would tell more."),
        (source("zero", UNKNOWN, 0.0), "0 % of the progress in 67 % of the time: worth nothing here."),
        (source("predicted", UNKNOWN, 0.1), "1 % of the progress in 67 % of the time: worth nothing here."),
    ],
)
def test_a_source(found: tuple[SourceFinding], end: str) -> None:
    sentence = said(sources=found)[2]
    assert sentence.startswith(f"{found[0].option.name}: cosine {found[0].cosine:.2f}, ")
    assert sentence.endswith(end)


LAYERS = tuple(
    LayerFinding(f"layer{place}", "Conv2d", 0.1, 0.1, 0.1, source=source)
    for place, source in enumerate(("sampled", "backprop", "sampled", "topk"))
)


def test_the_plan_that_pays_names_its_sources_its_price_and_its_rival() -> None:
    option = Option("the plan", 0.4, FASTER, exact=False, kept=0.96)
    assert said(plan=PlanFinding("", ("conv",), option, 0.04), layers=LAYERS)[2] == (
        "the plan (sampled on 2 layers, topk on 1 layer): 1.24 (1.20 to 1.28) x the speed for 4 % more noise: worth "
        "1.19 x; in the time it takes, plain backpropagation does 81 % of the batches."
    )


def test_a_plan_that_may_not_pay_is_no_promise() -> None:
    plan = PlanFinding("", ("conv",), Option("the plan", 0.4, FASTER, exact=False, kept=0.82, code=("line",)), 0.2)
    assert said(plan=plan, layers=LAYERS)[2].endswith(
        "x the speed, and a step keeps 82 % of the progress: not sure to pay."
    )


def test_the_noise_of_a_source_is_in_its_sentence_and_its_row() -> None:
    (found,) = source("topk", FASTER, 0.7)
    advice = with_verdict(replace(BASE, sources=(replace(found, added_variance=0.4),)))
    assert "40 % more noise" in advice.verdict[2]
    assert "+40 %" in advice.rows()[1]
    assert advice.to_dict()["sources"][0]["plain_batches"] == pytest.approx(1 / 1.24)


def test_lines_of_a_plan_only_if_it_changes_a_layer() -> None:
    option = Option("the plan", 0.4, FASTER, exact=False, kept=0.96, code=("gp = AdaGP()",))
    assert replace(BASE, plan=PlanFinding("", ("conv",), option, 0.04)).code() == ["gp = AdaGP()"]
    assert replace(BASE, plan=PlanFinding("", (), option, 0.04)).code() == []


def test_options_that_do_not_pay_together_are_not_advised_together() -> None:
    both = Option("a + b", 0.5, SAME, code=("a", "b"))
    assert replace(BASE, exact=(exact(FASTER, code=("a",)),), together=both).code() == ["a"]


def test_the_first_sentence_and_the_lines_are_about_the_same_option() -> None:
    """What pays more alone than together is written alone."""
    alone, both = exact(FASTER, code=("a",)), Option("channels-last + b", 0.5, BARELY, code=("a", "b"))
    advice = with_verdict(replace(BASE, exact=(alone,), together=both))
    assert both.pays
    assert advice.verdict[0].startswith("Use channels-last: ")
    assert advice.code() == ["a"]


def test_one_setting_of_the_allocator_is_enough() -> None:
    first, second = (Option(name, 0.3, FASTER, code=(name,), environment=True) for name in ("keep memory", "tcmalloc"))
    assert replace(BASE, exact=(first, second)).code() == ["keep memory"]


def test_memory_that_was_not_measured_is_no_saving() -> None:
    option = exact(SLOWER, peak_bytes=40_000_000, code=("line",))
    assert said(option, peak_bytes=None)[2] == "channels-last: 0.50 (0.40 to 0.60) x the speed, slower."


def test_what_was_not_measured_is_named_once_for_each_reason() -> None:
    assert said(not_measured={"a": "no time", "b": "it fails", "c": "no time"})[-2:] == (
        "Not measured: a, c; no time.",
        "Not measured: b; it fails.",
    )


def test_lines_for_the_shell_come_beside_those_of_the_best_option() -> None:
    shell = Option("keep memory", 0.3, Estimate(1.6, 1.5, 1.7, 30, 60.0), code=("export A=1",), environment=True)
    advice = replace(BASE, exact=(exact(FASTER, code=("model.to()",)), shell))
    assert advice.code() == ["export A=1", "model.to()"]
    assert replace(BASE, exact=(exact(SAME, code=("model.to()",)),)).code() == []
