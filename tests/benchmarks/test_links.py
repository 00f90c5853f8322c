"""The benchmark of slow links: what it says where it cannot run, and how it reports."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks import links, namespaces


def test_it_is_skipped_without_root_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(sys, "argv", ["links"])
    assert links.main() == 0
    assert capsys.readouterr().out == "benchmarks.links is skipped: it needs root, to make network namespaces\n"


def test_it_is_skipped_without_iproute2_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool == "tc" else f"/usr/bin/{tool}")
    assert namespaces.why_not() == "it needs iproute2 (tc not found)"


def test_it_is_skipped_where_the_kernel_can_delay_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/usr/bin/{tool}")
    monkeypatch.setattr(namespaces, "_spaces", lambda *names: nullcontext(names))
    monkeypatch.setattr(namespaces, "has_netem", lambda: False)
    monkeypatch.setattr(namespaces, "TUN", tmp_path / "tun")
    assert namespaces.why_not() == f"the kernel has neither netem nor {tmp_path / 'tun'}"
    (tmp_path / "tun").touch()
    assert namespaces.why_not() == ""


def test_the_table_has_what_was_asked_for_what_tcp_found_and_what_gave_no_result() -> None:
    seconds = dict.fromkeys(links.NAMES, 0.25)
    common = {"network": "vgg13", "megabits": 100, "tcp": {"round_trip_seconds": 0.0204, "bits_per_second": 96.4e6}}
    rows = [
        {**common, "delay_ms": 10, "seconds": seconds, "skipped": ""},
        {**common, "delay_ms": 50, "seconds": {}, "skipped": "no result in 9 s"},
    ]
    report = links.table("a machine", rows)
    assert f"| vgg13 | 100 | 10 | 96 | 20.4{' | 0.250' * len(links.NAMES)} |" in report
    assert f"| vgg13 | 100 | 50 | 96 | 20.4 | no result in 9 s{' | ' * (len(links.NAMES) - 1)} |" in report
