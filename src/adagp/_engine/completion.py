"""What follows the passes of a batch, in this order: share, supply, learn, advance."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import inf

import torch
from torch import Tensor, nn

from adagp._engine.checking import check_row_sums, first_broken, refuse_gradient, refuse_nonfinite_loss
from adagp._engine.exchange import Exchange, Findings, Shared, average_trials
from adagp._engine.finite import sums_of_squares
from adagp._engine.layer_batch import LayerBatch
from adagp._engine.learning import find_true_layers, notice_missing_gradients, rows_of, sums_of_own_rows, teach
from adagp._engine.open_batch import OpenBatch
from adagp._engine.supply import is_always_finite, write_gradients
from adagp.distributed.ranks import reshard
from adagp.quality import GradientAlignment
from adagp.sources import GradientRequest


def complete(batch: OpenBatch) -> None:
    """Complete the gradients of a batch whose passes are over, and let everything learn from them."""
    setup = batch.setup
    alignments: Mapping[str, GradientAlignment] = {}
    with torch.no_grad(), _full_precision(setup.device):
        if setup.ranks.shards_rows:
            reshard(setup.model)
        shared = _share(batch)  # before the scaler looks at gradients: all ranks find the same
        notice_missing_gradients(
            batch.progress, batch.current, batch.layers.values(), batch.step_index, batch.ran_own_backward
        )
        supplied = _supply(batch, shared)
        if not batch.failed:
            batch.scaling.unscale(supplied)
            alignments = _learn(batch, shared, supplied)
            _step_heads(batch)
    if batch.failed:
        batch.discard()
        batch.progress.count("fallback")
    batch.scaling.hand_back()
    _advance(batch, alignments)


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """No autocast inside: predictions are sums of small numbers, also where the forward runs in half precision."""
    enabled = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if enabled else nullcontext()


# --- share


def share_before_backward(batch: OpenBatch) -> None:
    """Send what ranks tell each other before the backward, so that it travels meanwhile, where all of it is known."""
    setup = batch.setup
    if batch.exchange is not None:  # what is on its way lacks the micro-batch that is here now
        batch.exchange, setup.ranks.repeats_backward = None, True
    elif setup.ranks.overlaps and not setup.needs.needs_loss_grad and not _unshared(batch):
        with torch.no_grad(), _full_precision(setup.device):
            batch.exchange = _exchange(batch)


def _share(batch: OpenBatch) -> Shared:
    """What the passes showed, over all calls and ranks; all ranks go on in the same way."""
    setup, recorder = batch.setup, batch.forward.recorder
    recorder.end_forward()  # a loop without `backward` in GP has not said that its forward is over
    if batch.is_gp and not batch.needs_forward:
        return Shared(Findings(), {}, {})
    loss_grad, is_missing = None, False
    if setup.needs.needs_loss_grad:
        loss_grad = recorder.weigh_inputs(batch.scaling.of_gradients)
        is_missing = loss_grad is None and any(entry.uses_features and entry.has_run for entry in batch.layers.values())
    shared = (batch.exchange or _exchange(batch, loss_grad, is_missing)).result()
    batch.loss_is_finite = shared.findings.loss_is_finite
    if batch.is_gp:
        batch.failed |= not batch.loss_is_finite
    else:
        refuse_nonfinite_loss(batch)
    if shared.findings.lacks_loss_grad:
        raise RuntimeError(
            f"the predictor asks for the gradient of the loss at the model's output, and step {batch.step_index} "
            f"({batch.plan.phase.value}) has none: call the model itself, compute the loss from its output, and "
            "give it to batch.backward in GP too"
        )
    return shared


def _exchange(batch: OpenBatch, loss_grad: Tensor | None = None, lacks_loss_grad: bool = False) -> Exchange:
    if batch.local is not None:
        batch.loss_is_finite &= batch.local.losses_are_finite
    own = Findings(batch.loss_is_finite, lacks_loss_grad, loss_grad, tuple(_row_sums(batch)))
    with_features = not (batch.is_gp and batch.setup.options.immediate)
    return Exchange(batch.setup, list(batch.layers.values()), own, _unshared(batch), with_features)


def _unshared(batch: OpenBatch) -> list[nn.Parameter]:
    """The parameters whose gradients no reducer has seen: from a layer's `grad_output`, or from local losses."""
    if batch.setup.ranks.count == 1:
        return []
    if batch.local is not None and batch.is_local:
        return [part for part in (*batch.setup.parameters(), *batch.local.head_parameters()) if part.requires_grad]
    layers = batch.layers.values()
    return [part for entry in layers if entry.spec.needs_grad_output for part in entry.layer.parameters()]


def _row_sums(batch: OpenBatch) -> list[float]:
    """Where each rank holds other rows: whether a gradient is not finite here, and the sums of its squares."""
    if not batch.setup.ranks.shards_rows or batch.is_gp:
        return []
    true_grads = rows_of(find_true_layers(batch.setup, batch.progress, batch.layers.values()))
    squares = sums_of_squares(true_grads) if true_grads else {}
    return [float(first_broken(batch, squares, ()) is not None), *sums_of_own_rows(batch.layers.values(), squares)]


# --- supply


def _supply(batch: OpenBatch, shared: Shared) -> list[LayerBatch]:
    """Every source without a backward writes its layers' gradients; those layers are returned."""
    served = [entry for entry in batch.layers.values() if not entry.spec.needs_graph]
    if not served:
        return []
    if batch.is_gp and batch.setup.options.immediate and any(entry.has_run for entry in served):
        return []
    supplied = [entry for entry in served if not entry.spec.needs_backward]
    _write(batch, supplied, shared)
    if batch.failed:
        return []
    _count(batch, served)
    return supplied


def _write(batch: OpenBatch, layers: Sequence[LayerBatch], shared: Shared) -> None:
    """Let each source write the gradients of its layers; one that is not finite fails the batch."""
    setup, features, samples = batch.setup, shared.features, shared.samples
    requests: dict[str, list[GradientRequest]] = {}
    for entry in layers:
        name = entry.layer.name
        request = GradientRequest(entry.layer, features.get(name), samples.get(name, 0))
        requests.setdefault(entry.spec.name, []).append(request)
    for source, of_source in requests.items():
        if not write_gradients(setup.sources[source], of_source, batch.timed, batch.step_index):
            batch.failed = True
    if setup.ranks.shards_rows and not all(is_always_finite(entry.source, entry.layer) for entry in layers):
        batch.failed = setup.ranks.largest([batch.failed], setup.device)[0] > 0


def update_now(batch: OpenBatch, entry: LayerBatch) -> None:
    """Step the optimizer for one layer in the forward of GP: every other gradient is None, so nothing else moves."""
    if batch.failed:
        return
    shared = Exchange(batch.setup, [entry], Findings()).result()
    with _full_precision(batch.setup.device):
        _write(batch, [entry], shared)
    _count(batch, [entry])
    for optimizer in batch.setup.optimizers_of(entry.layer):
        optimizer.step()
    entry.layer.assign(None)


def _count(batch: OpenBatch, layers: Iterable[LayerBatch]) -> None:
    """Count what the optimizer will find: a source that gave nothing was a skip."""
    for entry in layers:
        batch.progress.count(entry.spec.name if entry.has_gradient else "skip")


# --- learn


def _learn(batch: OpenBatch, shared: Shared, supplied: Sequence[LayerBatch]) -> Mapping[str, GradientAlignment]:
    """Let everything learn from the true gradients, once they are known to be finite."""
    setup, progress = batch.setup, batch.progress
    layers = find_true_layers(setup, progress, batch.layers.values())
    true_grads = rows_of(layers) if setup.learns and not batch.plan.is_coarse else {}
    if shared.findings.row_sums:
        of_all = check_row_sums(batch, shared.findings.row_sums)
        squares = {name: of_all[name] for name in true_grads}
    else:
        squares = sums_of_squares(true_grads) if true_grads else {}
        broken = first_broken(batch, squares, supplied)
        if broken is not None:
            refuse_gradient(batch, setup.name_of(broken))
    progress.count("backprop", len(layers))
    if not squares:
        return {}
    finite = {name: true_grads[name] for name, values in squares.items() if inf not in values}
    progress.count("nonfinite", len(true_grads) - len(finite))
    alignments: Mapping[str, GradientAlignment] = batch.timed(
        partial(teach, setup, progress, shared.features, finite, squares)
    )
    return alignments


def _step_heads(batch: OpenBatch) -> None:
    """Update the heads of local losses: they are no part of the model, and nobody else does."""
    if batch.local is None or not batch.is_local:
        return
    batch.progress.count("local", sum(entry.spec.is_local and entry.has_gradient for entry in batch.layers.values()))
    if not batch.local.step_heads(batch.scaling.of_gradients):
        batch.progress.count("nonfinite")


# --- advance


def _advance(batch: OpenBatch, alignments: Mapping[str, GradientAlignment]) -> None:
    """Go on to the next step. After a failed batch it is plain backpropagation."""
    setup, schedule = batch.setup, batch.setup.schedule
    batch.progress.falls_back = batch.failed
    batch.progress.was_full |= not batch.plan.is_coarse
    schedule.observe(batch.step_index, alignments)
    if batch.plan.trial_rates and not batch.failed:
        found = [trials for source in setup.sources.values() for trials in source.take_trials().items()]
        schedule.observe_trials(batch.step_index, average_trials(setup, dict(found)))
    if schedule.wants_order and batch.current.call_order:
        schedule.observe_order(list(batch.current.call_order))
    batch.progress.step_index = batch.step_index + 1
