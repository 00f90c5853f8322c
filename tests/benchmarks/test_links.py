"""The benchmark of slow links: what it says where it cannot run, and how it reports."""

import os
import sys

import pytest

from benchmarks import links


def test_it_is_skipped_without_root_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["links"])
    assert links.main() == 0
    assert capsys.readouterr().out == "benchmarks.links is skipped: it needs root, to make network namespaces\n"


def test_it_is_skipped_without_iproute2_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(links.shutil, "which", lambda tool: None if tool == "tc" else f"/usr/bin/{tool}")
    assert links.why_not() == "it needs iproute2 (tc not found)"


def test_a_link_that_the_kernel_cannot_make_is_named_in_the_table() -> None:
    seconds = dict.fromkeys(links.NAMES, 0.25)
    rows = [
        {"network": "vgg13", "megabits": 100, "delay_ms": 0, "seconds": seconds, "skipped": ""},
        {"network": "vgg13", "megabits": 100, "delay_ms": 10, "seconds": {}, "skipped": "tc netem: unknown"},
    ]
    report = links.table("a machine", rows)
    assert f"| vgg13 | 100 | 0{' | 0.250' * len(links.NAMES)} |" in report
    assert f"| vgg13 | 100 | 10 | tc netem: unknown{' | ' * (len(links.NAMES) - 1)} |" in report
