"""A plain training loop with `adagp` in it: train, save, resume bit for bit.

    python examples/own_loop.py

Without `adagp` the inner loop would be forward, `loss.backward()`, `optimizer.step()`, `optimizer.zero_grad()`. Here it
is one line, `gp.step`. The script trains a small CNN for six epochs. Then it starts again, saves a checkpoint after
three epochs, continues from that file with new objects, and compares the weights of both runs. The images are made
here, so nothing is downloaded.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from adagp import AdaGP, schedules

CLASSES, SIZE, BATCH, EPOCHS = 10, 12, 32, 6


def make_images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """One random pattern per class, shifted by up to two pixels and covered with noise."""
    patterns = torch.randn(CLASSES, 1, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    shifts = torch.randint(-2, 3, (count, 2), generator=generator).tolist()
    images = torch.stack(
        [patterns[label].roll(shift, (1, 2)) for label, shift in zip(labels.tolist(), shifts, strict=True)]
    )
    return images + 0.8 * torch.randn(images.shape, generator=generator), labels


TRAIN, TEST = make_images(800, seed=1), make_images(400, seed=2)
STEPS_PER_EPOCH = len(TRAIN[0]) // BATCH


class Training:
    """The model, its optimizer, its learning-rate schedule and its AdaGP."""

    def __init__(self) -> None:
        """Build everything from one seed."""
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(288, CLASSES),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.lr_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, EPOCHS)
        schedule = schedules.ladder(STEPS_PER_EPOCH, warmup_epochs=2, rung_epochs=1)
        self.gp = AdaGP(self.model, self.optimizer, schedule)

    def train_epoch(self, epoch: int) -> None:
        """One epoch, in an order that depends on the epoch's number alone, so that a resumed run sees the same."""
        self.model.train()
        images, labels = TRAIN
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for chosen in order.split(BATCH):
            x, y = images[chosen], labels[chosen]
            self.gp.step(lambda x=x, y=y: nn.functional.cross_entropy(self.model(x), y))
        self.lr_schedule.step()

    def accuracy(self) -> float:
        """Share of the test images whose class is right."""
        self.model.eval()
        images, labels = TEST
        with torch.no_grad():
            return float((self.model(images).argmax(1) == labels).float().mean())

    def save(self, path: Path, epoch: int) -> None:
        """Save what a resumed run needs: `gp.state_dict()` goes next to the model's and the optimizer's."""
        state = {
            "epoch": epoch,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "lr_schedule": self.lr_schedule.state_dict(),
            "gp": self.gp.state_dict(),
        }
        torch.save(state, path)

    def load(self, path: Path) -> int:
        """Take over what `save` wrote, and return the epoch to continue with."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.lr_schedule.load_state_dict(state["lr_schedule"])
        self.gp.load_state_dict(state["gp"])
        return int(state["epoch"])


def main() -> None:
    """Train without a pause, train with one, and compare."""
    whole = Training()
    print(whole.gp.coverage())
    for epoch in range(EPOCHS):
        plan = whole.gp.next_plan()
        whole.train_epoch(epoch)
        print(f"epoch {epoch}: starts in {plan.phase.value:6} test accuracy {whole.accuracy():.1%}")
    print(f"layer updates by source: {whole.gp.counts()}")

    with TemporaryDirectory() as folder:
        checkpoint = Path(folder, "checkpoint.pt")
        first = Training()
        for epoch in range(EPOCHS // 2):
            first.train_epoch(epoch)
        first.save(checkpoint, EPOCHS // 2)

        resumed = Training()
        for epoch in range(resumed.load(checkpoint), EPOCHS):
            resumed.train_epoch(epoch)

    same = all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True)
    )
    print(f"the resumed run has the same weights, bit for bit: {same}")


if __name__ == "__main__":
    main()
