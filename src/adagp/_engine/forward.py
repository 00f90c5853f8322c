"""What happens while the forward of a batch runs: hooks report here."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from adagp._engine.capture.grad_output import deliver_grad_output
from adagp._engine.capture.hooks import Current
from adagp._engine.capture.recorder import Recorder, watched_output
from adagp._engine.graph import GraphCut
from adagp._engine.layer_batch import LayerBatch
from adagp._engine.local import LocalLosses
from adagp.layers import Layer
from adagp.schedules import Phase


class ForwardPass:
    """The forward of one batch, all its micro-batches: the `Listener` of the hooks."""

    def __init__(
        self,
        phase: Phase,
        step_index: int,
        recorder: Recorder,
        graph: GraphCut,
        current: Current,
        local: LocalLosses | None,
    ) -> None:
        """Nothing is recorded before `listen`.

        Args:
            phase: The phase of the batch.
            step_index: Its step, for messages.
            recorder: Records what the predictor asked for.
            graph: What the plan cuts.
            current: Where hooks find this object while the batch is open.
            local: The local losses; None where the schedule never asks for them.
        """
        self.layers: Mapping[str, LayerBatch] = {}
        """The layers that take part, by name."""
        self.recorder = recorder
        self.update_now: Callable[[LayerBatch], None] | None = None
        """Updates a layer at once in GP; None where updates wait for the end of the batch."""
        self.counts_macs = False
        """Whether to count the multiply-adds of the layers."""
        self.macs = 0
        self.is_recording = False
        """Whether anything is recorded. Not in backward, where activation checkpointing runs layers a second time."""
        self._step_index, self._graph, self._current = step_index, graph, current
        self._is_gp, self._local = phase is Phase.GP, local
        self._micro_batch = 0
        self._modes: list[bool] = []

    def listen(self) -> None:
        """Begin to record."""
        self._current.listener = self
        self.is_recording = True

    def pause(self) -> None:
        """Hooks do nothing until the next `listen`."""
        self._current.listener = None

    def stop(self) -> None:
        """Hooks do nothing any more, and nothing keeps the batch alive."""
        self.pause()
        self.update_now = None

    def end_micro_batch(self) -> None:
        """Say that the forward of a micro-batch is over."""
        self.recorder.end_forward()
        self._micro_batch += 1

    @property
    def cuts_graph(self) -> bool:
        """Whether some parameters do not require grad because of the plan."""
        return bool(self._graph) or (self._local is not None and self._local.cuts_graph)

    @property
    def keeps_less(self) -> bool:
        """Whether memory is to be saved between forward and backward."""
        return any(entry.source.keeps_less for entry in self.layers.values())

    def on_call_to_cut(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Called before the forward of a model that may be cut."""
        if self._local is not None and self.is_recording:
            on_call = self._local.on_call
            (torch.compiler.disable(on_call) if torch.compiler.is_compiling() else on_call)(inputs, named)

    def on_cut(self, name: str, output: Any) -> Tensor | None:
        """Called by the forward hook of a module at which the network is cut."""
        if self._local is None:
            return None
        if torch.compiler.is_compiling():  # a backward cannot be part of a compiled forward
            outside: Tensor | None = torch.compiler.disable(self._at_cut)(self._local, name, output)
            return outside
        return self._at_cut(self._local, name, output)

    def _at_cut(self, local: LocalLosses, name: str, output: Any) -> Tensor | None:
        if not self.is_recording:
            return local.at_cut(name, output, is_repeated=True)
        self.is_recording = False
        try:
            return local.at_cut(name, output, is_repeated=False)
        finally:
            self.is_recording = True

    def on_model_call(self) -> None:
        """Called before the model's forward, where the predictor asks for the gradient of the loss at its output."""
        if self.is_recording:
            self.recorder.begin_model_call()
        if self._is_gp:
            self._modes.append(torch.is_grad_enabled())
            torch.set_grad_enabled(False)

    def on_layer_output(self, layer: Layer, layer_input: Any, output: Any) -> Tensor | None:
        """Called by the forward hook of every covered layer; what is returned takes the place of the output."""
        entry = self.layers.get(layer.name)
        if entry is None:
            return None
        if entry.requires_tensor:
            _refuse_output(layer, output)
        if self._is_gp and torch.is_grad_enabled():
            self._current.warn_once(
                "grad mode",
                "step %d is a GP batch, but grad mode is on where layer %r runs: somebody switched it on inside the "
                "batch (automatic optimization in Lightning does), so the whole autograd graph is built, and its time "
                "and memory are not saved; run the forward without torch.enable_grad()",
                self._step_index,
                layer.name,
            )
        if self.is_recording:
            self._record(entry, layer_input, output)
        if entry.spec.needs_grad_output and torch.is_grad_enabled():
            if layer.is_part:
                raise TypeError(
                    f"layer {layer.name!r} is a step inside of {type(layer.module).__name__}, where no gradient of its "
                    "output can be had: give it another source"
                )
            if not isinstance(layer_input, Tensor):
                raise TypeError(
                    f"layer {layer.name!r} was called without a tensor as its input: give it another source"
                )
            source = entry.source
            receive, keep = partial(source.receive_kept, layer), partial(source.keep, layer)
            return deliver_grad_output(output, layer_input, receive, keep)
        return None

    def _record(self, entry: LayerBatch, layer_input: Any, output: Any) -> None:
        """Take in what a layer's forward shows."""
        layer, samples = entry.layer, entry.samples
        # Raise on the first batch, before any early update. A further micro-batch is a second use in GP, not in BP.
        if self.update_now is not None and len(samples) > (0 if self._is_gp else self._micro_batch):
            raise RuntimeError(
                f"immediate=True: layer {layer.name!r} ran twice in one batch, and its weight cannot change between "
                "its uses: use immediate=False"
            )
        while len(samples) <= self._micro_batch:
            samples.append(0)
        if self.counts_macs and isinstance(output, Tensor) and not torch.compiler.is_compiling():
            self.macs += output.numel() // layer.out * layer.weight.numel()
        if entry.spec.needs_forward:  # a layer that runs twice in a micro-batch sees the same samples twice
            samples[-1] = max(samples[-1], layer.samples(output))
        if entry.records:
            self.recorder.record(entry, layer_input, output)
        if self.update_now is not None and self._is_gp:
            self.update_now(entry)

    def on_model_output(self, output: Any) -> Tensor | None:
        """Called after the model's forward; in GP the graph begins here, and reaches to the loss."""
        is_gp = self._is_gp
        if is_gp:
            torch.set_grad_enabled(self._modes.pop())
        if not torch.is_grad_enabled():
            return None
        if not self.is_recording:  # activation checkpointing expects the operations of the first time
            return None if is_gp else watched_output(output, lambda *_: None)
        if torch.compiler.is_compiling():  # tensors that need a gradient cannot begin inside a compiled graph
            outside: Tensor = torch.compiler.disable(self.recorder.end_model_call)(output, not is_gp)
            return outside
        return self.recorder.end_model_call(output, not is_gp)


def _refuse_output(layer: Layer, output: Any) -> None:
    """What a layer returned must be a tensor whose batch can be averaged."""
    if not isinstance(output, Tensor):
        raise TypeError(f"layer {layer.name!r} returned {type(output).__name__}, not a tensor: exclude it")
    if not torch.compiler.is_compiling() and torch._C._functorch.is_batchedtensor(output):
        raise TypeError(
            f"layer {layer.name!r} ran under torch.vmap, which hides the batch that is to be averaged: run the model "
            "without vmap in this batch, call it outside of gp.batch() and gp.step(), or exclude the layer"
        )
