import pytest

from benchmarks import accelerator


@pytest.mark.parametrize(
    ("code", "budget", "status", "words"),
    [
        ("print(1)", 60.0, 0, ["ok", "repeat"]),
        ("print(1)", 0.0, 1, ["OVER"]),
        ("import time; print(time.time_ns())", 60.0, 1, ["DIFFER", "OVER"]),
    ],
)
def test_too_slow_or_not_repeatable_is_told(code, budget, status, words, monkeypatch, capsys):
    monkeypatch.setattr(accelerator, "NETWORK", ["-c", "print(0)"])
    monkeypatch.setattr(accelerator, "GRID", code)
    monkeypatch.setattr(accelerator, "GRID_SECONDS", budget)
    monkeypatch.setattr(accelerator, "NETWORK_SECONDS", 60.0)
    assert accelerator.main() == status
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed
