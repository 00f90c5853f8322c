"""Lightning with AdaGP: modules stay as they are, and what they learn is what a loop by hand gives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from adagp import AdaGP, Phase, coarse, schedules
from tests.integrations.libraries import (
    image_net,
    image_samples,
    micro_batches,
    needs,
    net,
    norm_of,
    same,
    samples,
    trained_by_hand_on_growing_images,
)

needs("lightning")

from lightning.pytorch import LightningModule, Trainer  # noqa: E402
from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.plugins.precision import MixedPrecision  # noqa: E402

from adagp.integrations.lightning import AdaGPCallback  # noqa: E402

MICRO_BATCHES = 5


def ladder(source: str = "predicted") -> schedules.Schedule:
    """Three steps of warm-up; then GP, GP, BP."""
    return schedules.ladder(3, 1, 1, rungs=((2, 1),), source=source)


class Module(LightningModule):
    """An ordinary module under automatic optimization."""

    def __init__(self, optimizer: Callable[[Any], torch.optim.Optimizer] | None = None) -> None:
        super().__init__()
        self.net = net()
        self._optimizer = optimizer or (lambda parts: torch.optim.SGD(parts, lr=0.1, momentum=0.9))
        self.graphs: list[bool] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = cross_entropy(self.net(x), y)
        self.graphs.append(loss.requires_grad)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val", cross_entropy(self.net(x), y))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self._optimizer(self.parameters())


def loader() -> DataLoader[Any]:
    return DataLoader(samples(4 * MICRO_BATCHES), batch_size=4)  # type: ignore[arg-type]


def trainer(folder: Path, *callbacks: Callback, **more: Any) -> Trainer:
    defaults: dict[str, Any] = {
        "max_epochs": 3, "accelerator": "cpu", "logger": False, "enable_checkpointing": False,
        "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return Trainer(default_root_dir=folder, callbacks=list(callbacks), **{**defaults, **more})


def fit(folder: Path, module: Module, *callbacks: Callback, path: str | None = None, **more: Any) -> Trainer:
    made = trainer(folder, *callbacks, **more)
    made.fit(module, loader(), ckpt_path=path)
    return made


def test_under_backprop_it_is_plain_lightning(tmp_path: Path) -> None:
    plain, ours = Module(torch.optim.AdamW), Module(torch.optim.AdamW)
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    one = fit(tmp_path, plain, **options)
    callback = AdaGPCallback(schedules.always_backprop(), None)
    two = fit(tmp_path, ours, callback, **options)
    assert same(plain, ours)
    assert callback.gp is not None
    assert one.global_step == two.global_step == callback.gp.step_index == 9
    assert {"training_step", "backward"}.isdisjoint(vars(ours))
    assert not any(module._forward_hooks for module in ours.modules())


class Norms(Callback):
    """The gradient norm that each optimizer step finds, after clipping."""

    def __init__(self, ours: AdaGPCallback) -> None:
        self._ours = ours
        self.found: list[tuple[Phase, float]] = []

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        gp = self._ours.gp
        if gp is not None and gp.step_index > len(self.found):
            self.found.append((gp.schedule(gp.step_index - 1).phase, norm_of(pl_module.parameters())))


@pytest.mark.parametrize(("source", "clip"), [("predicted", 1e-3), ("last", 0.1)])
def test_accumulation_and_clipping_give_what_a_loop_by_hand_gives(tmp_path: Path, source: str, clip: float) -> None:
    module, ours = Module(), AdaGPCallback(ladder(source))
    norms = Norms(ours)
    fit(tmp_path, module, ours, norms, accumulate_grad_batches=2, gradient_clip_val=clip)

    other = net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    gp = AdaGP(other, optimizer, ladder(source))
    data = micro_batches(MICRO_BATCHES)
    for _ in range(3):
        for part in (data[0:2], data[2:4], data[4:]):
            with gp.batch() as batch:
                for x, y in part:
                    batch.backward(cross_entropy(other(x), y) / 2)
            nn.utils.clip_grad_norm_(other.parameters(), clip)
            batch.step()
            optimizer.zero_grad()
    assert same(module.net, other)
    assert ours.gp is not None
    assert ours.gp.counts() == gp.counts()
    assert list(ours.gp.quality().values()) == list(gp.quality().values())
    assert all(norm <= clip * 1.001 for _, norm in norms.found)
    assert {phase for phase, norm in norms.found if norm > clip * 0.99} == set(Phase)
    phases = [gp.schedule(step).phase for step in range(9) for _ in range(1 if step % 3 == 2 else 2)]
    assert module.graphs == [phase is not Phase.GP for phase in phases]


def test_a_limit_of_batches_ends_the_last_batch(tmp_path: Path) -> None:
    callback = AdaGPCallback(ladder())
    made = fit(tmp_path, Module(), callback, accumulate_grad_batches=2, limit_train_batches=3)
    assert callback.gp is not None
    assert made.global_step == callback.gp.step_index == 6


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_resume_from_lightnings_checkpoint_is_bit_exact(tmp_path: Path, precision: Any, accumulate: int) -> None:
    options: dict[str, Any] = {
        "precision": precision, "accumulate_grad_batches": accumulate, "enable_checkpointing": True,
        "gradient_clip_val": 0.5,
    }  # fmt: skip
    whole, callback = Module(torch.optim.AdamW), AdaGPCallback(ladder())
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    fit(tmp_path, whole, callback, saving, **options)
    resumed, again = Module(torch.optim.AdamW), AdaGPCallback(ladder())
    fit(tmp_path / "other", resumed, again, path=str(tmp_path / "epoch=1.ckpt"), **options)
    assert callback.gp is not None
    assert again.gp is not None
    assert callback.gp.counts()["predicted"] > 0
    assert same(whole, resumed)
    assert callback.gp.quality() == again.gp.quality()
    assert callback.gp.counts() == again.gp.counts()


def test_one_callback_serves_a_second_fit(tmp_path: Path) -> None:
    callback = AdaGPCallback(ladder())
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    whole = Module()
    fit(tmp_path, whole, callback, saving, enable_checkpointing=True)
    resumed = Module()
    made = fit(tmp_path, resumed, callback, path=str(tmp_path / "epoch=1.ckpt"))
    assert same(whole, resumed)
    made.validate(resumed, loader(), verbose=False)
    assert callback.gp is not None
    assert callback.gp.step_index == 15


@pytest.mark.parametrize("source", ["predicted", "skip"])
def test_a_gradient_scaler_of_lightning_changes_nothing(tmp_path: Path, source: str) -> None:
    runs = []
    for scaled in (False, True):
        module, callback = Module(), AdaGPCallback(ladder(source))
        plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0))
        plugin.autocast_context_manager = lambda: torch.autocast("cpu", enabled=False)  # type: ignore[method-assign, assignment, return-value]
        fit(tmp_path, module, callback, gradient_clip_val=0.1, plugins=[plugin] if scaled else [])
        assert callback.gp is not None
        runs.append((module, callback.gp.quality()))
    assert same(runs[0][0], runs[1][0])
    assert runs[0][1] == runs[1][1]


def test_the_logs_have_counts_and_quality(tmp_path: Path) -> None:
    callback = AdaGPCallback(ladder())
    made = fit(tmp_path, Module(), callback)
    assert callback.gp is not None
    figures = {name: float(value) for name, value in made.logged_metrics.items()}
    assert {name: figures[f"adagp_{name}"] for name in callback.gp.counts()} == callback.gp.counts()
    assert figures["adagp_norm_ratio"] > 0


def test_validation_in_the_middle_of_an_accumulated_batch_is_no_part_of_it(tmp_path: Path) -> None:
    found = []
    for validation in (None, loader()):
        module = Module()
        options: dict[str, Any] = {"accumulate_grad_batches": 2, "val_check_interval": 1, "num_sanity_val_steps": 1}
        made = trainer(tmp_path, AdaGPCallback(ladder()), **options)
        made.fit(module, loader(), validation)
        found.append(module)
    assert same(*found)


def test_a_training_step_that_gives_none_is_left_out(tmp_path: Path) -> None:
    class Skips(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = super().training_step(batch, batch_idx)
            return None if batch_idx == 1 else loss

    plain, ours = Skips(), Skips()
    fit(tmp_path, plain)
    callback = AdaGPCallback(schedules.always_backprop(), None)
    fit(tmp_path, ours, callback)
    assert same(plain, ours)
    assert callback.gp is not None
    assert callback.gp.step_index == 15


def test_an_error_leaves_no_plan_in_force(tmp_path: Path) -> None:
    class Fails(Module):
        def on_before_backward(self, loss: Tensor) -> None:
            if self.global_step == 4:
                raise ZeroDivisionError

    module, callback = Fails(), AdaGPCallback(ladder())
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, module, callback)
    assert torch.is_grad_enabled()
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert callback.gp is not None
    assert callback.gp._current.listener is None
    assert {"training_step", "backward"}.isdisjoint(vars(module))
    assert not any(one._forward_hooks for one in module.modules())


def test_a_compiled_module_trains_alike(tmp_path: Path) -> None:
    """Without `self.log`: torch 2.13 cannot compile Lightning's, with or without AdaGP."""

    class Quiet(Module):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            return cross_entropy(self.net(x), y)

    plain, other = Quiet(), Quiet()
    first, second = AdaGPCallback(ladder()), AdaGPCallback(ladder())
    fit(tmp_path, plain, first, max_epochs=2)
    fit(tmp_path, torch.compile(other, backend="eager"), second, max_epochs=2)  # type: ignore[arg-type]
    assert first.gp is not None
    assert second.gp is not None
    assert first.gp.counts() == second.gp.counts()
    for a, b in zip(plain.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


class Manual(Module):
    """Optimizes manually: two optimizers, and the backward is Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.gp: AdaGP | None = None
        self.saved: dict[str, Any] | None = None

    def configure_optimizers(self) -> Any:
        parts = list(self.parameters())
        return [torch.optim.Muon([one for one in parts if one.dim() == 2]), torch.optim.AdamW(parts[1::2], lr=0.01)]

    def on_fit_start(self) -> None:
        self.gp = AdaGP(self, self.optimizers(), ladder())  # type: ignore[arg-type]
        if self.saved is not None:
            self.gp.load_state_dict(self.saved)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        assert self.gp is not None
        return self.gp.step(lambda: cross_entropy(self.net(x), y), backward=self.manual_backward)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self.gp is not None
        checkpoint["gp"] = self.gp.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.saved = checkpoint["gp"]


def test_the_manual_form_with_two_optimizers_resumes_bit_exactly(tmp_path: Path) -> None:
    whole, resumed = Manual(), Manual()
    saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
    made = fit(tmp_path, whole, saving, enable_checkpointing=True)
    assert whole.gp is not None
    assert made.global_step == 2 * whole.gp.step_index == 30  # Lightning counts the steps of both optimizers
    fit(tmp_path, resumed, path=str(tmp_path / "epoch=1.ckpt"))
    assert resumed.gp is not None
    assert same(whole.net, resumed.net)
    assert whole.gp.counts() == resumed.gp.counts()
    assert whole.gp.counts()["predicted"] > 0


def test_what_cannot_work_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Manual optimizes manually: leave AdaGPCallback out"):
        fit(tmp_path, Manual(), AdaGPCallback(ladder()))
    with pytest.raises(ValueError, match="LBFGS evaluates a batch several times"):
        fit(tmp_path, Module(torch.optim.LBFGS), AdaGPCallback(ladder()))


class Sizes(Module):
    """A module for images, which notes their sizes."""

    def __init__(self) -> None:
        super().__init__(lambda parts: torch.optim.SGD(parts, lr=0.1))
        self.net = image_net()
        self.sizes: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.sizes.append(batch[0].shape[-1])
        return super().training_step(batch, batch_idx)


def test_small_images_first_give_what_a_loop_by_hand_gives(tmp_path: Path) -> None:
    module = Sizes()
    ours = AdaGPCallback(
        schedules.progressive(10), None, resize=lambda batch, scale: (coarse.images(batch[0], scale), batch[1])
    )
    data: Any = DataLoader(image_samples(20), batch_size=4)  # type: ignore[arg-type]
    trainer(tmp_path, ours, max_epochs=2).fit(module, data)
    assert module.sizes == [4] * 6 + [8] * 4
    assert same(module.net, trained_by_hand_on_growing_images(batches=5, steps=10))


def test_coarse_batches_that_nothing_makes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coarse batches .scale 0.5.*resize="):
        AdaGPCallback(schedules.progressive(10))
    by_function = AdaGPCallback(lambda step: schedules.progressive(10)(step), None)
    with pytest.raises(RuntimeError, match="step 0 is a coarse batch"):
        fit(tmp_path, Module(), by_function)
