"""Pipelines: one stage of a model on each rank, run by `torch.distributed.pipelining`, with cheaper gradients.

A BP batch runs under the user's own schedule (GPipe, 1F1B), as it is; a coarse one under another, whose stage has its
shapes. A GP batch has no backward, so nothing ever comes
back to a stage: it runs its micro-batches, updates its own layers, and takes up the next batch while later stages are
still at work. In a batch of local losses nothing comes back either: the backward of a stage starts at its own head, as
soon as the forward of a micro-batch is done. Every rank has an `AdaGP` of its own over its stage, with a predictor or a
head of its own, and sends nothing but activations in such batches.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed import Work, batch_isend_irecv
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from adagp._engine.batch import Batch
from adagp._engine.engine import AdaGP
from adagp._engine.finite import NonFiniteError
from adagp.distributed.lost import REMEDY, LostRankError, is_lost
from adagp.errors import AdagpError
from adagp.schedules import Phase

TorchSchedule = PipelineScheduleSingle | PipelineScheduleMulti
"""A schedule of one stage on this rank, or of several."""

GRADIENTS = ("backprop", "local")
"""Where gradients come from in batches that have a backward."""


class LostStageError(LostRankError):
    """A neighbour in the pipeline has died, or answers no more."""


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

    def __init__(self, stage: PipelineStage, n_microbatches: int) -> None:
        """Nothing has been sent."""
        super().__init__(stage, n_microbatches)
        self.around: Callable[[int, Callable[[], Any]], None] = lambda index, forward: forward()
        """Given the number of a micro-batch and its forward, which it runs."""
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

            self.around(index, forward)
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
    saw in all of them, and in a batch of local losses from those of all micro-batches.
    """

    def __init__(
        self,
        schedule: TorchSchedule,
        gp: AdaGP,
        gradients: str = "backprop",
        coarse: Mapping[float, TorchSchedule] = MappingProxyType({}),
    ) -> None:
        """Combine a schedule and the AdaGP of its stage.

        Args:
            schedule: One stage per rank, such as `ScheduleGPipe`, `Schedule1F1B` or `ScheduleInterleavedZeroBubble` of
                one stage, with a loss function.
            gp: Over the stage's module and an optimizer of its parameters; the same schedule of phases on every rank.
            gradients: With `local` every stage but the last gets a head like those of the source `local`, and the
                batches in which gp's schedule asks for that source have no bubble. All ranks must build it together:
                they tell each other the shapes.
            coarse: For each scale below 1 that gp's schedule asks for, a schedule of the same module whose stage has
                the shapes of such samples: `stage_of` with a smaller example.
        """
        for each in (schedule, *coarse.values()):
            self._refuse(each, gp, gradients)
        stage = _stage_of(schedule)
        assert isinstance(stage, PipelineStage)
        gp.join_pipeline(stage.stage_index, _shapes(stage) if gradients == "local" else None)
        self._schedules = {**coarse, 1.0: schedule}
        if gp.schedule.wants_probes:
            raise ValueError(
                f"{type(gp.schedule).__name__} evaluates some batches at several scales, which a pipeline cannot do: "
                "use schedules.progressive"
            )
        for scale in sorted(gp.schedule.scales):
            self._schedule_at(scale)
        assert schedule._loss_fn is not None
        self._schedule, self._stage, self._gp = schedule, stage, gp
        self._loss: Callable[[Any, Any], Tensor] = schedule._loss_fn
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
        self._forward = ForwardSchedule(twin, self._count)

    @staticmethod
    def _refuse(schedule: TorchSchedule, gp: AdaGP, gradients: str) -> None:
        if gradients not in GRADIENTS:
            raise ValueError(f"gradients = {gradients!r}: choose {' or '.join(GRADIENTS)}")
        stage = _stage_of(schedule)
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

    @property
    def scale(self) -> float:
        """The fraction of their size that the samples of the next batch are to have; 1 but for coarse batches."""
        return self._gp.next_plan().scale

    def _schedule_at(self, scale: float) -> TorchSchedule:
        if scale not in self._schedules:
            raise ValueError(
                f"gp's schedule has coarse batches (scale {scale:g}), whose shapes the stage does not have: give "
                f"Pipeline coarse={{{scale:g}: schedule}}, with a stage made by stage_of for samples of that size"
            )
        return self._schedules[scale]

    def step(self, *inputs: Any, target: Tensor | None = None, **named: Any) -> Tensor | None:
        """Run one batch: forward, gradients, optimizer.

        Args:
            inputs: The model's inputs, on the first stage only; at `scale` times their size.
            target: What the loss function compares with: on the last stage, and with local losses on all of them.
            named: Keyword inputs of this stage.

        Returns:
            The mean loss of the micro-batches on the last stage, else None.
        """
        last, plan = self._stage.is_last, self._gp.next_plan()
        with self._explained():
            if plan.phase is Phase.GP:
                loss = self._step_forward(inputs, named, target if last else None)
            elif plan.default == "local":
                loss = self._step_local(inputs, named, target)
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
        with self._explained():
            self._forward.finish()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Say it where another rank is gone, and show our own errors as they are, which torch wraps in a forward."""
        try:
            yield
        except RuntimeError as error:
            if isinstance(error.__cause__, AdagpError | ValueError | TypeError):
                raise error.__cause__ from None
            if not is_lost(error):
                raise
            index = self._stage.stage_index
            neighbours = [str(other) for other in (index - 1, index + 1) if 0 <= other < self._schedule._num_stages]
            raise LostStageError(
                f"stage {index} lost its connection to stage {' or '.join(neighbours)} at step {self._gp.step_index}, "
                f"because the process there died, stopped by an error of its own, or answers no more: {REMEDY}"
            ) from error

    def _refuse_mixture(self, batch: Batch, source: str) -> None:
        others = sorted({task.source.name for task in batch.resolved.tasks.values()} - {source})
        if others:
            raise ValueError(
                f"the plan of step {batch.step_index} gives layers of stage {self._stage.stage_index} "
                f"{', '.join(others)} in a batch with a backward: in a pipeline a batch is either all 'backprop', all "
                "'local' or a GP batch"
            )

    def _step_backward(self, inputs: Any, named: dict[str, Any], target: Tensor | None) -> Tensor | None:
        losses: list[Tensor] = []
        with self._gp.batch() as batch:
            self._refuse_mixture(batch, "backprop")
            schedule = self._schedule_at(batch.scale)
            _refuse_size(inputs, _stage_of(schedule), batch)
            schedule.step(*inputs, target=target, losses=losses, **named)
            batch.ran_backward()
        self._update()
        return torch.stack(losses).mean().detach() if losses else None

    def _step_forward(self, inputs: Any, named: dict[str, Any], target: Tensor | None) -> Tensor | None:
        with self._gp.batch() as batch:

            def run(_index: int, forward: Callable[[], Any]) -> None:
                forward()
                batch.ran_forward()

            self._forward.around = run
            output = self._forward.step(*inputs, **named)
        if batch.failed:
            raise NonFiniteError(
                f"a prediction of stage {self._stage.stage_index} is not finite at step "
                f"{batch.step_index}: lower the learning rate, or resume from the last checkpoint"
            )
        self._update()
        if target is None:
            return None
        with torch.no_grad():
            pairs = zip(output.chunk(self._count), target.chunk(self._count), strict=True)
            return torch.stack([self._loss(*pair) for pair in pairs]).mean()

    def _step_local(self, inputs: Any, named: dict[str, Any], target: Tensor | None) -> Tensor | None:
        """Each micro-batch has its backward as soon as its forward is done: by the head, or on the last stage here."""
        stage = self._stage
        if target is None:
            raise ValueError(
                f"stage {stage.stage_index} learns from a loss of its own, which needs the labels: give "
                "pipeline.step(..., target=labels) on every rank"
            )
        targets = target.chunk(self._count)
        share = 1 / self._count if self._schedule.scale_grads else 1.0
        losses: list[Tensor] = []
        with self._gp.batch() as batch:
            self._refuse_mixture(batch, "local")

            def run(index: int, forward: Callable[[], Any]) -> None:
                batch.expect_local(targets[index], share=share)
                output = forward()
                if stage.is_last:
                    loss = self._loss(output, targets[index])
                    batch.backward(loss * share)
                    losses.append(loss.detach())
                else:
                    batch.ran_forward()

            self._forward.around = run
            self._forward.step(*inputs, return_outputs=False, **named)
            batch.ran_backward()
        self._update()
        return torch.stack(losses).mean() if losses else None

    def _update(self) -> None:
        for optimizer in self._gp.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


def _stage_of(schedule: TorchSchedule) -> Any:
    """The stage of this rank; ValueError where there are several."""
    if isinstance(schedule, PipelineScheduleSingle):
        return schedule._stage
    if len(schedule._stages) > 1:
        raise ValueError(
            f"{type(schedule).__name__} has {len(schedule._stages)} stages on this rank, against the bubble of waiting "
            "for a backward, which GP and local losses do not have: give each rank one stage, with ScheduleGPipe, "
            "Schedule1F1B or ScheduleInterleavedZeroBubble, or use torch's schedule by itself"
        )
    return schedule._stages[0]


def _refuse_size(inputs: Sequence[Any], stage: PipelineStage, batch: Batch) -> None:
    """Samples of another size would leave the next stage waiting for what never comes."""
    metas = _empty(stage._user_meta.inputs)
    for given, meta in zip(inputs, metas, strict=False):
        if isinstance(given, Tensor) and given.shape[1:] != meta.shape[1:]:
            found, wanted = ("x".join(map(str, shape[1:])) for shape in (given.shape, meta.shape))
            raise ValueError(
                f"the batch of step {batch.step_index} has samples of {found}, and its stage was made for {wanted}: "
                "give samples at pipeline.scale, for example adagp.coarse.images(x, pipeline.scale)"
            )


def _start(operations: list[Any]) -> list[Work]:
    return batch_isend_irecv(operations) if operations else []


def _wait(works: list[Work]) -> None:
    for work in works:
        work.wait()


def _shapes(stage: PipelineStage) -> list[tuple[int, ...]]:
    """The shape of every stage's output without the batch, which the ranks tell each other."""
    own = _empty(stage._user_meta.outputs)
    found: list[Any] = [None] * distributed.get_world_size(stage.group)
    distributed.all_gather_object(found, (stage.stage_index, tuple(own[0].shape[1:])), group=stage.group)
    return [shape for _, shape in sorted(found)]


def _empty(metas: Any) -> tuple[Tensor, ...]:
    """Tensors of the shapes that the user gave, for another stage of the same shapes."""
    return tuple(torch.empty(meta.shape, dtype=meta.dtype, device="meta") for meta in metas)
