"""The benchmark of slow links: what it says where it cannot run, and how it reports."""

import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

from benchmarks import links, namespaces
from tests.ranks import on_ranks


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


def seldom(rank: int, count: int) -> list[float]:
    """How far the weights of post-local SGD are from those of a loop written out, after each batch."""
    networks, current = [], []
    for _ in range(2):
        torch.manual_seed(0)
        networks.append(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)))
    own, written = networks
    optimizers = [torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9) for network in networks]
    given = links.Given(own, lambda model: nn.functional.cross_entropy(model(current[0]), current[1]), optimizers[0])
    run, generator, found = links.local_sgd(given), torch.Generator().manual_seed(rank), []
    for index in range(3 * links.TURN):
        current[:] = torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, 5, (4,), generator=generator)
        run()
        nn.functional.cross_entropy(written(current[0]), current[1]).backward()
        alone = index - given.warm_up
        averaged = [part.grad for part in written.parameters()] if alone < 0 else []
        for gradient in averaged:
            distributed.all_reduce(gradient)
            gradient /= count
        optimizers[1].step()
        optimizers[1].zero_grad()
        with torch.no_grad():
            for part in written.parameters() if alone >= 0 and alone % links.TURN == 0 else ():
                distributed.all_reduce(part)
                part /= count
        pairs = zip(own.parameters(), written.parameters(), strict=True)
        found.append(max(float((mine - other).detach().abs().max()) for mine, other in pairs))
    return found


def test_post_local_sgd_averages_gradients_at_first_and_weights_once_a_turn_later() -> None:
    for found in on_ranks(2, seldom):
        assert max(found) < 1e-6
