"""Code of users that does not work: where, and why, in one line."""

import sys
from pathlib import Path

import pytest

from adagp.accelerator.text import InputShape
from adagp.accelerator.user_module import module_network


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:\n", r"broken\.py, line 1: SyntaxError"),
        ("x = '\\ud800'\ny = (\n", r"broken\.py, line 2: SyntaxError"),
        ("\x00", r"SyntaxError|ValueError"),
        ("\n\nraise RuntimeError('no\\nnetwork')", r"broken\.py, line 3: RuntimeError: no network"),
        ("import sys\nsys.exit(3)", r"broken\.py, line 2: SystemExit: 3"),
        ("from torch import no_such_name", r"broken\.py, line 1: ImportError: cannot import name 'no_such_name'"),
        ("import no_such_package", r"broken\.py, line 1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("import torch\ntorch.no_such", r"broken\.py, line 2: AttributeError: .*no_such"),
        ("1 / 0", r"broken\.py, line 1: ZeroDivisionError"),
        ("def f():\n    f()\nf()", r"broken\.py, line 2: RecursionError"),
        ("other = 1", r"has no 'build'"),
        ("build = 1", r"cannot be called"),
        ("def build(width): pass", r"cannot be built: TypeError.*width"),
        ("def build():\n    raise KeyError('size')", r"cannot be built: .*broken\.py, line 2: KeyError"),
        ("def build():\n    exit(0)", r"cannot be built: .*broken\.py, line 2: SystemExit"),
        ("def build():\n    return 3", r"gives a int"),
        (
            "from torch import nn\nclass build(nn.Identity):\n    def forward(self, x):\n        raise KeyError('x')",
            r"KeyError",
        ),
        ("from torch import nn\ndef build():\n    return nn.Linear(7, 7)", r"mat1|shape"),
    ],
)
def test_what_is_wrong_with_it_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    with pytest.raises(ValueError, match=message) as caught:
        module_network("broken:build", [InputShape((3, 8, 8))], 2)
    assert str(caught.value).startswith("module=broken:build") or "cannot be traced" in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.delitem(sys.modules, "broken", raising=False)


def test_a_module_that_is_not_there_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for home in ("no_such_file", "no_such.file", "os.no_such_file"):
        with pytest.raises(ValueError, match="run from the folder that holds it"):
            module_network(f"{home}:build", [InputShape((3, 8, 8))], 2)
