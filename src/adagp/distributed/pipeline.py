"""Pipelines: one stage of a model on each rank, run by `torch.distributed.pipelining`, with predicted gradients.

A BP batch runs under the user's own schedule (GPipe, 1F1B), as it is. A GP batch has no backward, so nothing ever comes
back to a stage: it runs its micro-batches, updates its own layers, and takes up the next batch while later stages are
still at work. Every rank has an `AdaGP` of its own over its stage, with a predictor of its own, and sends nothing but
activations in GP.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import Work, batch_isend_irecv
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from adagp._engine.batch import Batch
from adagp._engine.engine import AdaGP
from adagp._engine.finite import NonFiniteError
from adagp.schedules import Phase


def stage_of(parts: Sequence[nn.Module], index: int, example: Tensor, device: torch.device) -> PipelineStage:
    """The stage of a rank, with the shapes that torch would otherwise find by a forward of uninitialised numbers.

    Args:
        parts: The modules of all stages, each taking and giving one tensor. Only the own one is moved to `device`.
        index: Which of them is this rank's.
        example: An input of the first stage, of the size of a micro-batch; its values do not matter.
        device: Where this rank computes.
    """
    shape = torch.empty_like(example, device="meta")
    for part in parts[:index]:
        shape = _output(part, shape)
    module = parts[index].to(device)
    return PipelineStage(module, index, len(parts), device, input_args=shape, output_args=_output(module, shape))


def _output(part: nn.Module, given: Tensor) -> Tensor:
    """The shape of a module's output, found on the meta device; torch asks it whether a gradient will come back."""
    with torch.no_grad():
        output = copy.deepcopy(part).to("meta")(given)
    if not isinstance(output, Tensor):
        raise TypeError(f"a stage gives {type(output).__name__}, not one tensor: cut the model elsewhere")
    return output.requires_grad_()


class ForwardSchedule(PipelineScheduleSingle):
    """Forward only, without waiting at the end.

    Torch's own waits until the next stage has taken every output, which would bring the bubble back. Here that is
    waited for a batch later, and the input of the next micro-batch is requested before the present one is processed.
    """

    def __init__(
        self, stage: PipelineStage, n_microbatches: int, around: Callable[[Callable[[], Any]], Any] | None = None
    ) -> None:
        """`around` is given the forward of each micro-batch, and runs it."""
        super().__init__(stage, n_microbatches)
        self._around = around or (lambda work: work())
        self._sent: list[Work] = []

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        inputs, named = self._check_inputs(arg_mbs, kwarg_mbs, target_mbs, losses)
        self._initialize_stage(inputs[0], named[0])  # type: ignore[no-untyped-call]
        stage, earlier, self._sent = self._stage, self._sent, []
        arriving = _start(stage.get_fwd_recv_ops(0))
        for index in range(self._n_microbatches):
            _wait(arriving)
            arriving = _start(stage.get_fwd_recv_ops(index + 1)) if index + 1 < self._n_microbatches else []

            def forward(index: int = index) -> Any:
                return stage.forward_one_chunk(index, inputs[index], named[index])

            self._around(forward)
            self._sent += _start(stage.get_fwd_send_ops(index))
            del stage.fwd_cache[index]  # there is no backward that would need it
        _wait(earlier)

    def finish(self) -> None:
        """Wait until the next stage has everything; before the process group is left."""
        _wait(self._sent)
        self._sent = []


class Pipeline:
    """One stage's share of training: call `step` on every rank for every batch.

    In a BP batch each layer is updated once, with the gradient over all micro-batches. In a GP batch too, from what it
    saw in all of them.
    """

    def __init__(self, schedule: PipelineScheduleSingle, gp: AdaGP) -> None:
        """Combine a schedule and the AdaGP of its stage.

        Args:
            schedule: One stage per rank, such as `ScheduleGPipe` or `Schedule1F1B`, with a loss function.
            gp: Over the stage's module and an optimizer of its parameters; the same schedule of phases on every rank.
        """
        self._refuse(schedule, gp)
        gp.join_pipeline()
        stage = schedule._stage
        assert isinstance(stage, PipelineStage)
        self._schedule, self._gp = schedule, gp
        self._count = schedule._n_microbatches
        # A stage of its own: a schedule that switches between training and evaluation sets up its connections again.
        twin = PipelineStage(
            stage.submod,
            stage.stage_index,
            stage.num_stages,
            stage.device,
            input_args=_empty(stage._user_meta.inputs),
            output_args=_empty(stage._user_meta.outputs),
            group=stage.group,
        )
        self._forward = ForwardSchedule(twin, self._count, self._around)
        self._batch: Batch | None = None

    @staticmethod
    def _refuse(schedule: PipelineScheduleSingle, gp: AdaGP) -> None:
        stage = schedule._stage
        if schedule._loss_fn is None:
            raise ValueError("the schedule has no loss function: build it with loss_fn=...")
        if gp.model is not stage.submod:
            raise ValueError(f"gp is not that of stage {stage.stage_index}: build AdaGP over the stage's own module")
        if not isinstance(stage, PipelineStage) or not stage._user_meta.is_complete_for_forward():
            raise ValueError(
                f"stage {stage.stage_index} was built without input_args and output_args: torch would find the shapes "
                "by a forward of uninitialised numbers, which reaches batch norm's statistics and the predictor; build "
                "it by adagp.distributed.stage_of, or give PipelineStage both"
            )

    def step(self, *inputs: Any, target: Tensor | None = None, **named: Any) -> Tensor | None:
        """Run one batch: forward, gradients, optimizer.

        Args:
            inputs: The model's inputs, on the first stage only.
            target: What the loss function compares with, on the last stage only.
            named: Keyword inputs of this stage.

        Returns:
            The mean loss of the micro-batches on the last stage, else None.
        """
        last = self._schedule._stage.is_last
        if self._gp.next_plan().phase is Phase.GP:
            loss = self._step_forward(inputs, named, target if last else None)
        else:
            loss = self._step_backward(inputs, named, target if last else None)
        if loss is not None and not bool(loss.isfinite()):
            raise NonFiniteError(
                f"the loss is not finite at step {self._gp.step_index - 1}: lower the learning rate, clip gradients, "
                "or resume from the last checkpoint"
            )
        return loss

    def finish(self) -> None:
        """Wait until the next stage has everything; call it before the process group is destroyed."""
        self._forward.finish()

    def _step_backward(self, inputs: Any, named: dict[str, Any], target: Tensor | None) -> Tensor | None:
        stage = self._schedule._stage
        losses: list[Tensor] = []
        with self._gp.batch() as batch:
            others = sorted({task.source.name for task in batch.resolved.tasks.values()} - {"backprop"})
            if others:
                raise ValueError(
                    f"the plan of step {batch.step_index} gives layers of stage {stage.stage_index} "
                    f"{', '.join(others)} in a batch with a backward: in a pipeline a batch is either all 'backprop' "
                    "or a GP batch"
                )
            self._schedule.step(*inputs, target=target, losses=losses, **named)
            batch.ran_backward()
        self._update()
        return torch.stack(losses).mean().detach() if losses else None

    def _step_forward(self, inputs: Any, named: dict[str, Any], target: Tensor | None) -> Tensor | None:
        with self._gp.batch() as self._batch:
            output = self._forward.step(*inputs, **named)
        if self._batch.failed:
            raise NonFiniteError(
                f"a prediction of stage {self._schedule._stage.stage_index} is not finite at step "
                f"{self._batch.step_index}: lower the learning rate, or resume from the last checkpoint"
            )
        self._update()
        if target is None:
            return None
        with torch.no_grad():
            pairs = zip(output.chunk(self._count), target.chunk(self._count), strict=True)
            return torch.stack([self._schedule._compute_loss(*pair) for pair in pairs]).mean()

    def _around(self, forward: Callable[[], Any]) -> None:
        """The forward of one micro-batch in GP."""
        assert self._batch is not None
        forward()
        self._batch.ran_forward()

    def _update(self) -> None:
        for optimizer in self._gp.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _start(operations: list[Any]) -> list[Work]:
    return batch_isend_irecv(operations) if operations else []


def _wait(works: list[Work]) -> None:
    for work in works:
        work.wait()


def _empty(metas: Any) -> tuple[Tensor, ...]:
    """Tensors of the shapes that the user gave, for another stage of the same shapes."""
    return tuple(torch.empty(meta.shape, dtype=meta.dtype, device="meta") for meta in metas)
