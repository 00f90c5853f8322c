"""Fabric needs no integration: its backward and its checkpoints are given to AdaGP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adagp import AdaGP, Phase, schedules
from tests.integrations.libraries import micro_batches, needs, net, same

needs("lightning")

from lightning.fabric import Fabric  # noqa: E402
from lightning.fabric.plugins.precision import MixedPrecision  # noqa: E402

DATA = micro_batches(6)


def ladder(source: str = "predicted") -> schedules.Schedule:
    return schedules.ladder(3, 1, 1, rungs=((2, 1),), source=source)


class Loop:
    """A training loop as Fabric's users write it."""

    def __init__(self, source: str = "predicted", **options: Any) -> None:
        self.fabric = Fabric(accelerator="cpu", devices=1, **options)
        self.plain = net()
        optimizer = torch.optim.AdamW(self.plain.parameters(), lr=0.01)
        self.model, self.optimizer = self.fabric.setup(self.plain, optimizer)
        self.gp = AdaGP(self.model, self.optimizer, ladder(source))
        self.norms: list[tuple[Phase, float]] = []

    def epoch(self, scaler: Any = None) -> None:
        for index, (x, y) in enumerate(DATA):
            last = index % 2 == 1
            with self.fabric.no_backward_sync(self.model, enabled=not last):
                self.gp.step(
                    lambda x=x, y=y: cross_entropy(self.model(x), y) / 2,
                    scaler=scaler, backward=self.fabric.backward, last=last,
                )  # fmt: skip

    def epoch_with_clipping(self, clip: float) -> None:
        for index, (x, y) in enumerate(DATA):
            last = index % 2 == 1
            with self.gp.batch(last=last) as batch:
                batch.backward(cross_entropy(self.model(x), y) / 2, by=self.fabric.backward)
            if last:
                self.fabric.clip_gradients(self.model, self.optimizer, max_norm=clip)
                grads = [one.grad for one in self.plain.parameters() if one.grad is not None]
                self.norms.append((batch.plan.phase, float(nn.utils.get_total_norm(grads))))
                self.optimizer.step()
                self.optimizer.zero_grad()


def by_hand(source: str = "predicted", clip: float | None = None) -> tuple[nn.Module, AdaGP]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gp = AdaGP(model, optimizer, ladder(source))
    for _ in range(3):
        for start in range(0, 6, 2):
            with gp.batch() as batch:
                for x, y in DATA[start : start + 2]:
                    batch.backward(cross_entropy(model(x), y) / 2)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            batch.step()
            optimizer.zero_grad()
    return model, gp


def test_its_backward_gives_what_ours_gives() -> None:
    loop = Loop()
    for _ in range(3):
        loop.epoch()
    model, gp = by_hand()
    assert same(loop.plain, model)
    assert loop.gp.step_index == 9
    assert [row.layer for row in loop.gp.coverage().rows] == [row.layer for row in gp.coverage().rows]
    assert loop.gp.quality() == gp.quality()
    assert loop.gp.counts() == gp.counts()
    assert gp.counts()["predicted"] > 0


@pytest.mark.parametrize(("source", "clip"), [("predicted", 1e-3), ("last", 0.1)])
def test_its_clipping_clips_every_phase(source: str, clip: float) -> None:
    loop = Loop(source)
    for _ in range(3):
        loop.epoch_with_clipping(clip)
    model, _ = by_hand(source, clip)
    assert same(loop.plain, model)
    assert {phase for phase, norm in loop.norms if 0.99 * clip < norm < 1.001 * clip} == set(Phase)


def test_its_scaler_changes_nothing() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    plugin = MixedPrecision("16-mixed", "cpu", scaler)
    plugin._desired_input_dtype = torch.float32
    plugin.forward_context = lambda: torch.autocast("cpu", enabled=False)  # type: ignore[method-assign, assignment, return-value]
    loop = Loop(plugins=[plugin])
    for _ in range(3):
        loop.epoch(scaler)
    model, gp = by_hand()
    assert same(loop.plain, model)
    assert loop.gp.quality() == gp.quality()


def test_bf16_goes_through_all_phases() -> None:
    loop = Loop(precision="bf16-mixed")
    for _ in range(3):
        loop.epoch()
    assert loop.gp.counts()["predicted"] > 0


def test_resume_from_its_checkpoint_is_bit_exact(tmp_path: Path) -> None:
    whole = Loop()
    for epoch in range(4):
        if epoch == 2:
            state = {"model": whole.model, "optimizer": whole.optimizer, "gp": whole.gp}
            whole.fabric.save(tmp_path / "state.ckpt", state)
        whole.epoch()
    resumed = Loop()
    resumed.fabric.load(
        tmp_path / "state.ckpt", {"model": resumed.model, "optimizer": resumed.optimizer, "gp": resumed.gp}
    )
    for _ in range(2):
        resumed.epoch()
    assert same(whole.plain, resumed.plain)
    assert whole.gp.counts() == resumed.gp.counts()
    assert whole.gp.quality() == resumed.gp.quality()
