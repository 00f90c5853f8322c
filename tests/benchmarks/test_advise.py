import json
import sys
from functools import partial

import pytest

from adagp.advice.rounds import Candidate, measure
from benchmarks import advise, foreign


def row(option: str, predicted: tuple[float, float], measured: float) -> dict[str, object]:
    low, high = predicted
    middle = (low + high) / 2
    return {
        "option": option,
        "predicted": {"ratio": middle, "low": low, "high": high},
        "measured": {"ratio": measured, "low": measured, "high": measured},
        "off": measured / middle - 1,
    }


def test_only_what_was_ordered_beyond_doubt_can_be_wrong() -> None:
    rows = [row("a", (1.3, 1.4), 1.1), row("b", (1.0, 1.1), 1.2), row("c", (1.05, 1.35), 0.9)]
    assert advise.wrong_order(rows) == ["a before b"]
    followed = {"option": "a", "predicted": 0.1, "measured": 0.12, "off": 0.2}
    result = {"options": rows, "wrong_order": ["a before b"], "followed": followed, "drift": 0.06}
    assert advise.failures({"net": result}) == [
        "net: a is off by -18.5 %",
        "net: b is off by +14.3 %",
        "net: c is off by -25.0 %",
        "net: a batch with a is off by +20.0 %",
        "net: the machine changed by +6 % in the last of 3 tries: find a quiet one",
        "net: a before b",
    ]


def test_unknown_predicts_nothing_and_an_interval_what_is_in_it() -> None:
    unknown = row("a", (1.3, 1.4), 0.5)
    unknown["predicted"] = {"ratio": 1.3, "low": None, "high": None}
    rows = [unknown, row("b", (1.0, 2.0), 1.9), row("c", (1.0, 1.02), 1.1)]
    followed = {"option": "as it is", "predicted": 0.1, "measured": 0.1, "off": 0.0}
    result = {"options": rows, "wrong_order": [], "followed": followed, "drift": -0.05}
    assert advise.failures({"net": result}) == []
    outside = {**result, "options": [*rows, row("d", (1.0, 1.1), 1.2)]}
    assert advise.failures({"net": outside}) == ["net: d is off by +14.3 %"]


def test_seconds_and_order_are_printed() -> None:
    followed = {"option": "a", "predicted": 0.1, "measured": 0.12, "off": 0.2}
    result = {"options": [row("a", (1.3, 1.4), 1.1)], "wrong_order": [], "followed": followed, "drifts": [0.2, 0.0]}
    assert advise.table({"net": result}).splitlines()[-1] == "| net | a | 100.0 | 120.0 | +20.0 % | right | 2 |"


def test_every_timed_batch_follows_one_of_the_same_model() -> None:
    order: list[str] = []
    candidates = [advise.in_a_row(Candidate(name, partial(order.append, name))) for name in "abc"]
    turns = iter(range(1000))
    rounds = measure(candidates, lambda: float(next(turns)), 100.0)
    assert len(rounds.seconds) > 3
    assert all(first == second for first, second in zip(order[::2], order[1::2], strict=True))


@pytest.mark.parametrize(("drifts", "used"), [([0.01], 1), ([0.2, -0.04], 2), ([0.2, -0.3, 0.1, 0.0], 3)])
def test_a_comparison_counts_where_the_control_stayed(drifts: list[float], used: int) -> None:
    turns = iter(drifts)
    found = advise.check_on_a_steady_machine("net", 1.0, lambda name, seconds: {"drift": next(turns)})
    assert (found["drift"], found["drifts"]) == (drifts[used - 1], drifts[:used])


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(advise, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["advise", "--networks", "gpt2", "bert", "--json"])
    assert advise.main() == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["left_out"] == ["gpt2", "bert"]
    assert "left out, because transformers is not installed: gpt2, bert" in printed.err


@pytest.mark.slow
def test_advice_is_followed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(advise, "NETWORKS", {"cnn": 8})
    monkeypatch.setattr(sys, "argv", ["advise", "--networks", "cnn", "--seconds", "8"])
    advise.main()
    assert "| cnn | channels-last |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("network", "option"),
    [
        ("cnn", "channels-last + fused optimizer + 1 thread"),
        ("cnn", "coarse"),
        ("transformer", "foreach optimizer"),
        ("resnet20", "activation checkpointing"),
        ("gpt2", "fused optimizer + activation checkpointing"),
        ("bert", "activation checkpointing"),
    ],
)
def test_every_option_can_be_followed(network: str, option: str) -> None:
    if network in foreign.NAMES:
        pytest.importorskip("transformers")
    candidate = advise.follow(network, 2, option)
    with candidate.ready():
        candidate.run()
