"""Gradients of local losses: each part of the network learns from a head of its own."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from adagp import local
from adagp.layers import Layer, Rows
from adagp.predictors import Features
from adagp.sources.registry import supplies
from adagp.sources.source import Source

Optimize = Callable[[Iterable[nn.Parameter]], Optimizer]

STAGE_END = ""
"""The cut after a pipeline's stage, by the name of the stage's own module."""


@supplies("local")
class Local(Source):
    """The network is cut into parts, and the loss of a small head at each cut trains the part before it.

    No gradient crosses a cut, so a part's activations are freed before the next part runs. The last part learns from
    the model's own loss. Heads are no part of the model: they are built in the first batch, and saved with `AdaGP`.
    """

    def __init__(
        self,
        cuts: Sequence[str] | None = None,
        *,
        parts: int = 2,
        balance: str = "memory",
        head: str | local.heads.Build = "dgl",
        loss: local.Loss = local.cross_entropy,
        optimizer: Optimize | None = None,
        seed: int = 0,
    ) -> None:
        """Set where the network is cut and what its parts learn from.

        Args:
            cuts: The modules whose outputs end a part, by name; none for plain backpropagation.
            parts: Without `cuts`, the number of parts.
            balance: What these parts have in nearly equal amounts: `memory` for a backward, or `macs`, multiply-adds.
            head: `dgl` (one hidden layer), `predsim` (also matches similarities between samples), or a function of the
                shapes of activations and model output, both of one sample, that returns a module.
            loss: `loss(output, target)` of a head's output; one number, scaled as the model's loss is.
            optimizer: Builds the heads' optimizer from their parameters. By default it is like the model's, and its
                learning rate follows that of the model's first group.
            seed: Decides the heads' first weights.
        """
        if isinstance(cuts, str):
            raise TypeError(f"cuts = {cuts!r}: give a list of module names, such as [{cuts!r}]")
        if type(parts) is not int or parts < 1:
            raise ValueError(f"parts = {parts!r}: must be a whole number of at least 1")
        if balance not in ("memory", "macs"):
            raise ValueError(f"balance = {balance!r}: choose memory or macs")
        if isinstance(head, str) and head not in local.HEADS:
            raise ValueError(f"head = {head!r}: choose {' or '.join(local.HEADS)}, or give a function of two shapes")
        self._named = None if cuts is None else tuple(cuts)
        self._parts, self._balance, self._head, self._loss, self._seed = parts, balance, head, loss, seed
        self._build_optimizer = optimizer
        self.cuts: tuple[str, ...] | None = self._known_cuts()
        """Where the network is cut, in the order of the forward; None before the first batch."""
        self.heads: dict[str, nn.Module] = {}
        """The head of each cut."""
        self.before: dict[str, frozenset[str]] = {}
        """The trained parameters before each cut, those of earlier parts included."""
        self._optimizer: Optimizer | None = None
        self._saved: Mapping[str, Any] | None = None
        self._build_again: Callable[[], None] | None = None  # of a pipeline's stage, whose cut is known

    def _known_cuts(self) -> tuple[str, ...] | None:
        """No cuts are known at once; others are found, or checked, in a first forward."""
        return () if self._named == () or (self._named is None and self._parts == 1) else None

    def options(self) -> str:
        """Where the network is cut, and the heads."""
        where = f"parts={self._parts}, balance={self._balance}" if self._named is None else f"cuts={list(self._named)}"
        head = self._head if isinstance(self._head, str) else getattr(self._head, "__name__", "own")
        return f"({where}, head={head}, seed={self._seed})"

    def attach(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        """Refuse cuts that are no modules of the model."""
        modules = [name for name, _ in model.named_modules() if name]
        unknown = [cut for cut in self._named or () if cut not in modules]
        if unknown:
            near = get_close_matches(unknown[0], modules, 3) or modules[:3]
            raise ValueError(
                f"cuts = {list(self._named or ())}: the model has no module {', '.join(map(repr, unknown))}; did you "
                f"mean {', '.join(map(repr, near))}? model.named_modules() lists all"
            )

    def gradient(self, layer: Layer, features: Features | None, samples: int) -> Rows | None:
        """What the backward of its part's loss left in `.grad`."""
        return layer.gradient()

    @property
    def named_cuts(self) -> tuple[str, ...]:
        """The cuts that are known before the first batch."""
        return self._named or ()

    def prepare(self, found: local.Trace, device: torch.device, dtype: torch.dtype, optimizer: Optimizer) -> None:
        """Find the cuts in a traced forward, and build the heads.

        Args:
            found: One forward of the model.
            device: Where the heads live.
            dtype: The type of their weights.
            optimizer: What the heads' own is like.

        Raises:
            ValueError: When the network cannot be cut so; all problems at once.
        """
        wanted = local.choose(found, self._parts, self._balance) if self._named is None else self._named
        reasons = local.problems(found, wanted)
        if found.output is None:
            reasons.append("the model must return one tensor, with the batch first")
        if reasons:
            raise ValueError(f"local losses cannot be used so: {'; '.join(reasons)}")
        assert found.output is not None
        cuts = local.cuts.in_order(found, wanted)
        shapes = [call.shape for cut in cuts for call in found.calls_of(cut) if call.shape is not None]
        heads = self._build_heads(shapes, found.output)
        self.before = {cut: found.parameters_before(cut) for cut in cuts}
        self._take_heads(dict(zip(cuts, heads, strict=True)), device, dtype, optimizer)

    def prepare_stage(
        self,
        shapes: Sequence[Sequence[int]],
        place: int,
        parameters: Iterable[str],
        device: torch.device,
        dtype: torch.dtype,
        optimizer: Optimizer,
    ) -> None:
        """Build the head of a pipeline's stage: the network is cut where a stage ends, and the last needs no head.

        Args:
            shapes: The shape of every stage's output, without the batch.
            place: Which of the stages this is.
            parameters: The trained parameters of this stage, by name.
            device: Where the head lives.
            dtype: The type of its weights.
            optimizer: What the head's own is like.

        Raises:
            ValueError: When cuts are named, or no head is known for these shapes.
        """
        if self._named is not None:
            raise ValueError(f"cuts = {list(self._named)}: in a pipeline the stages are the parts: leave cuts out")

        def build() -> None:
            heads = self._build_heads(shapes[:-1], shapes[-1])[place : place + 1]
            self.before = {STAGE_END: frozenset(parameters)}
            self._take_heads(dict(zip([STAGE_END], heads, strict=False)), device, dtype, optimizer)

        self._build_again = build
        build()

    def _build_heads(self, shapes: Sequence[Sequence[int]], output: Sequence[int]) -> list[nn.Module]:
        """All heads in the order of the cuts, so that those of a pipeline's stages are those of one process."""
        with torch.random.fork_rng():
            torch.manual_seed(self._seed)  # the same on all ranks, and not the user's numbers
            return [local.build(self._head, shape, output, self._loss) for shape in shapes]

    def _take_heads(
        self, heads: Mapping[str, nn.Module], device: torch.device, dtype: torch.dtype, optimizer: Optimizer
    ) -> None:
        self.heads = {cut: head.to(device=device, dtype=dtype) for cut, head in heads.items()}
        self._optimizer = self._new_optimizer(optimizer)
        self.cuts = tuple(heads)
        if self._saved is not None:
            self._load(self._saved)

    def _new_optimizer(self, like: Optimizer) -> Optimizer | None:
        parameters = self.parameters()
        if not parameters:
            return None
        if self._build_optimizer is not None:
            return self._build_optimizer(parameters)
        kind = type(like)
        known = inspect.signature(kind).parameters
        try:
            return kind(parameters, **{name: value for name, value in like.defaults.items() if name in known})
        except Exception as error:
            raise ValueError(
                f"the heads of local losses cannot have a {kind.__name__} like the model's ({error}): give "
                "Local(optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3))"
            ) from None

    def parameters(self) -> list[nn.Parameter]:
        """The parameters of all heads."""
        return [parameter for head in self.heads.values() for parameter in head.parameters()]

    def loss_at(self, cut: str, activations: Tensor, target: Any) -> Tensor:
        """The local loss of the part that ends at a cut."""
        loss: Tensor = self.heads[cut](activations, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = tuple(loss.shape) if isinstance(loss, Tensor) else loss
            raise ValueError(f"the local loss at cut {cut!r} is {got}, not one number: reduce it, as by its mean")
        return loss

    def step(self, like: Optimizer) -> None:
        """Update the heads, with the hyperparameters that the model's optimizer has now."""
        if self._optimizer is None:
            return
        if self._build_optimizer is None:
            now = {name: value for name, value in like.param_groups[0].items() if name != "params"}
            for group in self._optimizer.param_groups:
                group.update({name: value for name, value in now.items() if name in group})
        self._optimizer.step()
        self.discard()

    def discard(self) -> None:
        """Leave the heads without gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        """The heads and their optimizer; None before the first batch."""
        if not self.heads:
            return {"heads": None} if self._saved is None else dict(self._saved)
        return {
            "heads": {cut: head.state_dict() for cut, head in self.heads.items()},
            "optimizer": None if self._optimizer is None else self._optimizer.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave; heads that are not built yet take it when they are."""
        self._saved = None if state["heads"] is None else state
        if self._saved is not None and self.heads:
            self._load(self._saved)
        elif self._saved is None:
            self.cuts, self.heads, self._optimizer = self._known_cuts(), {}, None
            if self._build_again is not None:
                self._build_again()

    def _load(self, state: Mapping[str, Any]) -> None:
        if state["heads"].keys() != self.heads.keys():
            raise ValueError(
                f"the state has heads at {sorted(state['heads'])}, here the cuts are {list(self.heads)}: name the cuts"
            )
        try:
            for cut, head in self.heads.items():
                head.load_state_dict(state["heads"][cut])
            if self._optimizer is not None:
                self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))  # it would train in the state itself
                _refuse_sizes(self._optimizer)
        except (RuntimeError, KeyError, TypeError, AttributeError) as error:
            cause = str(error).strip().partition("\n")[0]
            raise ValueError(f"the saved heads of local losses do not fit this model: {cause}") from error
        self._saved = None


def _refuse_sizes(optimizer: Optimizer) -> None:
    """Kernels of optimizers take the sizes of what they keep on trust."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.shape not in (parameter.shape, torch.Size([])):
                raise ValueError(f"the saved optimizer of the heads has {name} of shape {tuple(value.shape)}")
