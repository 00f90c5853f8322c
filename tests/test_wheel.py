"""The wheel, installed outside the checkout: what it brings, and what a command says whose extra is missing."""

import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable
from email import message_from_bytes
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from adagp.extras import INTEGRATIONS, PACKAGES

ROOT = Path(__file__).parents[1]
EXTRAS = sorted({package.extra for package in PACKAGES.values()})
CORE = """
import sys
from pathlib import Path
import torch
from torch import nn
import adagp, adagp.accelerator, adagp.data, adagp.kernels, adagp.models, adagp.training
from adagp import AdaGP, schedules

assert Path(adagp.__file__).is_relative_to(sys.prefix), adagp.__file__
model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
gp = AdaGP(model, torch.optim.SGD(model.parameters(), lr=0.1), schedules.fixed(1, 1))
for _ in range(4):
    gp.step(lambda: model(torch.ones(5, 4)).square().sum())
print("steps:", gp.step_index)
"""
# What each extra is for, in a process that must end well.
USES = {
    "cli": ["adagp", "simulate", "--model", "vgg13", "--data", "cifar10"],
    "data": ["python", "-c", "from adagp import data; data.load('digits'); data.load('mnist5k')"],
    "report": ["python", "-c", "from adagp.report import plot; plot.viridis()"],
    "tasks": ["python", "-c", "import sacrebleu, faster_coco_eval"],
    "tensorboard": ["python", "-c", "from adagp.training.run.tensorboard import TensorBoard; TensorBoard('events')"],
    "hardware": ["python", "-c", "from adagp.accelerator.rtl import checks, tools; print(tools.YOSYS.version())"],
    "all": ["adagp", "train", "--data", "digits", "--epochs", "1", "--train-limit", "64", "--out", "run"],
}  # fmt: skip
MISSING = [
    ("train --data digits", "data"),
    ("compare --preset demo", "report"),
    ("simulate --model vgg13 --data cifar10 --picture vgg13.png", "report"),
    ("reproduce fig17 --picture fig17.png", "report"),
    ("hardware check", "hardware"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def requirements(wheel: Path) -> list[Requirement]:
    """What the wheel itself asks for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = message_from_bytes(archive.read(name)).get_all("Requires-Dist") or []
    return [Requirement(line) for line in lines]


def wanted(requirements: Iterable[Requirement], extras: Iterable[str]) -> list[Requirement]:
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def closure(requirements: Iterable[Requirement]) -> set[str]:
    """Names of all distributions that these bring, as they are installed here."""
    found: set[tuple[str, frozenset[str]]] = set()
    rest = list(requirements)
    while rest:
        each = rest.pop()
        key = (canonicalize_name(each.name), frozenset(each.extras))
        if key not in found:
            found.add(key)
            rest += wanted(map(Requirement, distribution(each.name).requires or ()), each.extras)
    return {name for name, _ in found}


class Machine:
    """A virtual environment in which the wheel is installed, seen from a folder of its own."""

    def __init__(self, folder: Path, *, with_pip: bool) -> None:
        self.folder = folder / "here"
        self.folder.mkdir()
        venv.create(folder / "venv", with_pip=with_pip, symlinks=True)
        self.programs = folder / "venv" / "bin"
        self.site = next((folder / "venv" / "lib").glob("python*/site-packages"))

    def link(self, names: Iterable[str]) -> None:
        """Make distributions of this environment visible, which is quicker than to install them."""
        for name in names:
            found = distribution(name)
            for top in {path.parts[0] for path in found.files or () if path.parts[0] not in ("..", "__pycache__")}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(Path(str(found.locate_file(top))))

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        hidden = ("PYTHONPATH", "PYTHONHOME", "COVERAGE_PROCESS_START")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        return subprocess.run(
            [str(self.programs / program), *arguments],
            capture_output=True, text=True, check=False, cwd=self.folder, env=environment,
        )  # fmt: skip


def machine_with(wheel: Path, requirements: list[Requirement], folder: Path, *extras: str) -> Machine:
    """A machine on which `pip install adagp[extras]` was run, without waiting for pip to copy torch."""
    machine = Machine(folder, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(machine.programs / "python"), "install"]
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *options, str(wheel)], check=True, capture_output=True)
    machine.link(closure(wanted(requirements, extras)) - {"pip"})
    return machine


@pytest.fixture(scope="module")
def bare(wheel: Path, requirements: list[Requirement], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine_with(wheel, requirements, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="module")
def with_cli(wheel: Path, requirements: list[Requirement], tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return machine_with(wheel, requirements, tmp_path_factory.mktemp("cli"), "cli")


def test_it_asks_for_torch_and_numpy_and_for_nothing_that_torch_does_not_bring(
    requirements: list[Requirement],
) -> None:
    brought = {Requirement(each).name for each in distribution("torch").requires or () if "extra ==" not in each}
    assert {each.name for each in wanted(requirements, ())} == {"numpy", "torch", "filelock"}
    assert "filelock" in brought
    assert "2.13.0" in next(each for each in requirements if each.name == "torch").specifier


def test_every_module_of_an_extra_is_in_that_extra(requirements: list[Requirement]) -> None:
    names = {extra: {each.name for each in wanted(requirements, [extra])} for extra in [*EXTRAS, "all"]}
    for distribution_name, extra in PACKAGES.values():
        assert distribution_name in names[extra]
    assert names["all"] == set().union(*(names[extra] for extra in EXTRAS))
    for distribution_name, extra in INTEGRATIONS.values():
        for one in (extra, "integrations"):
            assert distribution_name in {each.name for each in wanted(requirements, [one])}


def test_it_holds_all_that_is_not_python(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    checkout = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "adagp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert checkout <= set(names)
    assert {"adagp/py.typed", "adagp/kernels/topk.cpp", "adagp/training/presets/demo.toml"} <= checkout


def test_the_core_runs_without_any_extra(bare: Machine) -> None:
    done = bare.run("python", "-c", CORE)
    assert done.stdout == "steps: 4\n", done.stderr


@pytest.mark.parametrize("command", [("adagp", "--help"), ("python", "-m", "adagp", "train")])
def test_the_command_without_its_extra_names_it(bare: Machine, command: tuple[str, ...]) -> None:
    done = bare.run(*command)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    assert "is not installed: pip install 'adagp[cli]'" in done.stderr


def test_all_commands_are_listed_with_the_command_line_alone(with_cli: Machine) -> None:
    done = with_cli.run("adagp", "--help")
    assert done.returncode == 0, done.stderr
    for command in ("train", "compare", "reproduce", "simulate", "hardware", "data"):
        assert f" {command} " in done.stdout


@pytest.mark.parametrize(("command", "extra"), MISSING)
def test_a_command_without_its_extra_names_it(with_cli: Machine, command: str, extra: str) -> None:
    done = with_cli.run("adagp", *command.split())
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert f"pip install 'adagp[{extra}]'" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("extra", ["", *EXTRAS, "all"])
def test_pip_installs_every_extra(wheel: Path, requirements: list[Requirement], tmp_path: Path, extra: str) -> None:
    """The real thing, with what pip finds: a few hundred megabytes for each."""
    machine = Machine(tmp_path, with_pip=True)
    before = installed(machine)
    target = f"{wheel}[{extra}]" if extra else str(wheel)
    options = ("--quiet", "--no-compile", "-c", str(ROOT / "constraints.txt"))
    done = machine.run("python", "-m", "pip", "install", *options, target)
    assert done.returncode == 0, done.stderr
    expected = {"adagp"} | closure(wanted(requirements, [extra]))
    assert installed(machine) - before <= expected
    assert machine.run("python", "-c", CORE).stdout == "steps: 4\n"
    if extra:
        program, *arguments = USES[extra]
        done = machine.run(program, *arguments)
        assert done.returncode == 0, done.stderr


def installed(machine: Machine) -> set[str]:
    listed = machine.run("python", "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check").stdout
    return {canonicalize_name(line.partition("==")[0].partition(" @")[0]) for line in listed.splitlines()}
