"""The advice for a training as tables, as a picture and as one HTML page that refers to no other file."""

import base64
from collections.abc import Sequence
from html import escape
from typing import Any

from adagp.accelerator.pipeline.measured import PipelineFinding
from adagp.advice import Advice, LayerFinding, SourceFinding
from adagp.advice.result import COLUMNS
from adagp.report.html import document, table_html
from adagp.report.plot import dress, figure_with, saved
from adagp.report.table import Table
from adagp.schedules.sources import specs

MOST_LAYERS = 40
"""Bars that can still be read; of more layers the slowest are drawn."""
_PARTS = {
    "forward": ("forward_seconds", "#0072B2"),
    "input gradient": ("input_gradient_seconds", "#56B4E9"),
    "weight gradient": ("weight_gradient_seconds", "#E69F00"),
}
_LINEAR = 0.01  # errors below this are drawn on a linear scale, so that 0 has a place


def options_table(advice: Advice) -> Table:
    """Every option, sorted by worth."""
    notes = (
        "speed-up: median over the rounds, with a 99 % interval",
        "keeps: progress of a step against an exact one; noise: variance added to that between batches",
        "worth: progress in a second against the training as it is; MB: peak memory of a batch",
    )
    return Table("What would pay, the best first", COLUMNS, advice.rows(), notes, text_columns=2)


def layers_table(advice: Advice) -> Table:
    """Where the time of each layer goes, and what a source must reach to pay there."""
    judged = list(dict.fromkeys(name for layer in advice.layers for name in layer.source_seconds))
    heads = [head for name in judged for head in (f"{name} ms", f"{name} needs", f"{name} has")]
    found = {source.option.name: source for source in advice.sources}
    rows = [
        (
            layer.name,
            layer.kind,
            *(f"{1e3 * getattr(layer, field):.2f}" for field, _ in _PARTS.values()),
            *(cell for name in judged for cell in _judged(layer, name, found.get(name))),
            layer.source,
        )
        for layer in advice.layers
    ]
    notes = ("each layer measured by itself, so that the sum may differ from a whole batch",)
    return Table("Layers", ("layer", "kind", *(f"{name} ms" for name in _PARTS), *heads, "plan"), rows, notes, 2)


def _judged(layer: LayerFinding, name: str, source: SourceFinding | None) -> tuple[str, str, str]:
    """The time of a source in a layer, what it needs to pay and what it has."""
    if name not in layer.source_seconds:
        return "-", "-", "-"
    figures = source.layers.get(layer.name, {}) if source else {}
    figure = figures.get("added_variance" if specs()[name].unbiased else "cosine")
    has = "-" if figure is None else f"{figure:.2f}"
    return f"{1e3 * layer.source_seconds[name]:.2f}", layer.break_even[name], has


def advice_png(advice: Advice, dpi: int = 130) -> bytes:
    """Two panels as PNG: where the time goes, by layer where known, and the error of each source by its seconds."""
    shown = _slowest(advice.layers)
    figure, panels = figure_with(13, max(5.0, 1.5 + 0.2 * len(shown)), 1, 2)
    if shown:
        _draw_layers(panels[0], shown, len(advice.layers))
    else:
        _draw_phases(panels[0], advice)
    _draw_sources(panels[1], advice)
    return saved(figure, dpi=dpi)


def _slowest(layers: Sequence[LayerFinding]) -> list[LayerFinding]:
    """As many of the slowest layers as can be drawn, in the order of the model."""
    kept = sorted(layers, key=_seconds, reverse=True)[:MOST_LAYERS]
    return [layer for layer in layers if layer in kept]


def _seconds(layer: LayerFinding) -> float:
    return layer.forward_seconds + layer.input_gradient_seconds + layer.weight_gradient_seconds


def _draw_layers(panel: Any, layers: Sequence[LayerFinding], count: int) -> None:
    left = [0.0] * len(layers)
    for name, (field, colour) in _PARTS.items():
        widths = [1e3 * getattr(layer, field) for layer in layers]
        panel.barh([layer.name for layer in layers], widths, left=left, color=colour, label=name)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    less = f", the slowest {len(layers)} of {count}" if len(layers) < count else ""
    dress(panel, f"Where the time goes{less}", "ms a batch, each layer by itself", "")
    panel.tick_params(axis="y", labelsize=7)
    panel.invert_yaxis()
    panel.legend(fontsize=8)


def _draw_phases(panel: Any, advice: Advice) -> None:
    panel.barh(list(advice.phases), [1e3 * seconds for seconds in advice.phases.values()], color="#0072B2")
    dress(panel, "Where the time goes; layers were not measured", "ms a batch", "")
    panel.invert_yaxis()


def _draw_sources(panel: Any, advice: Advice) -> None:
    for source in advice.sources:
        across, up = 1e3 * source.option.seconds, source.error
        panel.plot([across], [up], "o", color="#009E73" if source.option.pays else "#D55E00")
        panel.annotate(source.option.name, (across, up), xytext=(5, 4), textcoords="offset points", fontsize=8)
    if not advice.sources:
        panel.text(0.5, 0.5, "no source was measured", transform=panel.transAxes, ha="center")
    panel.axvline(1e3 * advice.seconds, color="#000000", linestyle="--", linewidth=1, label="exact, as it is")
    if advice.spread is not None:
        panel.axhline(advice.spread, color="#999999", linestyle=":", linewidth=1.5, label="between two batches")
    panel.set_yscale("symlog", linthresh=_LINEAR)
    panel.set_ylim(bottom=0)
    panel.set_xlim(left=0)
    dress(panel, "Error of each source", "ms a batch", "squared error over the squared exact gradient")
    panel.legend(fontsize=8)


def pipelines_table(found: Sequence[PipelineFinding]) -> Table:
    """A training cut into stages, under each scheme."""
    first = found[0]
    return Table(
        f"In a pipeline of {first.devices} stages and {first.microbatches} micro-batches",
        ("scheme", "bubbles", "speed-up", "longest stage", "GP at most"),
        [
            (
                one.scheme,
                f"{100 * one.bubbles:.0f} %",
                f"{one.speed_up:.2f}",
                f"{one.imbalance:.2f}",
                f"{one.gp_speed_up:.2f}",
            )
            for one in found
        ],
        (
            "computed from the measured layers, with devices like this one and messages that take no time",
            f"speed-up: over one device; longest stage: over the mean; stages start at {', '.join(first.starts)}",
            "GP at most: what 4 GP batches to a BP batch could add if predictions cost nothing and were exact",
        ),
    )


def page(advice: Advice, subject: str, pipelines: Sequence[PipelineFinding] = ()) -> str:
    """The page, verdict first; `subject` names the training."""
    layers = f"{table_html(layers_table(advice))}\n" if advice.layers else ""
    image = base64.b64encode(advice_png(advice)).decode()
    code = "\n".join(advice.code())
    lines = f"<h2>Write</h2>\n<pre>{escape(code)}</pre>\n" if code else ""
    return document(
        f"{subject}: what would make it faster?",
        f'<p class="verdict">{escape(chr(10).join(advice.verdict))}</p>\n{lines}'
        f"{table_html(options_table(advice))}\n"
        '<p class="scroll"><img alt="Where the time goes; error against milliseconds for each source" '
        f'src="data:image/png;base64,{image}"></p>\n{layers}'
        + (f"{table_html(pipelines_table(pipelines))}\n" if pipelines else ""),
    )
