"""The three ADA-GP designs as a picture: what the baseline has, and what each adds."""

from io import BytesIO
from typing import Any

from adagp.accelerator import Design
from adagp.accelerator.rtl.geometry import CoreGeometry
from adagp.accelerator.rtl.top import MAIN, PREDICTOR, geometries

_BASE, _ADDED, _LINE = "#dfe7f2", "#f9c98b", "#3b4a63"
_TITLES = {
    Design.LOW: "LOW: the baseline, and lanes that pool",
    Design.EFFICIENT: "Efficient: and a memory for the predictor",
    Design.MAX: "MAX: and a second core for the predictor",
}


def designs_png(array: tuple[int, int], second_array: tuple[int, int], dpi: int = 110) -> bytes:
    """The designs side by side; what a design adds to the baseline is coloured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 6.2), layout="constrained")
    for axes, (design, title) in zip(figure.subplots(1, 3), _TITLES.items(), strict=True):
        axes.set_xlim(0, 10)
        axes.set_ylim(0, 12)
        axes.axis("off")
        axes.set_title(title, fontsize=13, color=_LINE)
        cores = geometries(design, array, second_array)
        alone = PREDICTOR not in cores
        _box(axes, 0.1, 5.7 if alone else 0.2, 1.2, 5.9 if alone else 11.4, "outside\nmemory", _BASE)
        _core(axes, 6.3, cores[MAIN], added=False)
        if alone:
            _box(axes, 1.9, 4.6, 0.5, 0.4, "", _ADDED)
            axes.text(2.6, 4.8, "added to the baseline", va="center", fontsize=10, color=_LINE)
        else:
            _core(axes, 0.3, cores[PREDICTOR], added=True)
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": "adagp"})
    return stream.getvalue()


def _core(axes: Any, bottom: float, core: CoreGeometry, added: bool) -> None:
    """One core in the height of 5.3 from `bottom` on."""
    colour = _ADDED if added else _BASE
    middle = bottom + 2.55
    _box(axes, 1.9, bottom + 4.5, 7.9, 0.8, "controller: descriptors in, addresses out", colour)
    _box(axes, 1.9, bottom + 1.5, 1.7, 2.1, f"input buffer\n{core.rows} banks x\n{core.input_depth:,} words", colour)
    _box(axes, 4.1, bottom + 1.5, 2.0, 2.1, f"{core.rows} x {core.columns}\nPEs", colour)
    _box(
        axes, 6.6, bottom + 1.5, 1.6, 2.1, f"output buffer\n{core.columns} banks x\n{core.output_depth:,} sums", colour
    )
    _box(axes, 8.6, bottom + 1.5, 1.2, 2.1, f"{core.columns} lanes:\nround,\nReLU,\nupdate", colour)
    name = "predictor weights\n" if added else "weight buffer\n"
    _box(axes, 4.1, bottom, 2.0, 1.0, f"{name}{core.columns} x {core.weight_depth:,}", colour)
    _arrow(axes, (1.3, middle), (1.9, middle))
    _arrow(axes, (3.6, middle), (4.1, middle))
    _arrow(axes, (6.1, middle + 0.4), (6.6, middle + 0.4))
    _arrow(axes, (6.6, middle - 0.4), (6.1, middle - 0.4))
    _arrow(axes, (8.2, middle), (8.6, middle))
    _arrow(axes, (5.1, bottom + 1.0), (5.1, bottom + 1.5))
    _arrow(axes, (1.3, bottom + 0.5), (4.1, bottom + 0.5))
    _arrow(axes, (1.3, bottom + 4.9), (1.9, bottom + 4.9))
    _line(axes, [9.2, 9.2, 1.6], [bottom + 1.5, bottom + 1.25, bottom + 1.25])
    _arrow(axes, (1.6, bottom + 1.25), (1.3, bottom + 1.25))
    if core.pools:
        _box(axes, 8.6, bottom + 3.65, 1.2, 0.6, "pool", _ADDED)
    if core.predictor_depth:
        label = f"predictor weights\n{core.columns} x {core.predictor_depth:,}"
        _box(axes, 6.6, bottom, 2.0, 1.0, label, _ADDED)
        _line(axes, [7.0, 7.0, 5.7], [bottom + 1.0, bottom + 1.12, bottom + 1.12])
        _arrow(axes, (5.7, bottom + 1.12), (5.7, bottom + 1.5))
        _line(axes, [1.3, 7.6, 7.6], [bottom - 0.35, bottom - 0.35, bottom - 0.2])
        _arrow(axes, (7.6, bottom - 0.3), (7.6, bottom))
    if added or core.predictor_depth:  # updated where they are
        place = 5.8 if added else 8.2
        _arrow(axes, (place, bottom + 1.25), (place, bottom + 1.0))


def _box(axes: Any, left: float, bottom: float, width: float, height: float, text: str, colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch((left, bottom), width, height, boxstyle=style, facecolor=colour, edgecolor=_LINE, lw=1.1)
    )
    axes.text(left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=8, color="#1c2433")


def _line(axes: Any, across: list[float], up: list[float]) -> None:
    axes.plot(across, up, color=_LINE, lw=1.1, zorder=0)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate(
        "", end, start, arrowprops={"arrowstyle": "->", "color": _LINE, "lw": 1.1, "shrinkA": 0, "shrinkB": 0}
    )
