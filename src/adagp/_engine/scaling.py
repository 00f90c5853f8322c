"""Who runs the backward of a batch, and by what factor its gradients are scaled when the optimizer finds them."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from adagp._engine.layer_batch import LayerBatch
from adagp._engine.setup import Setup

Backward = Callable[[Tensor], object]
"""Runs the backward of a loss in another library's way, such as `accelerator.backward`."""


class LossScaling:
    """The scale of one batch's loss and gradients.

    After our own backward, the scaler unscales the gradients when the batch ends. After another library's, they are
    left in its scale, and what sources supply is brought to that scale: its optimizer divides all of them.
    """

    def __init__(self, setup: Setup, scaler: GradScaler | None) -> None:
        """Nothing is scaled yet."""
        self.scaler = scaler
        self._setup = setup
        if setup.ranks.shards_rows and self.is_enabled:
            raise ValueError(
                "scaler: the model is sharded by fully_shard, and ranks would find overflows in their own rows only: "
                "use MixedPrecisionPolicy(param_dtype=torch.bfloat16), which needs no GradScaler"
            )
        self._is_scaled = self._is_foreign = False
        self._unscaled: list[Optimizer] = []

    @property
    def is_enabled(self) -> bool:
        """Whether losses are scaled; the scaler then skips steps whose gradients are not finite."""
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def of_gradients(self) -> float:
        """The factor in what backward brought."""
        return self.scaler.get_scale() if self._is_scaled and self.scaler is not None else 1.0

    def backward(self, loss: Tensor, by: Backward | None) -> None:
        """Run the backward."""
        self._is_scaled = self.scaler is not None
        if by is None:
            scaled = loss if self.scaler is None else self.scaler.scale(loss)
            scaled.backward()
            return
        self.hand_over(by)
        factor = _factor_of(by, loss)
        if factor > 1 and self.scaler is None:
            raise RuntimeError(
                f"{_name(by)} multiplied the loss by {factor:g}, as a GradScaler does, and its optimizer would divide "
                "predictions too: give that scaler as well, for example scaler=accelerator.scaler"
            )

    def hand_over(self, by: Backward | None) -> None:
        """Leave the gradients of this batch in another library's scale."""
        self._is_foreign = by is not None
        if self._is_foreign and self.is_enabled and self._setup.options.immediate:
            raise ValueError(
                "immediate=True: another library's GradScaler divides all gradients when the batch is over, and layers "
                "are updated before that: use immediate=False"
            )

    def loss_in_gp(self, loss: Tensor, by: Backward | None) -> Tensor:
        """The loss to differentiate in GP: divided as `by` does it in BP, such as by the number of micro-batches."""
        if by is None:
            return loss
        factor = _factor_of(by, loss.detach().clone().requires_grad_())
        return loss * (factor / (self._factor() if self.is_enabled else 1.0))

    def unscale(self, supplied: Sequence[LayerBatch]) -> None:
        """Unscale what backward brought, and nothing else."""
        if self.scaler is None or not self._is_scaled:
            return
        kept = [(parameter, parameter.grad) for entry in supplied for parameter in entry.layer.parameters()]
        for parameter, _ in kept:
            parameter.grad = None
        if self._is_foreign:
            self._multiply(1 / self._factor())
        else:
            for optimizer in filter(_has_gradients, self._setup.optimizers):
                self.scaler.unscale_(optimizer)
                self._unscaled.append(optimizer)
        for parameter, grad in kept:
            parameter.grad = grad

    def hand_back(self) -> None:
        """Bring every gradient to the scale that another library's optimizer expects."""
        if self._is_foreign and self.is_enabled:
            self._multiply(self._factor())
            for optimizer in self._setup.optimizers:
                if not _has_gradients(optimizer):
                    _give_scaler_a_gradient(optimizer)

    def _factor(self) -> float:
        """The scaler's present factor; a scaler that was never used is initialised by this."""
        assert self.scaler is not None
        return float(self.scaler.scale(torch.ones((), device=self._setup.device)))

    def _multiply(self, factor: float) -> None:
        for parameter in self._setup.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def step(self) -> None:
        """Step every optimizer: through the scaler only where its gradients were scaled."""
        if self._is_foreign and self.is_enabled:
            self._step_foreign()
            return
        for optimizer in self._setup.optimizers:
            if self.scaler is not None and optimizer in self._unscaled:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if self.scaler is not None and self._unscaled:
            self.scaler.update()

    def _step_foreign(self) -> None:
        """An optimizer that wraps another steps through its library's scaler by itself."""
        assert self.scaler is not None
        plain = [optimizer for optimizer in self._setup.optimizers if not hasattr(optimizer, "optimizer")]
        for optimizer in self._setup.optimizers:
            if optimizer in plain:
                self.scaler.step(optimizer)
            else:
                optimizer.step()
        if plain:
            self.scaler.update()


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(part.grad is not None for group in optimizer.param_groups for part in group["params"])


def _give_scaler_a_gradient(optimizer: Optimizer) -> None:
    """A GradScaler raises an error where an optimizer has no gradient; the optimizer itself never sees this one."""
    plain = optimizer
    while hasattr(plain, "optimizer"):
        plain = plain.optimizer
    parameter = min((part for group in plain.param_groups for part in group["params"]), key=Tensor.numel)
    zeros = parameter.grad = torch.zeros_like(parameter)

    def take_away(*_: object) -> None:
        hook.remove()
        if parameter.grad is zeros:
            parameter.grad = None

    hook = plain.register_step_pre_hook(take_away)


def _factor_of(by: Backward, loss: Tensor) -> float:
    """Run another library's backward; returns the factor by which it multiplied the loss before."""
    arrived: list[Tensor] = []
    hook = loss.register_hook(arrived.append)
    try:
        by(loss)
    finally:
        hook.remove()
    if not arrived:
        raise RuntimeError(f"{_name(by)} ran no backward from the loss it was given: it must, as loss.backward() does")
    return float(arrived[0])


def _name(by: Backward) -> str:
    return str(getattr(by, "__qualname__", repr(by)))
