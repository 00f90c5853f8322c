"""Small networks and language models: `python -m benchmarks.language`.

Their batches are short, and a head over a vocabulary has many weights for each token, so that passes over the weights
weigh as much as arithmetic. A GP batch is compared with a bare `no_grad` forward plus the optimizer's step on the
gradients that a GP batch has; a BP batch with a plain one. All take turns in a new random order each round. Ratios are
taken within a round, and the median round counts.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, nn

from adagp import AdaGP, Phase, Plan, models, schedules
from adagp.measure import peak_bytes
from adagp.training.environment import describe
from adagp.training.recipe_files import load_preset

GP_BUDGET, BP_BUDGET = 1.15, 1.05
WARMUP_BATCHES = 24  # a head over a vocabulary learns a block of its rows at a time
PLANS = {"BP": Plan(Phase.BP, "backprop"), "GP": Plan(Phase.GP, "predicted")}


@dataclass(frozen=True)
class Case:
    """A model, its optimizer, and the loss of its batch."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]


def cnn() -> Case:
    """The small CNN that the demo once had, on its batch: 64 images of 28x28 with one channel."""
    model = models.build("cnn", in_channels=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=5e-4)
    return Case(model, optimizer, lambda: nn.functional.cross_entropy(model(images), labels))


def demo() -> Case:
    """The network of `make demo`, on images of MNIST-5k's size."""
    recipe = load_preset("demo").recipe
    model = models.build(recipe.model, in_channels=1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = torch.randn(recipe.batch_size, 1, 28, 28), torch.randint(0, 10, (recipe.batch_size,))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, weight_decay=recipe.weight_decay)
    return Case(model, optimizer, lambda: nn.functional.cross_entropy(model(images), labels))


def transformer() -> Case:
    """The Transformer of `multi30k-transformer-tuned`."""
    sizes = load_preset("multi30k-transformer-tuned").recipe.sizes
    model = models.build("transformer", source_vocabulary=4000, target_vocabulary=4000, **sizes)
    source, target = (torch.randint(3, 4000, (64, length)) for length in (16, 17))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return Case(model, optimizer, lambda: _next_tokens(model(source, target[:, :-1]), target))


def gpt() -> Case:
    """The GPT of `multi30k-gpt-tuned`."""
    recipe = load_preset("multi30k-gpt-tuned").recipe
    model = models.build("gpt", vocabulary=recipe.vocabulary, **recipe.sizes)
    tokens = torch.randint(3, recipe.vocabulary, (recipe.batch_size, 1 + recipe.sizes["context"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Case(model, optimizer, lambda: _next_tokens(model(tokens[:, :-1]), tokens))


def llama() -> Case:
    """Llama with two layers, 128 wide, and a vocabulary of 32,000, on 256 tokens."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4, vocab_size=32_000
    )
    model = transformers.LlamaForCausalLM(config)
    tokens = torch.randint(3, 32_000, (4, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Case(model, optimizer, lambda: model(input_ids=tokens, labels=tokens, use_cache=False).loss)


CASES = {case.__name__: case for case in (cnn, demo, transformer, gpt, llama)}


def _next_tokens(logits: Tensor, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Bench:
    """Every kind of batch on one model and one optimizer."""

    def __init__(self, case: Case, clock: Callable[[], float]) -> None:
        self.case, self._clock = case, clock
        self._plan = PLANS["BP"]
        schedule = schedules.from_function(lambda step: self._plan, ("backprop", "predicted"))
        self.gp = AdaGP(case.model, case.optimizer, schedule)
        self.kinds: dict[str, Callable[[], Any]] = {
            "forward": self._forward,
            "optimizer": case.optimizer.step,
            "GP": lambda: self._step("GP"),
            "BP plain": self._plain,
            "BP": lambda: self._step("BP"),
        }

    def _forward(self) -> None:
        with torch.no_grad():
            self.case.loss()

    def _plain(self) -> None:
        self.case.loss().backward()
        self.case.optimizer.step()
        self.case.optimizer.zero_grad()

    def _step(self, kind: str) -> None:
        self._plan = PLANS[kind]
        self.gp.step(self.case.loss)

    def _timed(self, kind: str, given: list[Tensor | None]) -> float:
        """Seconds of one kind; the optimizer alone finds the gradients of a GP batch."""
        parameters = list(self.case.model.parameters())
        if kind == "optimizer":
            for parameter, grad in zip(parameters, given, strict=True):
                parameter.grad = grad
        start = self._clock()
        self.kinds[kind]()
        seconds = self._clock() - start
        self.case.optimizer.zero_grad()
        return seconds

    def _gp_gradients(self) -> list[Tensor | None]:
        self._plan = PLANS["GP"]
        with self.gp.batch() as batch:
            batch.backward(self.case.loss())
        found = [parameter.grad for parameter in self.case.model.parameters()]
        self.case.optimizer.zero_grad()
        return found

    def measure(self, rounds: int) -> dict[str, Any]:
        """Median milliseconds, median ratios within rounds, and memory."""
        for _ in range(WARMUP_BATCHES):
            self._step("BP")
        given = self._gp_gradients()
        found: list[dict[str, float]] = []
        for turn in range(-1, rounds):  # one round to warm up
            order = random.Random(turn).sample(list(self.kinds), len(self.kinds))
            found.append({kind: self._timed(kind, given) for kind in order})
        found = found[1:]
        peak = {kind: peak_bytes(self.kinds[kind], torch.device("cpu")) for kind in ("forward", "GP", "BP plain", "BP")}
        return {
            "ms": {kind: 1e3 * statistics.median(one[kind] for one in found) for kind in self.kinds},
            "bp_over_plain": statistics.median(one["BP"] / one["BP plain"] for one in found),
            "gp_over_forward_and_optimizer": statistics.median(
                one["GP"] / (one["forward"] + one["optimizer"]) for one in found
            ),
            "gp_over_plain": statistics.median(one["GP"] / one["BP plain"] for one in found),
            "state_mb": _nbytes(self.gp.state_dict()) / 1e6,
            "model_mb": sum(parameter.nbytes for parameter in self.case.model.parameters()) / 1e6,
            "peak_mb": {kind: value / 1e6 for kind, value in peak.items()},
        }


def _nbytes(state: object) -> int:
    if isinstance(state, Tensor):
        return state.nbytes
    if isinstance(state, dict):
        return sum(map(_nbytes, state.values()))
    return sum(map(_nbytes, state)) if isinstance(state, list | tuple) else 0


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    header = ["network", "forward ms", "optimizer ms", "GP ms", "plain BP ms", "BP ms", "BP / plain BP"]
    header += ["GP / (forward + optimizer)", "GP / plain BP", "model MB", "predictor's state MB"]
    header += ["peak MB plain / BP / GP"]
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    for name, row in results.items():
        ms, peak = row["ms"], row["peak_mb"]
        lines.append(
            f"| {name} | {ms['forward']:.1f} | {ms['optimizer']:.1f} | {ms['GP']:.1f} | {ms['BP plain']:.1f} "
            f"| {ms['BP']:.1f} | {row['bp_over_plain']:.3f} | {row['gp_over_forward_and_optimizer']:.3f} "
            f"| {row['gp_over_plain']:.3f} | {row['model_mb']:.1f} | {row['state_mb']:.1f} "
            f"| {peak['BP plain']:.1f} / {peak['BP']:.1f} / {peak['GP']:.1f} |"
        )
    return "\n".join(lines)


def verdicts(results: dict[str, Any]) -> list[str]:
    """Each budget that does not hold, in words."""
    checks = (
        ("bp_over_plain", "BP batch / plain BP", BP_BUDGET),
        ("gp_over_forward_and_optimizer", "GP batch / (forward + optimizer)", GP_BUDGET),
    )
    return [
        f"{name}: {label} is {row[key]:.3f}, the budget is {budget}"
        for name, row in results.items()
        for key, label, budget in checks
        if row[key] > budget
    ]


def main() -> int:
    """Measure, print, and say with the exit code whether every budget holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="which networks")
    parser.add_argument("--rounds", type=int, default=100, help="interleaved repetitions; the median counts")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--cpu-time", action="store_true", help="for a busy machine: processor time of one thread")
    options = parser.parse_args()
    clock = process_time if options.cpu_time else perf_counter
    if options.cpu_time:
        torch.set_num_threads(1)
    results = {}
    for name in options.cases:
        print(f"measuring {name} ...", file=sys.stderr)
        torch.manual_seed(0)
        try:
            case = CASES[name]()
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        results[name] = Bench(case, clock).measure(options.rounds)
    if options.json:
        print(json.dumps({"results": results, "environment": describe(torch.device("cpu"))}))
    else:
        print(table(results))
    over = verdicts(results)
    print("\n".join(over), file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
