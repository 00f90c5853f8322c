"""Trainer with AdaGP: what Trainer does stays, and what it gives is what a loop by hand gives."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, coarse, schedules
from tests.integrations.libraries import (
    image_net,
    image_samples,
    needs,
    norm_of,
    same,
    trained_by_hand_on_growing_images,
)

needs("transformers", "accelerate", "peft")

import peft  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments  # noqa: E402

from adagp.integrations.transformers import AdaGPTrainer, AdaGPTrainerMixin  # noqa: E402

STEPS_PER_EPOCH = 3
"""Five micro-batches an epoch in pairs: the last optimizer step has one."""


def llama(layers: int = 2) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16,
        )
    )  # fmt: skip


def texts() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 24, (20, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 3, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True, "learning_rate": 1e-2,
    }  # fmt: skip
    return TrainingArguments(str(folder), **{**defaults, **more})


def ladder(source: str = "predicted") -> schedules.Schedule:
    """One epoch of warm-up; then GP, GP, BP."""
    return schedules.ladder(STEPS_PER_EPOCH, 1, 1, rungs=((2, 1),), source=source)


def trained(folder: Path, resume: Any = None, model: nn.Module | None = None, **more: Any) -> AdaGPTrainer:
    trainer = AdaGPTrainer(model or llama(), arguments(folder, **more), train_dataset=texts(), schedule=ladder())
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_under_backprop_it_is_plain_trainer(tmp_path: Path) -> None:
    plain = Trainer(llama(), arguments(tmp_path), train_dataset=texts())
    plain.train()
    ours = AdaGPTrainer(
        llama(), arguments(tmp_path), train_dataset=texts(), schedule=schedules.always_backprop(), predictor=None
    )
    ours.train()
    assert same(plain.model, ours.model)
    assert ours.gp is not None
    assert ours.gp.step_index == ours.state.global_step == 9
    before, after = (
        [{name: value for name, value in row.items() if name in ("loss", "grad_norm", "learning_rate", "step")}
         for row in one.state.log_history[:-1]]
        for one in (plain, ours)
    )  # fmt: skip
    assert before == after


class Recording(AdaGPTrainer):
    """Keeps every micro-batch with what Trainer divides its loss by, and the phase and gradient norm of each step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[list[tuple[dict[str, Tensor], Any]]] = [[]]
        self.norms: list[tuple[Phase, float]] = []
        self.graphs: list[tuple[Phase, bool]] = []
        recording = self

        class Watch(TrainerCallback):
            def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
                assert recording.gp is not None
                phase = recording.gp.schedule(recording.gp.step_index - 1).phase
                recording.norms.append((phase, norm_of(recording.model.parameters())))
                recording.seen.append([])

        self.add_callback(Watch())

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        self.seen[-1].append((dict(inputs), num_items_in_batch))
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        assert self.gp is not None
        self.graphs.append((self.gp.phase, loss.requires_grad))
        return loss


def by_hand(
    steps: Sequence[Sequence[tuple[dict[str, Tensor], Any]]], clip: float, source: str
) -> tuple[nn.Module, AdaGP]:
    """The same micro-batches in a loop of one's own."""
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    gp = AdaGP(model, optimizer, ladder(source))
    for micro_batches in steps:
        with gp.batch() as batch:
            for inputs, items in micro_batches:
                batch.backward(model(**inputs, num_items_in_batch=items).loss)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        batch.step()
        optimizer.zero_grad()
    return model, gp


@pytest.mark.parametrize(("source", "clip"), [("predicted", 1e-5), ("last", 0.02)])
def test_accumulation_and_clipping_give_what_a_loop_by_hand_gives(tmp_path: Path, source: str, clip: float) -> None:
    model = llama()
    trainer = Recording(
        model, arguments(tmp_path, max_grad_norm=clip, lr_scheduler_type="constant"), train_dataset=texts(),
        optimizers=(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), None), schedule=ladder(source),
    )  # fmt: skip
    trainer.train()
    steps = [step for step in trainer.seen if step]
    assert [len(step) for step in steps] == [2, 2, 1] * 3
    other, gp = by_hand(steps, clip, source)
    assert same(model, other)
    assert trainer.gp is not None
    assert trainer.gp.quality() == gp.quality()
    assert trainer.gp.counts() == gp.counts()
    assert {phase for phase, _ in trainer.norms} == set(Phase)
    assert all(norm <= clip * 1.001 for _, norm in trainer.norms)
    clipped = [phase for phase, norm in trainer.norms if norm > clip * 0.99]
    assert {Phase.WARMUP, Phase.BP, Phase.GP} == set(clipped), "gradients of every phase were larger and were clipped"
    assert all(has_graph == (phase is not Phase.GP) for phase, has_graph in trainer.graphs)


FEATURES: dict[str, dict[str, Any]] = {
    "accumulation": {},
    "bf16": {"bf16": True},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "eager"},
    "adafactor": {"optim": "adafactor"},
}


SLOW = {"torch_compile"}
"""What takes most of a minute before it begins."""


def marked(features: Iterable[str]) -> list[Any]:
    return [pytest.param(one, marks=[pytest.mark.slow] if one in SLOW else []) for one in features]


@pytest.mark.parametrize("feature", marked(FEATURES))
def test_resume_from_trainers_checkpoint_is_bit_exact(feature: str, tmp_path: Path) -> None:
    more = FEATURES[feature]
    whole = trained(tmp_path, model=llama(1), save_strategy="steps", save_steps=2, save_total_limit=3, **more)
    assert whole.gp is not None
    assert whole.gp.counts()["predicted"] > 0
    assert (tmp_path / "checkpoint-6" / "adagp.pt").is_file()
    resumed = trained(tmp_path / "other", resume=str(tmp_path / "checkpoint-6"), model=llama(1), **more)
    assert resumed.gp is not None
    assert same(whole.model, resumed.model)
    assert whole.gp.quality() == resumed.gp.quality()
    assert whole.gp.counts() == resumed.gp.counts()


def test_it_resumes_from_the_last_checkpoint_and_names_what_is_missing(tmp_path: Path) -> None:
    whole = trained(tmp_path, save_strategy="steps", save_steps=4)
    shutil.rmtree(tmp_path / "checkpoint-9")
    resumed = trained(tmp_path, resume=True)
    assert same(whole.model, resumed.model)
    (tmp_path / "checkpoint-8" / "adagp.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint-8.adagp\.pt is missing: .*without AdaGP"):
        trained(tmp_path, resume=True)


@pytest.mark.parametrize("feature", marked(["gradient checkpointing", "torch_compile"]))
def test_gradient_checkpointing_and_compile_train_as_without(feature: str, tmp_path: Path) -> None:
    plain, other = trained(tmp_path, model=llama(1)), trained(tmp_path, model=llama(1), **FEATURES[feature])
    assert other.gp is not None
    assert plain.gp is not None
    assert plain.gp.counts() == other.gp.counts()
    for a, b in zip(plain.model.parameters(), other.model.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3)


@pytest.mark.parametrize("source", ["predicted", "skip"])
def test_a_gradient_scaler_of_trainer_changes_nothing(tmp_path: Path, source: str) -> None:
    """fp16 needs a GPU; its scaler does not, but Trainer unscales before it clips only in fp16."""
    runs = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0)):
        trainer = AdaGPTrainer(llama(), arguments(tmp_path, max_grad_norm=0), train_dataset=texts(), schedule=ladder())
        trainer.accelerator.scaler = scaler
        trainer.train()
        runs.append(trainer)
    assert same(runs[0].model, runs[1].model)
    assert runs[0].gp is not None
    assert runs[1].gp is not None
    assert runs[0].gp.quality() == runs[1].gp.quality()


def test_the_logs_have_counts_and_quality(tmp_path: Path) -> None:
    trainer = trained(tmp_path)
    assert trainer.gp is not None
    last = [row for row in trainer.state.log_history if "loss" in row][-1]
    assert {name: last[f"adagp_{name}"] for name in trainer.gp.counts()} == trainer.gp.counts()
    assert last["adagp_cosine"] != 0
    assert last["adagp_norm_ratio"] > 0


def test_it_fits_before_a_trainer_of_ones_own_with_a_second_training_and_evaluation(tmp_path: Path) -> None:
    calls: list[str] = []

    class Own(Trainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            calls.append("loss")
            return super().compute_loss(*args, **kwargs)

    class Both(AdaGPTrainerMixin, Own):
        pass

    model = llama()
    trainer = Both(
        model, arguments(tmp_path, eval_strategy="epoch"), train_dataset=texts(), eval_dataset=texts()[:4],
        schedule=ladder(), adagp={"exclude": "lm_head"},
    )  # fmt: skip
    trainer.train()
    assert trainer.gp is not None
    assert not any(row.covered for row in trainer.gp.coverage().rows if row.layer == "lm_head")
    assert trainer.gp.step_index == 9
    first = trainer.gp
    trainer.train()
    assert trainer.gp is not first
    assert trainer.gp.step_index == 9
    assert len(calls) == 2 * 3 * (5 + 1)


def test_only_the_adapters_of_a_lora_model_train(tmp_path: Path) -> None:
    base = llama()
    before = [parameter.detach().clone() for parameter in base.parameters()]
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    trainer = trained(tmp_path, model=model)
    assert trainer.gp is not None
    assert trainer.gp.counts()["predicted"] > 0
    frozen = [part for name, part in base.named_parameters() if "lora" not in name]
    assert all(torch.equal(old, new) for old, new in zip(before, frozen, strict=True))
    assert {row.layer.rpartition(".")[0].rpartition(".")[2] for row in trainer.gp.coverage().rows if row.covered} == {
        "lora_A",
        "lora_B",
    }


class ImageClassifier(nn.Module):
    """A model as Trainer calls them, which notes the sizes of its images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = image_net()
        self.sizes: list[int] = []

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.sizes.append(pixel_values.shape[-1])
        return {"loss": nn.functional.cross_entropy(self.net(pixel_values), labels)}


class InOrder(AdaGPTrainer):
    """Without shuffling, and with a constant rate, as the loop by hand."""

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(self.train_dataset, batch_size=4)

    def create_optimizer(self, model: Any = None) -> Any:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        return self.optimizer


def smaller(inputs: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    return {**inputs, "pixel_values": coarse.images(inputs["pixel_values"], scale)}


def test_small_images_first_give_what_a_loop_by_hand_gives(tmp_path: Path) -> None:
    model = ImageClassifier()
    settings = arguments(
        tmp_path, num_train_epochs=2, gradient_accumulation_steps=1, lr_scheduler_type="constant", max_grad_norm=0.0
    )
    data = [{"pixel_values": image, "labels": label} for image, label in image_samples(20)]
    trainer = InOrder(
        model, settings, train_dataset=data, schedule=schedules.progressive(10), predictor=None, resize=smaller
    )
    trainer.train()
    assert model.sizes == [4] * 6 + [8] * 4
    assert same(model.net, trained_by_hand_on_growing_images(batches=5, steps=10))


def test_coarse_batches_that_nothing_makes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"coarse batches .scale 0.5.*resize="):
        AdaGPTrainer(ImageClassifier(), arguments(tmp_path), schedule=schedules.progressive(10))
