"""What was found out about a training, as plain values, as a table and as sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from adagp.advice.messages import MessagesFinding
from adagp.advice.option import Option

COLUMNS = ("option", "kind", "ms", "speed-up", "keeps", "noise", "worth", "MB", "pays")


@dataclass(frozen=True)
class SourceFinding:
    """What a source gives this model, in batches where it serves every layer it can.

    Attributes:
        option: Its time, memory and worth.
        cosine: With the exact gradient of the same batch, all layers as one vector.
        error: Squared difference over the squared exact gradient.
        added_variance: Over the variance of the mini-batch; None with a single batch.
        layers: Cosine, error and added variance of each layer.
        sent_bytes: What a rank sends in a batch; None with a single rank.
    """

    option: Option
    cosine: float
    error: float
    added_variance: float | None
    layers: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    sent_bytes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        found: dict[str, Any] = {"cosine": self.cosine, "error": self.error, "added_variance": self.added_variance}
        found["sent_bytes"] = self.sent_bytes
        return {**self.option.to_dict(), **found, "layers": {name: dict(one) for name, one in self.layers.items()}}


@dataclass(frozen=True)
class LayerFinding:
    """Where the time of one layer goes, and which source would pay.

    Attributes:
        name: The layer.
        kind: Its class.
        forward_seconds: Of its output.
        input_gradient_seconds: Of the gradient of its input.
        weight_gradient_seconds: Of its exact weight gradient.
        spread: Squared difference of two batches' gradients over their square; None with a single batch.
        source_seconds: Of the weight gradient by each source that computes one from `grad_output`.
        break_even: For each such source the cosine or added variance that it needs to pay.
        source: The one that pays, else `backprop`.
    """

    name: str
    kind: str
    forward_seconds: float
    input_gradient_seconds: float
    weight_gradient_seconds: float
    spread: float | None = None
    source_seconds: Mapping[str, float] = field(default_factory=dict)
    break_even: Mapping[str, str] = field(default_factory=dict)
    source: str = "backprop"

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class PlanFinding:
    """The plan that pays.

    Attributes:
        table: As `schedules.from_table` and `adagp train --method table --schedule FILE` take it.
        changed: The layers that do not get `backprop`.
        option: Its measured worth; None where every layer gets `backprop`.
        added_variance: Over that of the mini-batch; None where it is not known or nothing changes.
    """

    table: str
    changed: tuple[str, ...] = ()
    option: Option | None = None
    added_variance: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        option = None if self.option is None else self.option.to_dict()
        return {
            "table": self.table,
            "changed": list(self.changed),
            "option": option,
            "added_variance": self.added_variance,
        }


@dataclass(frozen=True)
class Advice:
    """Everything that `advise` found out. Print it for a table and the verdict.

    Attributes:
        seconds: Median seconds of a batch of the training as it is.
        phases: Seconds of `forward`, `backward`, `optimizer` and, with a loader, `loading`.
        peak_bytes: Peak memory of a batch as it is; None where there was no time for it.
        exact: Options that change the result by rounding only.
        together: The exact options that pay, measured together; None where there are fewer than two.
        sources: Sources and coarse batches.
        layers: Where the time goes, by layer.
        plan: The plan that pays; None where no source can be attached to the model.
        not_measured: Options without a figure, each with the reason.
        spent: Seconds that measuring took.
        spread: Squared difference of two batches' gradients over their square; None where it is not known.
        messages: What ranks send each other; None with a single one.
        verdict: The findings in sentences, the most valuable first.
    """

    seconds: float
    phases: Mapping[str, float]
    peak_bytes: int | None
    exact: tuple[Option, ...]
    together: Option | None
    sources: tuple[SourceFinding, ...]
    layers: tuple[LayerFinding, ...]
    plan: PlanFinding | None
    not_measured: Mapping[str, str]
    spent: float
    spread: float | None = None
    messages: MessagesFinding | None = None
    verdict: tuple[str, ...] = ()

    def options(self) -> list[Option]:
        """Every option, sorted by worth."""
        found = [*self.exact, *(source.option for source in self.sources)]
        found += [self.together] if self.together else []
        found += [self.plan.option] if self.plan and self.plan.option else []
        return sorted(found, key=lambda option: (-option.pays, -option.worth))

    def best(self, environment: bool = False) -> Option | None:
        """The exact option that pays most, among those to write or those to set in the shell; None where none pays."""
        paying = [one for one in self.options() if one.exact and one.pays and one.environment is environment]
        return paying[0] if paying else None

    @property
    def why_no_plan(self) -> str:
        """Why there is no plan, where there is none."""
        return self.not_measured.get("sources", "no source can be judged, see what was not measured")

    def code(self) -> list[str]:
        """The lines to write for the exact options that pay most, and for the plan that pays."""
        found = [
            self.best(environment=True),
            self.best(),
            self.plan.option if self.plan and self.plan.changed else None,
        ]
        return [line for option in found if option for line in option.code]

    def rows(self) -> list[tuple[str, ...]]:
        """The table under `COLUMNS`: the training as it is first, then the options sorted by worth."""
        first = ("as it is", "", f"{1e3 * self.seconds:.1f}", "", "", "", "1.00", _megabytes(self.peak_bytes), "")
        return [first, *(_row(option, self.added_variance(option)) for option in self.options())]

    def added_variance(self, option: Option) -> float | None:
        """What an option adds to the variance of the mini-batch, over that variance; None where it is not known."""
        if option.exact:
            return 0.0
        if self.plan is not None and option is self.plan.option:
            return self.plan.added_variance
        return next((source.added_variance for source in self.sources if source.option is option), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "batch": {
                "seconds": self.seconds,
                "phases": dict(self.phases),
                "peak_bytes": self.peak_bytes,
                "spread": self.spread,
            },
            "exact": [option.to_dict() for option in self.exact],
            "together": None if self.together is None else self.together.to_dict(),
            "sources": [source.to_dict() for source in self.sources],
            "layers": [layer.to_dict() for layer in self.layers],
            "plan": None if self.plan is None else self.plan.to_dict(),
            "messages": None if self.messages is None else self.messages.to_dict(),
            "verdict": list(self.verdict),
            "code": self.code(),
            "not_measured": dict(self.not_measured),
            "spent_seconds": self.spent,
        }

    def __str__(self) -> str:
        """The table, the verdict and the lines to write."""
        parts = [_aligned([COLUMNS, *self.rows()]), "\n".join(self.verdict)]
        if self.code():
            parts.append("\n".join(["Write:", *(f"    {line}" for line in self.code())]))
        return "\n\n".join(parts)


def _row(option: Option, added_variance: float | None) -> tuple[str, ...]:
    return (
        option.name,
        "exact" if option.exact else "approx",
        f"{1e3 * option.seconds:.1f}",
        option.speed_up.text(),
        f"{100 * option.kept:.0f} %",
        "" if added_variance is None or option.exact else f"+{100 * added_variance:.0f} %",
        f"{option.worth:.2f}",
        _megabytes(option.peak_bytes),
        option.finding,
    )


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.0f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
