import os
import sys
import time
from pathlib import Path

import pytest

import adagp
from adagp.advice import environments
from adagp.advice.allocator import KEEP_MEMORY, environment_options
from adagp.advice.process import Worker, WorkerError
from adagp.advice.user_file import load_training

SERVES = "import sys, json; say = lambda text: print(json.dumps(text), flush=True); say('ready'); "


def script(text: str) -> list[str]:
    return [sys.executable, "-c", SERVES + text]


def test_a_worker_does_a_batch_when_asked(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = script(f"[open({str(log)!r}, 'a').write('x') and say('ready') for line in sys.stdin]")
    with Worker(command, {}) as worker:
        worker.wait(30)
        for _ in range(3):
            worker.step(30)
    assert log.read_text() == "xxx"


def test_variables_are_set_in_the_worker_only() -> None:
    command = script("import os; sys.stdin.readline(); say('ready' if os.environ['OF_A_TEST'] == '1' else 'no')")
    with Worker(command, {"OF_A_TEST": "1"}) as worker:
        worker.wait(30)
        worker.step(30)
    assert "OF_A_TEST" not in os.environ


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sys.stdin.readline(); say('KeyError: x')", "KeyError: x"),
        ("sys.stdin.readline()", "another process ended"),
    ],
)
def test_a_worker_that_fails_says_why(text: str, message: str) -> None:
    with Worker(script(text), {}) as worker:
        worker.wait(30)
        with pytest.raises(WorkerError, match=message):
            worker.step(30)


def test_a_worker_that_has_ended_says_why() -> None:
    with Worker(script("say('KeyError: x')"), {}) as worker:
        worker.wait(30)
        worker._process.wait()
        with pytest.raises(WorkerError, match="KeyError: x"):
            worker.step(30)
        with pytest.raises(WorkerError, match="another process ended"):
            worker.step(30)


def test_a_worker_that_does_not_start_is_not_waited_for() -> None:
    begin = time.monotonic()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with Worker(command, {}) as worker, pytest.raises(WorkerError, match="did not start within 0 s"):
        worker.wait(0.2)
    assert time.monotonic() - begin < 20


def test_a_worker_that_hangs_in_a_batch_is_given_up() -> None:
    with Worker(script("import time; time.sleep(60)"), {}) as worker:
        worker.wait(30)
        with pytest.raises(WorkerError, match="did not finish a batch within 0 s"):
            worker.step(0.2)


def test_only_what_is_not_set_yet_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEEP_MEMORY.variables:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    assert KEEP_MEMORY in environment_options()
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "1")
    assert KEEP_MEMORY not in environment_options()
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert environment_options() == []


SLEEPS = """
import os, time, torch
from torch import nn


def build():
    print("what a user prints is no answer")
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)

    def loss(batch):
        time.sleep(0.02 if "MALLOC_TRIM_THRESHOLD_" in os.environ else 0.04)
        return model(batch).sum()

    return model, torch.optim.SGD(model.parameters(), lr=0.1), loss, x
"""


@pytest.mark.slow
def test_a_setting_of_the_allocator_is_found_to_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from adagp.training.advise_worker import module_command

    monkeypatch.setattr(environments, "environment_options", lambda: [KEEP_MEMORY])
    (tmp_path / "sleeps.py").write_text(SLEEPS)
    reference = f"{tmp_path / 'sleeps.py'}:build"
    own = load_training(reference)
    advice = adagp.advise(
        own.model, own.optimizer, own.closure, loader=own.loader, seconds=90, worker=module_command(reference)
    )
    (found,) = [option for option in advice.exact if option.environment]
    assert found.pays
    assert found.speed_up.ratio == pytest.approx(2.0, rel=0.2)
    assert "export MALLOC_TRIM_THRESHOLD_=4000000000 MALLOC_MMAP_THRESHOLD_=33554432  # in the shell" in advice.code()
