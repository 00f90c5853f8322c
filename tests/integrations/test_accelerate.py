"""accelerate needs no integration: its backward, its accumulation and its checkpoints are given to AdaGP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adagp import AdaGP, Phase, schedules
from tests.integrations.libraries import micro_batches, needs, net, same, samples

needs("accelerate")

from accelerate import Accelerator  # noqa: E402
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

MICRO_BATCHES = 5


def ladder(source: str = "predicted") -> schedules.Schedule:
    """Three steps of warm-up; then GP, GP, BP."""
    return schedules.ladder(3, 1, 1, rungs=((2, 1),), source=source)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """accelerate keeps its settings in the process."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


class Loop:
    """A training loop as accelerate's users write it."""

    def __init__(self, schedule: Any = None, parts: int = 2, scaler: Any = None, **options: Any) -> None:
        self.accelerator = Accelerator(gradient_accumulation_steps=parts, cpu=True, **options)
        self.accelerator.scaler = scaler
        self.plain = net()
        optimizer = torch.optim.AdamW(self.plain.parameters(), lr=0.01)
        data = torch.utils.data.DataLoader(samples(4 * MICRO_BATCHES), batch_size=4)  # type: ignore[arg-type]
        self.model, self.optimizer, self.data = self.accelerator.prepare(self.plain, optimizer, data)
        self.gp = AdaGP(self.model, self.optimizer, schedule or ladder())
        self.accelerator.register_for_checkpointing(self.gp)
        self.norms: list[tuple[Phase, float]] = []

    def epoch(self) -> None:
        accelerator = self.accelerator
        for x, y in self.data:
            with accelerator.accumulate(self.model):
                self.gp.step(
                    lambda x=x, y=y: cross_entropy(self.model(x), y),
                    scaler=accelerator.scaler, backward=accelerator.backward, last=accelerator.sync_gradients,
                )  # fmt: skip

    def epoch_with_clipping(self, clip: float) -> None:
        accelerator = self.accelerator
        for x, y in self.data:
            with accelerator.accumulate(self.model):
                with self.gp.batch(last=accelerator.sync_gradients) as batch:
                    batch.backward(cross_entropy(self.model(x), y), by=accelerator.backward)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(self.model.parameters(), clip)
                    grads = [one.grad for one in self.plain.parameters() if one.grad is not None]
                    self.norms.append((batch.plan.phase, float(nn.utils.get_total_norm(grads))))
                self.optimizer.step()
                self.optimizer.zero_grad()


def by_hand(epochs: int, schedule: Any = None, clip: float | None = None) -> tuple[nn.Module, AdaGP]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    gp = AdaGP(model, optimizer, schedule or ladder())
    data = micro_batches(MICRO_BATCHES)
    for _ in range(epochs):
        for part in (data[0:2], data[2:4], data[4:]):
            with gp.batch() as batch:
                for x, y in part:
                    batch.backward(cross_entropy(model(x), y) / 2)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            batch.step()
            optimizer.zero_grad()
    return model, gp


def test_accumulate_gives_what_a_loop_by_hand_gives() -> None:
    loop = Loop()
    for _ in range(3):
        loop.epoch()
    model, gp = by_hand(3)
    assert isinstance(loop.gp.optimizer, AcceleratedOptimizer)
    assert same(loop.plain, model)
    assert loop.gp.step_index == gp.step_index == 9
    assert loop.gp.quality() == gp.quality()
    assert loop.gp.counts() == gp.counts()


@pytest.mark.parametrize(("source", "clip"), [("predicted", 1e-3), ("last", 0.1)])
def test_its_clipping_clips_every_phase(source: str, clip: float) -> None:
    loop = Loop(ladder(source))
    for _ in range(3):
        loop.epoch_with_clipping(clip)
    model, _ = by_hand(3, ladder(source), clip)
    assert same(loop.plain, model)
    assert {phase for phase, norm in loop.norms if 0.99 * clip < norm < 1.001 * clip} == set(Phase)


def test_its_scaler_changes_nothing() -> None:
    """fp16 needs a GPU; the scaler and all the code around it do not. Powers of two are exact."""
    loop = Loop(scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    for _ in range(3):
        loop.epoch()
    model, gp = by_hand(3)
    assert same(loop.plain, model)
    assert loop.gp.quality() == gp.quality()
    assert not loop.optimizer.step_was_skipped


def test_a_scaler_that_was_not_given_is_refused() -> None:
    loop = Loop(schedules.always_backprop(), parts=1, scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
    x, y = next(iter(loop.data))
    with pytest.raises(RuntimeError, match=r"Accelerator\.backward multiplied the loss by 1024"):
        loop.gp.step(lambda: cross_entropy(loop.model(x), y), backward=loop.accelerator.backward)


def test_bf16_goes_through_all_phases() -> None:
    loop = Loop(mixed_precision="bf16")
    for _ in range(3):
        loop.epoch()
    assert loop.gp.counts()["predicted"] > 0
    assert all(parameter.dtype == torch.float32 for parameter in loop.plain.parameters())


def test_a_model_that_it_compiles_trains_alike() -> None:
    """Attached before `prepare`, to the plain module and optimizer."""
    accelerator = Accelerator(cpu=True, dynamo_backend="eager", gradient_accumulation_steps=2)
    plain = net()
    raw = torch.optim.AdamW(plain.parameters(), lr=0.01)
    gp = AdaGP(plain, raw, ladder())
    data = torch.utils.data.DataLoader(samples(4 * MICRO_BATCHES), batch_size=4)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(plain, raw, data)
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                with gp.batch(last=accelerator.sync_gradients) as batch:
                    batch.backward(cross_entropy(model(x), y), by=accelerator.backward)
                optimizer.step()
                optimizer.zero_grad()
    other, expected = by_hand(3)
    assert gp.counts() == expected.counts()
    for one, two in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.allclose(one, two, atol=1e-3)


def test_resume_from_its_checkpoint_is_bit_exact(tmp_path: Path) -> None:
    whole = Loop()
    for epoch in range(4):
        if epoch == 2:
            whole.accelerator.save_state(str(tmp_path / "state"))
        whole.epoch()
    AcceleratorState._reset_state(True)
    resumed = Loop()
    resumed.accelerator.load_state(str(tmp_path / "state"))
    for _ in range(2):
        resumed.epoch()
    assert same(whole.plain, resumed.plain)
    assert whole.gp.counts() == resumed.gp.counts()
    assert whole.gp.quality() == resumed.gp.quality()


def test_without_last_the_leftover_says_what_to_do() -> None:
    loop = Loop()
    data = iter(loop.data)
    with loop.accelerator.accumulate(loop.model):
        x, y = next(data)
        loop.gp.step(lambda: cross_entropy(loop.model(x), y), backward=loop.accelerator.backward)
    with pytest.raises(RuntimeError, match=r"a gradient is left.*or give last=False"):
        loop.gp.step(lambda: cross_entropy(loop.model(x), y), backward=loop.accelerator.backward)
