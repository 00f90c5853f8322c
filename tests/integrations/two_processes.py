"""Trains in two processes with one of the libraries, and saves what each rank ends with: a script for a test."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from adagp import AdaGP, schedules
from tests.integrations.libraries import micro_batches, net, samples


def ladder() -> schedules.Schedule:
    return schedules.ladder(3, 1, 1, rungs=((2, 1),))


def save(folder: str, rank: int, called: nn.Module, plain: nn.Module, gp: AdaGP | None) -> None:
    assert gp is not None
    parameters = [parameter.detach() for parameter in plain.parameters()]
    found = {"wrapper": type(called).__name__, "counts": gp.counts(), "parameters": parameters}
    torch.save(found, Path(folder) / f"{rank}.pt")


def with_accelerate(folder: str) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    plain = net()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(samples(48), batch_size=4)  # type: ignore[arg-type]
    model, prepared, data = accelerator.prepare(plain, optimizer, loader)
    gp = AdaGP(model, prepared, ladder())
    for _ in range(3):
        for x, y in data:
            with accelerator.accumulate(model):
                gp.step(
                    lambda x=x, y=y: cross_entropy(model(x), y),
                    backward=accelerator.backward,
                    last=accelerator.sync_gradients,
                )
    save(folder, accelerator.process_index, model, plain, gp)


def with_transformers(folder: str) -> None:
    from tests.integrations.test_transformers import AdaGPTrainer, arguments, llama, texts

    trainer = AdaGPTrainer(
        llama(1), arguments(Path(folder) / "runs"), train_dataset=texts(), schedule=schedules.ladder(2, 1, 1)
    )
    trainer.train()
    save(folder, trainer.args.process_index, trainer.model_wrapped, trainer.model, trainer.gp)


def with_lightning(folder: str) -> None:
    from tests.integrations.test_lightning import AdaGPCallback, Callback, Module, loader, trainer

    class Save(Callback):
        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            save(folder, trainer.global_rank, trainer.model, pl_module, ours.gp)

    ours = AdaGPCallback(ladder())
    both = {"strategy": "ddp_fork", "devices": 2, "accumulate_grad_batches": 2, "max_epochs": 5}
    trainer(Path(folder), ours, Save(), **both).fit(Module(), loader())


def with_fabric(folder: str) -> None:
    from lightning.fabric import Fabric

    Fabric(accelerator="cpu", devices=2, strategy="ddp_fork").launch(_fabric_rank, folder)


def _fabric_rank(fabric: Any, folder: str) -> None:
    plain = net()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=0.01))
    gp = AdaGP(model, optimizer, ladder())
    data = micro_batches(12)[fabric.global_rank :: 2]
    for _ in range(3):
        for index, (x, y) in enumerate(data):
            last = index % 2 == 1
            with fabric.no_backward_sync(model, enabled=not last):
                gp.step(lambda x=x, y=y: cross_entropy(model(x), y) / 2, backward=fabric.backward, last=last)
    save(folder, fabric.global_rank, gp.model, plain, gp)


if __name__ == "__main__":
    library, where = sys.argv[1:]
    if library in ("accelerate", "transformers"):
        from accelerate import debug_launcher

        debug_launcher(globals()[f"with_{library}"], (where,), num_processes=2)
    else:
        globals()[f"with_{library}"](where)
