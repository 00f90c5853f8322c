"""`python -m scripts.freeze_networks` traces the papers' networks and writes them into the package as CSV."""

import csv
import io
from pathlib import Path

import adagp.accelerator
from adagp.accelerator.networks import FROZEN, file_name, fresh, stored_data
from adagp.accelerator.workload import LayerOp

FOLDER = Path(adagp.accelerator.__file__).parent / "frozen"


def frozen_text(model: str, form: str) -> str:
    """The content of one file: a line per product."""
    rows = [_row(op) for op in fresh(model, stored_data(form))]
    text = io.StringIO()
    lines = csv.DictWriter(text, rows[0], lineterminator="\n")
    lines.writeheader()
    lines.writerows(rows)
    return text.getvalue()


def _row(op: LayerOp) -> dict[str, str | int]:
    shape = op.shape
    return {
        "name": op.name,
        "kind": op.kind,
        "c_in": shape.c_in,
        "c_out": shape.c_out,
        "out": _by(shape.out),
        "kernel": _by(shape.kernel),
        "stride": _by(shape.stride),
        "groups": shape.groups,
        "batch": shape.batch,
        "image": _by(shape.image),
        "dilation": _by(shape.dilation),
        "transposed": int(shape.transposed),
        "passes": " ".join(which.value for which in op.passes),
        "covered": int(op.covered),
        "bias": int(op.bias),
        "vector_words": op.vector_words,
        "pooling": " ".join(map(str, op.pooling)),
    }


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))


def main() -> None:
    """Write every file."""
    for model, form in FROZEN:
        (FOLDER / file_name(model, form)).write_text(frozen_text(model, form), encoding="utf-8")


if __name__ == "__main__":
    main()
