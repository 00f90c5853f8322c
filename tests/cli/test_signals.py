"""Ctrl-C and SIGTERM at any moment of a real process: one line, the shell's exit code, never ignored."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import adagp

TRAIN = ["train", "--data", "digits", "--model", "cnn", "--epochs", "400", "--out", "run"]
# From before torch is imported to the middle of training, which takes about two seconds to reach.
MOMENTS = [(signal.SIGINT, (0.0, 0.1, 0.3, 0.6, 1.0, 1.6, 2.5)), (signal.SIGTERM, (0.05, 0.8, 2.0))]


def start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "adagp", *words],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until_it_listens(running: "subprocess.Popen[str]") -> None:
    """Until the process has a handler of its own for SIGTERM: before that, Python itself is still starting."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = Path(f"/proc/{running.pid}/status").read_text(encoding="ascii")
        caught = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))
        if caught >> (signal.SIGTERM - 1) & 1:
            return
        time.sleep(0.001)
    raise AssertionError("no handler within 30 s")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads when a process listens from /proc")
@pytest.mark.parametrize(("sent", "moments"), MOMENTS)
def test_a_signal_at_any_moment_stops_with_one_line(
    tmp_path: Path, sent: signal.Signals, moments: tuple[float, ...]
) -> None:
    for moment in moments:
        folder = tmp_path / str(moment)
        folder.mkdir()
        running = start(*TRAIN, cwd=folder)
        wait_until_it_listens(running)
        assert moment or "libtorch" not in Path(f"/proc/{running.pid}/maps").read_text(encoding="utf-8")
        time.sleep(moment)
        running.send_signal(sent)
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 128 + sent, (moment, errors)
        assert "Traceback" not in errors, (moment, errors)
        assert "Aborted" not in errors, (moment, errors)
        assert "ignored in" not in errors, (moment, errors)
        assert errors.count("adagp: stopped") == 1, (moment, errors)
        assert not list(folder.rglob("*.part")), moment


def test_a_command_without_runs_stops_too(tmp_path: Path) -> None:
    """Simulating catches no signal to save something first."""
    running = start("reproduce", "fig17", "--levers", cwd=tmp_path)
    assert running.stderr is not None
    running.stderr.readline()  # its first line of progress
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert (running.returncode, errors.splitlines()[-1:]) == (130, ["adagp: stopped"])
    assert "Traceback" not in errors


def run(script: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(Path(adagp.__file__).parents[1])}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=30)


def test_inside_an_import_the_process_ends_without_an_exception(tmp_path: Path) -> None:
    """What C++ code of a library imports must not raise what that code does not expect: it would abort."""
    (tmp_path / "slow.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(9)\n"
        "except BaseException:\n    print('raised', flush=True)\n",
        encoding="utf-8",
    )
    done = run("from adagp.cli import signals\nwith signals.stoppable():\n    import slow", tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "adagp: stopped\n")


def test_what_swallows_the_exception_does_not_swallow_the_signal(tmp_path: Path) -> None:
    """Such as a bare `except` in a library: the process ends all the same, a little later."""
    script = (
        "import os, signal, time\n"
        "from adagp.cli import signals\n"
        "signals.PATIENCE_SECONDS = 1\n"
        "with signals.stoppable():\n"
        "    try:\n        os.kill(os.getpid(), signal.SIGINT)\n        time.sleep(60)\n"
        "    except BaseException:\n        pass\n"
        "    time.sleep(60)\n"
    )
    done = run(script, tmp_path)
    assert (done.returncode, done.stderr) == (130, "adagp: stopped\n")
