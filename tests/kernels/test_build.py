"""The compiled kernel's life: built once, shared, repaired, and done without."""

import ctypes
import logging
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adagp.files import cache_folder
from adagp.kernels import (
    build,
    choose_topk,
    library,
    sampled_compiled,
    sampled_portable,
    topk_backends,
    topk_compiled,
    topk_reference,
    topk_weight_grad,
)
from adagp.kernels.geometry import geometry
from adagp.kernels.sampling import draw
from tests.kernels.cases import assert_same, needs_compiler

SOURCE = """
extern "C" int answer() { return 42; }
"""
# Loads the module by its file: without the package, which would import torch, the processes start at once.
USE = f"""
import ctypes, runpy, sys
from pathlib import Path
shared_library = runpy.run_path({build.__file__!r})["shared_library"]
print(ctypes.CDLL(str(shared_library(Path(sys.argv[1])))).answer())
"""
X, GRAD = torch.randn(2, 3, 6, 6), torch.randn(2, 4, 6, 6)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins without any library and leaves none of its own behind."""
    monkeypatch.setenv("ADAGP_CACHE", str(tmp_path / "cache"))
    _forget()
    yield
    _forget()


def _forget() -> None:
    for known in (topk_compiled._functions, sampled_compiled._functions, library.load):
        known.cache_clear()


@needs_compiler
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="these flags are for x86 processors")
@pytest.mark.parametrize(("flag", "instructions"), [("-mno-avx512f", ("AVX2", "AVX")), ("-mno-avx", ("SSE2",))])
def test_kernels_for_other_processors_give_the_same(
    flag: str, instructions: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", f"{build._compiler()[0]} {flag}")
    assert build.instruction_set() in instructions
    torch.manual_seed(0)
    for channels, size, k in ((70, 5, 1), (32, 12, 1), (5, 9, 3)):  # wide blocks, narrow ones, in place
        for layout in (torch.contiguous_format, torch.channels_last):
            for dtype in (torch.float32, torch.float64):
                x = torch.randn(3, channels, size, size).to(dtype, memory_format=layout)
                grad = torch.randn(3, channels, size, size).to(dtype, memory_format=layout)
                conv = geometry((channels, channels, 3, 3), 1, 1, 1, 1)
                assert_same(topk_compiled.weight_grad(x, grad, conv, k), topk_reference.weight_grad(x, grad, conv, k))
                ours, torchs = (way.score(x, grad, conv, True).scores for way in (sampled_compiled, sampled_portable))
                assert torch.allclose(ours, torchs, rtol=1e-3)
                drawn = draw(torch.full((len(ours),), 0.4, dtype=torch.float64), 0.2)
                sums = [way.sum_rows(x, grad, conv, drawn) for way in (sampled_compiled, sampled_portable)]
                assert_same(sums[0][0], sums[1][0])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "answer.cpp"
    path.write_text(SOURCE)
    return path


def use(source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USE, str(source)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def falls_back(reason: str) -> None:
    assert reason in topk_backends()["compiled"]
    assert choose_topk(GRAD) == "gather"
    assert topk_weight_grad(X, GRAD, (4, 3, 1, 1)).shape == (4, 3, 1, 1)
    with pytest.raises(RuntimeError, match="cannot be used"):
        topk_compiled.weight_grad(X, GRAD, build_geometry(), 1)


def build_geometry() -> topk_compiled.Geometry:
    return topk_compiled.Geometry((4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAGP_NO_COMPILE", "1")
    falls_back("ADAGP_NO_COMPILE")
    assert not cache_folder().exists()


def test_zero_does_not_switch_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAGP_NO_COMPILE", "0")
    monkeypatch.setenv("CXX", "false")
    assert "false failed" in topk_compiled.why_not()


def test_a_failing_compiler_is_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("CXX", "false")
    with caplog.at_level(logging.WARNING):
        falls_back("false failed")
    assert len(caplog.records) == 1
    assert "several times slower" in caplog.text


def test_no_compiler_on_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    falls_back("no C++ compiler")


def test_a_compiler_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler --option")
    falls_back("did not run")


@needs_compiler
def test_the_compilers_complaint_is_told(source: Path) -> None:
    source.write_text("this is no C++")
    with pytest.raises(build.CannotBuildError, match="this is no"):
        build.shared_library(source)
    assert not list(cache_folder().iterdir())


@needs_compiler
def test_a_cache_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    monkeypatch.setenv("ADAGP_CACHE", str(source))  # a file, not a folder
    with pytest.raises(build.CannotBuildError, match="set ADAGP_CACHE"):
        build.shared_library(source)


@needs_compiler
def test_it_is_compiled_once(source: Path) -> None:
    library = build.shared_library(source)
    before = library.stat()
    assert build.shared_library(source) == library
    assert library.stat().st_mtime_ns == before.st_mtime_ns
    assert [path.name for path in cache_folder().iterdir()] == [library.name]
    source.write_text(SOURCE.replace("42", "43"))
    assert build.shared_library(source) != library


@needs_compiler
@pytest.mark.parametrize("damage", [lambda content: content[:-100], lambda content: b"", lambda content: content[1:]])
def test_a_damaged_library_is_built_anew(source: Path, damage: object) -> None:
    library = build.shared_library(source)
    content = library.read_bytes()
    library.write_bytes(damage(content))  # type: ignore[operator]
    assert ctypes.CDLL(str(build.shared_library(source))).answer() == 42
    assert build._is_intact(library)


@needs_compiler
def test_processes_that_compile_at_once_all_succeed(source: Path) -> None:
    processes = [use(source) for _ in range(3)]
    assert [process.communicate(timeout=120) for process in processes] == [("42\n", "")] * 3
    assert len(list(cache_folder().iterdir())) == 1


@needs_compiler
def test_the_kernel_itself_builds_into_an_empty_cache() -> None:
    assert topk_compiled.why_not() == ""
    assert len(list(cache_folder().iterdir())) == 1
    assert choose_topk(GRAD) == "compiled"
