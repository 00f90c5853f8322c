"""Every Python block of the README and of the docs is executed: what a reader copies must work."""

import os
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from unittest import mock

import pytest
import torch

import adagp

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if path.is_file()]
LIBRARIES = {
    "with-accelerate.md": ["accelerate"],
    "with-fabric.md": ["lightning"],
    "with-lightning.md": ["lightning"],
    "with-others.md": ["skorch", "ignite", "peft"],
    "with-transformers.md": ["transformers", "accelerate"],
}
"""What a page about another library needs; `make test-integrations` has it all."""
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL
)


def _blocks(text: str) -> list[tuple[int, str]]:
    """Line offset and source of every Python block."""
    found = []
    for match in FENCE.finditer(text):
        assert match["language"] not in {"py", "Python", "python3", "pycon"}, (
            "write ```python, so that the block is tested"
        )
        if match["language"] == "python":
            found.append((text.count("\n", 0, match.start("body")), textwrap.dedent(match["body"])))
    return found


def _run_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a page's blocks in one namespace, as a reader does from top to bottom; returns how many there were.

    What a page writes into the environment is gone afterwards: a later test would start its processes with it.
    """
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    with mock.patch.dict(os.environ):
        return _run_blocks(path, module)


def _run_blocks(path: Path, module: ModuleType) -> int:
    blocks = _blocks(path.read_text(encoding="utf-8"))
    for offset, source in blocks:
        # Blank lines in front make a traceback show the page's own line numbers.
        exec(compile("\n" * offset + source, str(path), "exec"), module.__dict__)
    return len(blocks)


@pytest.fixture(autouse=True)
def _as_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ADAGP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def _forget_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers under a name must not be there for the tests after it."""
    from adagp.data import registry as data_registry
    from adagp.models import registry as model_registry

    monkeypatch.setattr(data_registry, "_loaders", dict(data_registry._loaders))
    monkeypatch.setattr(model_registry, "_builders", dict(model_registry._builders))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = [library for library in LIBRARIES.get(path.name, []) if find_spec(library) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: make test-integrations")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        if path.name in LIBRARIES:
            warnings.simplefilter("ignore")  # what they warn of is theirs
        torch.manual_seed(0)
        _run_page(path, monkeypatch)


def test_pages_of_libraries_are_known() -> None:
    assert {path.name for path in PAGES if path.name.startswith("with-")} == LIBRARIES.keys()


def test_the_site_renders_without_a_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "results" / "index.html").is_file()
    page = (tmp_path / "site" / "reference" / "index.html").read_text(encoding="utf-8")
    absent = [name for name in _public_names() if not re.search(rf'id="(\w+\.)+{name}"', page)]
    assert not absent, "docs/reference.md leaves these out"


def _public_names() -> Iterator[str]:
    """What the package and its public modules offer."""
    for name in adagp.__all__:
        yield name
        yield from getattr(getattr(adagp, name), "__all__", ())


def test_a_page_leaves_the_environment_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text('```python\nimport os\n\nos.environ["ADAGP_OF_A_PAGE"] = "1"\n```\n')
    _run_page(page, monkeypatch)
    assert "ADAGP_OF_A_PAGE" not in os.environ


def test_lines_are_short_enough_to_read() -> None:
    for path in (*PAGES, ROOT / "CONTRIBUTING.md"):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            assert len(line) <= 120 or line.startswith(("|", "![")), f"{path}:{number}: more than 120 characters"


def test_no_list_item_hides_at_the_end_of_a_line() -> None:
    text = [(page, line) for page in PAGES for line in page.read_text(encoding="utf-8").splitlines()]
    assert not [(page.name, line) for page, line in text if re.search(r"[.;:] - \*\*", line)]


def test_the_drawing_names_every_package() -> None:
    drawing = (ROOT / "docs" / "architecture-packages.svg").read_text(encoding="utf-8")
    packages = {folder.name for folder in (ROOT / "src" / "adagp").iterdir() if (folder / "__init__.py").is_file()}
    named = {name.split(".")[0] for name in re.findall(r'font-weight="bold"[^>]*>([\w.]+)<', drawing)}
    assert packages <= named


def test_blocks_share_a_namespace_and_failures_show_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# T\n```python\na = 1\n```\n```sh\nfalse\n```\n- x\n\n    ```python\n    assert a == 1\n    ```\n")
    assert _run_page(page, monkeypatch) == 2
    page.write_text(page.read_text().replace("a == 1", "a == 2"))
    with pytest.raises(AssertionError) as caught:
        _run_page(page, monkeypatch)
    assert caught.traceback[-1].lineno + 1 == 11
    page.write_text("```py\n1\n```\n")
    with pytest.raises(AssertionError, match="python"):
        _run_page(page, monkeypatch)
