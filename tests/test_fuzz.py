"""A small seed of `make fuzz`, and proof that the harness sees what it is to find."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.__main__ import main
from fuzz.case import random_of
from fuzz.targets import TARGETS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cases are limited as Linux allows")
HERE = Path(__file__).parents[1]
FAULTS = """
import os, sys, tempfile, time
from pathlib import Path
import fuzz.__main__
from fuzz.case import Case, Kind, Target
from fuzz.commands import Bomb, canary
from fuzz.sandbox import Sandbox

import pickle

def unpickle():
    pickle.loads(pickle.dumps(Bomb(canary())))
    sys.exit(2)

def say(text, code):
    print(text, file=sys.stderr)
    sys.exit(code)

def work():
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        sys.exit(130)

def forget():
    Path(".checkpoint.pt.1234.part").touch()
    say("adagp: error: refused", 2)

FAULTS = {
    Kind.REFUSED: Case("", lambda: say("adagp: error: refused", 2)),
    Kind.ACCEPTED: Case("", lambda: None),
    Kind.TRACEBACK: Case("", lambda: 1 / 0),
    Kind.HANG: Case("", lambda: time.sleep(600)),
    Kind.EXECUTED: Case("", unpickle),
    Kind.ESCAPED: Case("", lambda: Path("../escaped").touch()),
    Kind.WRONG: Case("", lambda: None, lambda: "other weights"),
    Kind.LITTER: Case("", forget),
    Kind.MEMORY: Case("", lambda: len(b"x" * (1200 << 20))),
    Kind.CRASH: Case("", os.abort),
    Kind.MUTE: Case("", lambda: say("Aborted.", 1)),
}
kinds = list(FAULTS)
more = [Case("", lambda: None, must_refuse=True), Case("", work, stop_seconds=0.3)]
every = [*FAULTS.values(), *more]
def cases():
    # Only the one that never ends is given little time: on a busy machine the others may take long.
    for index, case in enumerate(every):
        seconds = 3 if case is FAULTS[Kind.HANG] else 120
        yield Target("faults", "", 1, lambda draw, folder, case=case: case, limit_seconds=seconds), index

with tempfile.TemporaryDirectory() as scratch:
    found = {outcome.index: outcome.kind for outcome in Sandbox(Path(scratch), 0, 4).run(cases())}
print([found[index].value for index in sorted(found)])
print([kind.value for kind in [*kinds, Kind.WRONG, Kind.ACCEPTED]])
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(HERE / "src"), str(HERE)])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_fault_is_seen() -> None:
    done = run("-c", FAULTS)
    found, wanted = done.stdout.splitlines()
    assert found == wanted


def test_a_seed_of_the_harness_holds() -> None:
    done = run("-m", "fuzz", "--cases", "100", "--kills", "1", "--seconds", "3", "--seed", "1", "--json", "--quiet")
    report = json.loads(done.stdout)
    assert report["failures"] == []
    assert done.returncode == 0
    assert report["targets"][-1]["cases"] >= 10
    assert report["kills"]["bit for bit"] == 1


def test_a_case_can_be_had_again_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abouts = []
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        target = TARGETS["archives"]
        abouts.append([target.make(random_of("archives", 0, 3), tmp_path).about])
    assert abouts[0] == abouts[1]
    files = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    assert files[0] == files[1]
    assert files[0]


@pytest.mark.parametrize("wrong", [("--target", "nothing"), ("--replay", "recipes"), ("--replay", "nothing/0/0")])
def test_what_cannot_be_run_is_named(wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert wrong[1] in capsys.readouterr().err
