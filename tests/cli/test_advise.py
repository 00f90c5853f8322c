import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from adagp import schedules
from adagp.advice import LayerFinding, exact, exact_study, sources, study
from adagp.advice.layers import LayerTimes
from adagp.advice.sources import SourceStudy
from adagp.cli import app

BUILD = """
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(4, 2, 4), torch.randint(0, 3, (4,))
    loss = nn.CrossEntropyLoss()
    data = (x, y)
    {change}
    return model, optimizer, loss, data
"""
TOKENS = (
    "tokens = torch.randint(0, 9, (4, 7)); model = nn.Sequential(nn.Embedding(9, 6), nn.Linear(6, 9)); "
    "optimizer = torch.optim.Adam(model.parameters()); data = [tokens, tokens.flip(0)]; "
    "loss = lambda tokens: nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()); "
    "data = iter(data)"
)


@pytest.fixture(autouse=True)
def _steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes four milliseconds: the tests do as much on a busy machine as on a quiet one."""
    ticks = count()
    monkeypatch.setattr(study, "device_clock", lambda device: lambda: next(ticks) / 250)
    monkeypatch.setattr(exact, "available_cpus", torch.get_num_threads)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def write(folder: Path, change: str = "pass") -> None:
    (folder / "mine.py").write_text(BUILD.format(change=change))


def ask(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["advise", "--seconds", "1", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize(
    "change",
    [
        "pass",
        "data = [(x, y), (x + 1, y)]",
        TOKENS,
        "data = {'x': x}; loss = lambda b: model(b['x']).sum()",
        "data = ({'x': x}, y); loss = lambda b: nn.functional.cross_entropy(model(b[0]['x']), b[1])",
        "data = ((x, x), y); loss = lambda b: nn.functional.cross_entropy(model(b[0][0] + b[0][1]), b[1])",
    ],
)
def test_a_file_of_the_user(folder: Path, change: str) -> None:
    write(folder, change)
    code, out, err = ask("--module", "mine.py:build", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"exact", "sources", "layers", "plan", "verdict"} <= found.keys()
    assert found["batch"]["seconds"] > 0
    assert found["layers"]


def test_what_the_file_prints_goes_to_stderr(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loud = "print('built'); os.system('echo shell'); loss = lambda out, y: print('in a batch') or out.sum()"
    (folder / "mine.py").write_text("import os\nprint('imported')\n" + BUILD.format(change=loud))
    code, out, err = ask("--module", "mine.py:build", "--json")
    assert code == 0
    assert json.loads(out)["verdict"]
    assert {"imported", "built", "in a batch"} <= set(err.splitlines())
    assert [text.strip() for text in capfd.readouterr()] == ["", "shell"]


def test_the_table_the_verdict_and_the_plan(folder: Path) -> None:
    write(folder)
    code, out, _ = ask("--module", "mine:build", "--plan", "plan.txt")
    assert code == 0
    assert "What would pay" in out
    assert "A batch takes" in out
    assert "plan: plan.txt" in out
    assert schedules.from_table((folder / "plan.txt").read_text(), ["1", "3"])(0).source("1")


def test_no_plan_costs_none_of_the_advice(folder: Path) -> None:
    write(
        folder, "model = nn.Sequential(nn.Flatten(), nn.LayerNorm(8)); optimizer = torch.optim.SGD(model.parameters())"
    )
    code, out, err = ask("--module", "mine.py:build", "--plan", "plan.txt")
    assert code == 2
    assert "A batch takes" in out
    assert "plan: plan.txt" not in out
    assert not (folder / "plan.txt").exists()
    assert err.startswith("adagp: error: plan: there is none to write: ")
    assert "no layer that adagp can cover" in err
    code, out, err = ask("--module", "mine.py:build", "--plan", "plan.txt", "--json")
    assert code == 2
    assert json.loads(out)["plan_file"] is None


def test_a_pipeline_under_every_scheme(folder: Path) -> None:
    write(folder)
    words = ["--module", "mine.py:build", "--stages", "2", "--microbatches", "3"]
    found = json.loads(ask(*words, "--json")[1])["pipelines"]
    assert [one["scheme"] for one in found] == ["gpipe", "dapple", "chimera", "zero-bubble"]
    assert all(0 < one["bubbles"] < 1 and one["starts"] == ["1", "3"] for one in found)
    code, out, _ = ask(*words, "--html", "page.html")
    assert code == 0
    assert "In a pipeline of 2 stages and 3 micro-batches" in out
    assert "In a pipeline of 2 stages and 3 micro-batches" in (folder / "page.html").read_text()


def test_a_pipeline_with_too_many_stages_costs_none_of_the_advice(folder: Path) -> None:
    write(folder)
    code, out, _ = ask("--module", "mine.py:build", "--stages", "3")
    assert code == 0
    assert "A batch takes" in out
    assert "No pipeline: devices=3: the network has only 2 layers; use fewer devices." in out


def test_the_page(folder: Path) -> None:
    code, out, _ = ask("--model", "cnn", "--data", "digits", "--batch-size", "16", "--html", "advice.html")
    assert code == 0
    assert "page: advice.html" in out
    text = (folder / "advice.html").read_text()
    assert "cnn on digits: what would make it faster?" in text
    assert "data:image/png;base64," in text


MISTAKES = {
    "data = None": "gives no batch; return an example batch or a loader",
    "data = ()": "gives no batch; return an example batch or a loader",
    "data = torch.utils.data.DataLoader([])": "loader: it is empty",
    "data = 'x'": "the fourth value is a str",
    "data = torch.utils.data.DataLoader": "the fourth value is the class DataLoader; return an object of it",
    "data = []": "loader: it is empty",
    "data = 3": "the fourth value is a int",
    "data = (x[..., :3], y)": "closure: the first batch fails: in layer 1 (Linear): RuntimeError: mat1 and mat2",
    "data = (x.long(), y)": "closure: the first batch fails: in layer 1 (Linear): RuntimeError: mat1 and mat2 must",
    "data = [x, x, x]": "a list of 3 tensors of one shape, a batch or a loader",
    "data = (x, y, y)": "a batch is no pair",
    "loss = nn.CrossEntropyLoss(reduction='none')": r"closure: the loss has shape (4,); reduce it to one number",
    "loss = 3": "the third value is a int",
    "loss = nn.CrossEntropyLoss": "the third value is the class CrossEntropyLoss; return an object of it",
    "loss = lambda out, y: out.detach().sum()": "without detach() or no_grad()",
    "loss = lambda out, y: out.sum() * float('nan')": "closure: the loss of the first batch is nan",
    "loss = lambda out, y: {}['key']": "mine.py, line 12: KeyError: 'key'; correct it there",
    "loss = lambda out, y: __import__('sys').exit(3)": "mine.py, line 12: SystemExit: 3; correct it there",
    "data = (__import__('sys').exit(3) for _ in range(2))": "loader: batch 1 fails: ",
    "loss = lambda batch: (out := model(batch[0]).sum()).backward() or out": "closure: calls backward() itself",
    "loss = lambda a, b, c: 0": "the loss asks for 3 arguments",
    "loss = lambda out, y: 3.0": "closure: gives a float; return the loss, a tensor with one number",
    "loss = lambda out, y: type('Output', (), {'loss': out.sum()})": "closure: gives a type; return its loss",
    "optimizer = None": "the second value is a NoneType",
    "optimizer = torch.optim.SGD": "the second value is the class SGD; return an object of it",
    "model = None": "the first value is a NoneType",
    "model = nn.Sequential": "the first value is the class Sequential; return an object of it",
    "model.requires_grad_(False)": "model: none of its parameters needs a gradient",
    "model = nn.Linear(1, 1)": "optimizer: it holds no trainable parameter of the model",
    "model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3)); optimizer = torch.optim.SGD(model.parameters()); "
    "model.register_forward_hook(lambda *_: model.add_module('late', nn.Identity()) if len(model) < 3 else None)": (
        "model: a batch changed what it consists of"
    ),
    "return model": "gives a Sequential; let it `return model, optimizer, loss, batch_or_loader`",
    "return model, optimizer": "gives 2 values",
    "1 / 0": "cannot be built",
    "optimizer = torch.optim.LBFGS(model.parameters())": "optimizer: its step fails: TypeError: LBFGS.step()",
    "calls = iter(range(5)); model.register_forward_hook(lambda *_: [next(calls)] and None)": (
        "closure: a later batch fails: "
    ),
}


@pytest.mark.parametrize("change", MISTAKES)
def test_a_mistake_in_each_place_is_one_line(folder: Path, change: str) -> None:
    write(folder, change)
    code, out, err = ask("--module", "mine.py:build")
    assert (code, out) == (2, "")
    assert MISTAKES[change] in err
    assert err.startswith("adagp: error: ")
    assert err.count("\n") == 1


OTHER_FUNCTIONS = """
class Net(nn.Linear):
    pass


model = Net(2, 2)


def of(config, *, rate):
    pass
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Net", "'Net' is a class; name a function that ends with `return model, optimizer, loss, batch_or_loader`"),
        ("model", "'model' is a Net; name a function that ends with"),
        ("of", "'of' asks for config, rate; let it do without arguments, or give them default values"),
    ],
)
def test_what_is_no_function_without_arguments(folder: Path, name: str, message: str) -> None:
    (folder / "mine.py").write_text(BUILD.format(change="pass") + OTHER_FUNCTIONS)
    code, out, err = ask("--module", f"mine.py:{name}")
    assert (code, out) == (2, "")
    assert f"module=mine.py:{name}: {message}" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--module", "none.py:build"], "there is no file 'none.py'"),
        (["--module", "mine.py"], "names no function"),
        (["--module", "mine.py:other"], "has no 'other'"),
        (["--module", "mine.py:build", "--model", "cnn"], "module: has its own model"),
        (["--module", "mine.py:build", "--device", "cpu"], "module: decides the device itself"),
        (["--module", "mine.py:build", "--data-root", "."], "module: has its own model"),
        (["--seconds", "0"], "seconds = 0: give at least 1"),
        (["--seconds", "nan"], "seconds = nan: give at least 1"),
        (["--plan", "none/plan.txt"], "there is no folder 'none'"),
        (["--html", "none/page.html"], "there is no folder 'none'"),
        (["--model", "resnet20x"], "resnet20x"),
    ],
)
def test_wrong_options(folder: Path, words: list[str], message: str) -> None:
    write(folder)
    code, out, err = ask(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_a_training_of_the_zoo(folder: Path) -> None:
    code, out, err = ask("--model", "cnn", "--data", "digits", "--batch-size", "16", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["batch"]["phases"].keys() == {"forward", "backward", "optimizer", "loading"}
    assert "channels-last" in {option["name"] for option in found["exact"]}
    assert "coarse" in {source["name"] for source in found["sources"]}


TRAIN = ["--model", "cnn", "--data", "digits", "--epochs", "1", "--train-limit", "128", "--batch-size", "32"]


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*words, "--advise-seconds", "1"])
    return result.exit_code, result.stdout, result.stderr


def test_train_uses_the_plan_and_resumes_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run("train", *TRAIN, "--schedule", "advise", "--out", "run", "--json")
    assert code == 0, err
    recipe = json.loads(out)["recipe"]
    assert recipe["method"] == "advised"
    assert "# advised: " in recipe["schedule"]
    assert "A batch takes" in err
    monkeypatch.setattr(exact_study, "exact_options", None)  # it would fail if it measured again
    code, out, err = run("train", *TRAIN, "--schedule", "advise", "--out", "run", "--json", "--resume")
    assert code == 0, err
    assert json.loads(out)["recipe"] == recipe


@pytest.mark.parametrize("command", ["train", "compare"])
def test_without_a_plan_training_goes_on_plainly(folder: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """No time for sources: the layers are not judged, and every gradient is exact."""
    monkeypatch.setattr(study, "study_sources", lambda *_: SourceStudy(not_measured={"sources": "there is no time"}))
    methods = ["--methods", "bp,advised,short-bp", "--seeds", "0"]
    words = ["--schedule", "advise"] if command == "train" else methods
    code, out, err = run(command, *TRAIN, *words, "--out", "runs", "--json")
    assert code == 0, err
    assert "No plan: there is no time. It trains by plain backpropagation." in " ".join(err.split())
    found = json.loads(out)
    if command == "train":
        assert found["recipe"]["schedule"].startswith("# advised: there is no plan, so every gradient is exact")


def test_a_plan_that_does_not_pay_as_a_whole_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer pays by itself, but together they are slower than plain backpropagation."""

    def topk(times: list[LayerTimes], agreement: object) -> list[LayerFinding]:
        return [LayerFinding(one.name, one.kind, 1.0, 1.0, 1.0, source="topk") for one in times]

    monkeypatch.setattr(sources, "judge_layers", topk)
    code, out, err = run("train", *TRAIN, "--schedule", "advise", "--json")
    assert code == 0, err
    assert "the plan (topk on " in err
    assert "The plan is not sure to pay. It trains by plain backpropagation." in " ".join(err.split())
    table = json.loads(out)["recipe"]["schedule"]
    assert "# advised: what pays in single layers is not sure to pay together, so every gradient is exact" in table
    assert "topk" not in table.partition("\n")[2]


def test_a_plan_is_measured_in_the_layout_of_its_training(folder: Path) -> None:
    """`adagp train` keeps weights in channels-last; so that is no advice for it, and layers are timed in it."""
    _, _, err = run("train", *TRAIN, "--schedule", "advise")
    assert "fused optimizer" in err
    assert "channels-last" not in err
    _, _, err = run("train", *TRAIN, "--schedule", "advise", "--set", "channels_last=false")
    assert "channels-last" in err


def test_train_by_a_written_plan(folder: Path) -> None:
    assert ask("--model", "cnn", "--data", "digits", "--batch-size", "32", "--plan", "plan.txt")[0] == 0
    code, out, err = run("train", *TRAIN, "--schedule", "plan.txt", "--json")
    assert code == 0, err
    recipe = json.loads(out)["recipe"]
    assert recipe["method"] == "table"
    assert recipe["schedule"] == (folder / "plan.txt").read_text()


def test_compare_takes_the_advised_method(folder: Path) -> None:
    code, out, err = run("compare", *TRAIN, "--methods", "bp,advised", "--seeds", "0", "--out", "runs", "--json")
    assert code == 0, err
    assert {one["method"] for one in json.loads(out)["methods"]} == {"bp", "advised"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", *TRAIN, "--methods", "bp,advised,typo"], "unknown methods typo"),
        (["compare", *TRAIN, "--methods", "bp,advised", "--set", "include=nothing"], "include"),
        (["train", *TRAIN, "--schedule", "advise", "--set", "until=features.0"], "until"),
        (["train", *TRAIN, "--schedule", "advise", "--out", "held"], "already holds a run"),
    ],
)
def test_mistakes_are_found_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.setattr(exact_study, "exact_options", None)  # it would fail if it measured
    (folder / "held").mkdir()
    (folder / "held" / "recipe.json").write_text("{}")
    code, _, err = run(*words)
    assert code in {1, 2}
    assert message in err


def test_advise_and_another_method_contradict_each_other(folder: Path) -> None:
    code, _, err = run("train", *TRAIN, "--schedule", "advise", "--method", "topk")
    assert code == 2
    assert "schedule advise contradicts method topk" in err


def test_the_demo_begins_with_advice_for_its_own_training() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe
    first, second = (line.split()[1:] for line in recipe[1].splitlines())
    assert first[:4] == ["advise", "--preset", "demo", "--seconds"]
    assert float(first[4]) <= 15, "the demo takes two minutes in all"
    assert second == ["compare", "--preset", "demo"]


SHARED = (
    "torch.distributed.init_process_group('gloo'); model = nn.parallel.DistributedDataParallel(model); "
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1); data = [(x, y), (x + 1, y)]"
)


def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "adagp"]
    given = ["advise", "--seconds", "2", "--module", "mine.py:build", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *given], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_file_of_the_user_that_ranks_share(folder: Path) -> None:
    write(folder, SHARED)
    done = torchrun(folder, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"]["ranks"] == 2


def test_ranks_without_a_shared_model_are_refused(folder: Path) -> None:
    write(folder)
    done = torchrun(folder)
    assert done.returncode != 0
    assert "module: 2 ranks run, and the model of build() is not in DistributedDataParallel" in done.stderr
