"""Whether the adviser is right: `python -m benchmarks.advise`.

For each network the adviser measures a training. Then its advice is followed as a user would, in new models with the
lines it prints, and the seconds of a batch are measured again, in turn with the training as it was. The predicted
seconds where the advice is followed should be within 10 % of the measured ones. The speed-up of every option should be
within 10 % too, or in the predicted interval: few rounds give a wide one, which the adviser tells. Options whose
predicted intervals do not overlap should come out in the predicted order.

The training as it is, measured in both minutes, is the control. Where it differs by more than 5 %, the machine has
changed in between and the comparison says nothing about the adviser: it is made again, at most three times in all.
The table says how often.

`gpt2` and `bert` are small models of the transformers library, built from a configuration without a download. They are
left out, and named, where it is not installed.
"""

import argparse
import functools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from itertools import combinations
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

import adagp
from adagp import coarse, models
from adagp.advice import Advice, Option
from adagp.advice.checkpointing import CHECKPOINTING, checkpoint_options
from adagp.advice.rounds import Candidate, Rounds, measure
from adagp.advice.subject import build_subject
from adagp.measure import cpu_threads
from adagp.training.environment import describe
from benchmarks import foreign

NETWORKS = {
    "resnet20": 128,
    "vgg13": 64,
    "mobilenet_v2": 64,
    "resnet50": 16,
    "transformer": 32,
    "gpt2": 8,
    "bert": 8,
}
"""Samples in a batch of each."""
TOLERANCE = 0.10
DRIFT = 0.05
"""How far the control may move."""
TRIES = 3
BATCHES = 6
AS_IS = "as it is"


class Training(NamedTuple):
    """A model, its optimizer, the loss of a batch, and batches."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any], Tensor]
    batches: list[Any]


def build(name: str, batch_size: int, **options: Any) -> Training:
    """The network in PyTorch's default layout on random data; `options` are those of the optimizer."""
    torch.manual_seed(0)
    if name in foreign.NAMES:
        return Training(*foreign.build(name, batch_size, BATCHES, **options))
    model = models.build(name)
    examples = models.example_inputs(name, batch=batch_size)
    if models.task(name) == "translation":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
        batches = [tuple(torch.randint(4, 1000, one.shape) for one in examples) for _ in range(BATCHES)]

        def loss(batch: Any) -> Tensor:
            logits = model(batch[0], batch[1][:, :-1])
            return nn.functional.cross_entropy(logits.flatten(0, 1), batch[1][:, 1:].flatten())

    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **options)
        shape = examples[0].shape
        batches = [(torch.randn(shape), torch.randint(0, 10, shape[:1])) for _ in range(BATCHES)]

        def loss(batch: Any) -> Tensor:
            return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return Training(model, optimizer, loss, batches)


def step(training: Training) -> None:
    """One batch as a user writes it."""
    training.loss(training.batches[0]).backward()
    training.optimizer.step()
    training.optimizer.zero_grad()


def follow(name: str, batch_size: int, option: str) -> Candidate:
    """A new training with an option, or several joined by ` + `, in the lines that the adviser prints."""
    parts = option.split(" + ")
    flags = {part.split()[0]: True for part in parts if part.endswith("optimizer")}
    training, ready = build(name, batch_size, **flags), nullcontext
    for part in parts:
        if part == "channels-last":
            training.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            images, labels = training.batches[0]
            training.batches[0] = images.to(memory_format=torch.channels_last), labels
        elif part == "coarse":
            training.batches[0] = coarse.images(training.batches[0][0], 0.5), training.batches[0][1]
        elif part == CHECKPOINTING:
            (own,) = checkpoint_options(build_subject(training.model, training.optimizer, step, [0], perf_counter))
            exec("\n".join(own.code), {"model": training.model, "torch": torch, "functools": functools})
        elif part.endswith(("thread", "threads")):
            ready = partial(cpu_threads, int(part.split()[0]))
    return in_a_row(Candidate(option, partial(step, training), ready))


def in_a_row(candidate: Candidate) -> Candidate:
    """The same with an untimed batch before each timed one.

    A training runs its batches in a row. Here several models take turns, and each would find the caches full of another
    one's weights.
    """

    @contextmanager
    def ready() -> Iterator[None]:
        with candidate.ready():
            candidate.run()
            yield

    return Candidate(candidate.name, candidate.run, ready)


def check(name: str, seconds: float) -> dict[str, Any]:
    """What the adviser said about a network, and what following it gave."""
    batch_size = NETWORKS[name]
    training = build(name, batch_size)
    advice = adagp.advise(training.model, training.optimizer, training.loss, loader=training.batches, seconds=seconds)
    options = judged(advice)
    candidates = [in_a_row(Candidate(AS_IS, partial(step, training)))]
    candidates += [follow(name, batch_size, option.name) for option in options]
    rounds = measure(candidates, perf_counter, perf_counter() + seconds)
    rows = [_row(option, rounds) for option in options]
    return {
        "drift": rounds.median(AS_IS) / advice.seconds - 1,
        "followed": _followed(advice, rounds),
        "options": rows,
        "wrong_order": wrong_order(rows),
        "verdict": list(advice.verdict),
    }


def check_on_a_steady_machine(
    name: str, seconds: float, checking: Callable[..., dict[str, Any]] = check
) -> dict[str, Any]:
    """The first comparison whose control stayed where it was, or the last; `drifts` are those of all."""
    drifts: list[float] = []
    while True:
        result = checking(name, seconds)
        drifts.append(result["drift"])
        if abs(result["drift"]) <= DRIFT or len(drifts) == TRIES:
            return {**result, "drifts": drifts}
        print(f"{name}: the machine changed by {100 * result['drift']:+.0f} % meanwhile; once more", file=sys.stderr)


def _row(option: Option, rounds: Rounds) -> dict[str, Any]:
    """The speed-up of an option; seconds alone would drift with the machine."""
    measured, predicted = rounds.speed_up(option.name, AS_IS), option.speed_up
    off = measured.ratio / predicted.ratio - 1
    return {"option": option.name, "predicted": predicted.to_dict(), "measured": measured.to_dict(), "off": off}


def _followed(advice: Advice, rounds: Rounds) -> dict[str, Any]:
    """Seconds of a batch where the exact advice is followed; as it is where nothing pays."""
    options = [option for option in advice.options() if option.exact and option.pays]
    name, seconds = (options[0].name, options[0].seconds) if options else (AS_IS, advice.seconds)
    found = rounds.median(name)
    return {"option": name, "predicted": seconds, "measured": found, "off": found / seconds - 1}


def judged(advice: Advice) -> list[Option]:
    """The options that can be followed by writing a line."""
    found = [*advice.exact, *(source.option for source in advice.sources if source.option.name == "coarse")]
    return [*found, advice.together] if advice.together else found


def wrong_order(rows: list[dict[str, Any]]) -> list[str]:
    """Pairs of options that the adviser ordered beyond doubt, and that came out the other way round."""
    wrong = []
    for one, two in combinations(rows, 2):
        known = None not in (one["predicted"]["low"], two["predicted"]["low"])
        for first, second in ((one, two), (two, one)):
            ordered = known and first["predicted"]["low"] > second["predicted"]["high"]
            if ordered and first["measured"]["ratio"] < second["measured"]["ratio"]:
                wrong.append(f"{first['option']} before {second['option']}")
    return wrong


def table(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| network | option | predicted speed-up | measured | off |", "|---|---|--:|--:|--:|"]
    for name, result in results.items():
        for row in result["options"]:
            predicted, measured = (_interval(row[kind]) for kind in ("predicted", "measured"))
            lines.append(f"| {name} | {row['option']} | {predicted} | {measured} | {100 * row['off']:+.1f} % |")
    lines += [
        "",
        "| network | advice | predicted ms | measured ms | off | order | tries |",
        "|---|---|--:|--:|--:|---|--:|",
    ]
    for name, result in results.items():
        one, order = result["followed"], "wrong" if result["wrong_order"] else "right"
        times = f"{1e3 * one['predicted']:.1f} | {1e3 * one['measured']:.1f} | {100 * one['off']:+.1f} %"
        lines.append(f"| {name} | {one['option']} | {times} | {order} | {len(result['drifts'])} |")
    return "\n".join(lines)


def _interval(estimate: dict[str, Any]) -> str:
    if estimate["low"] is None:
        return f"{estimate['ratio']:.2f} (unknown)"
    return f"{estimate['ratio']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"


def failures(results: dict[str, Any]) -> list[str]:
    """Each prediction that is wrong, each wrong order, and each control that moved."""
    off = [
        f"{name}: {row['option']} is off by {100 * row['off']:+.1f} %"
        for name, result in results.items()
        for row in result["options"]
        if _is_wrong(row)
    ]
    off += [
        f"{name}: a batch with {one['option']} is off by {100 * one['off']:+.1f} %"
        for name, one in ((name, result["followed"]) for name, result in results.items())
        if abs(one["off"]) > TOLERANCE
    ]
    off += [
        f"{name}: the machine changed by {100 * result['drift']:+.0f} % in the last of {TRIES} tries: find a quiet one"
        for name, result in results.items()
        if abs(result["drift"]) > DRIFT
    ]
    return off + [f"{name}: {pair}" for name, result in results.items() for pair in result["wrong_order"]]


def _is_wrong(row: dict[str, Any]) -> bool:
    """Whether a speed-up is off by more than `TOLERANCE` and outside of its interval; "unknown" predicts nothing."""
    predicted = row["predicted"]
    if predicted["low"] is None or predicted["low"] <= row["measured"]["ratio"] <= predicted["high"]:
        return False
    return bool(abs(row["off"]) > TOLERANCE)


def main() -> int:
    """Measure, print, and say with the exit code whether every prediction holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), help="which networks")
    parser.add_argument("--seconds", type=float, default=60.0, help="for the adviser, and again to check it")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args()
    results = {}
    missing = [] if find_spec("transformers") else [name for name in given.networks if name in foreign.NAMES]
    if missing:
        print(f"left out, because transformers is not installed: {', '.join(missing)}", file=sys.stderr)
    for name in given.networks:
        if name in missing:
            continue
        print(f"{name}: about {2 * given.seconds:.0f} s", file=sys.stderr)
        results[name] = check_on_a_steady_machine(name, given.seconds)
        print(table({name: results[name]}), file=sys.stderr)  # so that a run that is stopped has said something
    wrong = failures(results)
    if given.json:
        print(
            json.dumps(
                {
                    "environment": describe(torch.device("cpu")),
                    "results": results,
                    "failures": wrong,
                    "left_out": missing,
                }
            )
        )
    else:
        print(table(results), *wrong, sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
