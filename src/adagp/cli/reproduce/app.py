"""Every command of `adagp reproduce`: its module and its summary."""

import typer

from adagp.cli.groups import MARKUP, LazyGroup, Listed

_ACCURACY, _ACCELERATOR = "adagp.cli.reproduce.accuracy", "adagp.cli.reproduce.accelerator"
_PIPELINE, _HARDWARE = "adagp.cli.reproduce.pipeline", "adagp.cli.reproduce.hardware"
_APPROXIMATION = "adagp.cli.reproduce.approximation"

RESULTS = {
    "numbers": Listed(
        "adagp.cli.reproduce.numbers",
        "numbers_command",
        "Every figure, table and stated number of the four papers: reproduced, refuted or not checkable here.",
    ),
    "fig7-9": Listed(
        "adagp.cli.reproduce.timelines",
        "timelines_command",
        "Figures 7 to 9 of the ADA-GP paper: one chip, layer by layer; and how often devices wait for each other.",
    ),
    "fig10": Listed(_PIPELINE, "fig10_command", "Figure 10 of the ADA-GP paper: its phases over gpipe."),
    "fig11": Listed(_PIPELINE, "fig11_command", "Figure 11 of the ADA-GP paper: its phases over dapple."),
    "fig12": Listed(_PIPELINE, "fig12_command", "Figure 12 of the ADA-GP paper: its phases over chimera."),
    "predictor-quality": Listed(
        _ACCURACY,
        "quality_command",
        "Figure 15 of the ADA-GP paper: MAPE and MSE of the predictions in each layer of VGG-13, over the epochs.",
    ),
    "fig16": Listed(
        _ACCELERATOR,
        "fig16_command",
        "Figure 16 of the ADA-GP paper: VGG13 layer by layer, plain and with ADA-GP-Efficient.",
    ),
    "fig17": Listed(
        _ACCELERATOR, "fig17_command", "Figure 17 of the ADA-GP paper: speed-up of the three designs, dataflow ws."
    ),
    "fig18": Listed(
        _ACCELERATOR, "fig18_command", "Figure 18 of the ADA-GP paper: speed-up of the three designs, dataflow rs."
    ),
    "fig19": Listed(
        _ACCELERATOR, "fig19_command", "Figure 19 of the ADA-GP paper: speed-up of the three designs, dataflow is."
    ),
    "fig20": Listed(
        _PIPELINE,
        "fig20_command",
        "Figure 20 of the ADA-GP paper: its speed-up over GPipe, DAPPLE and Chimera for thirteen networks on ImageNet.",
    ),
    "fig21": Listed(
        _ACCELERATOR,
        "fig21_command",
        "Figure 21 of the ADA-GP paper: memory energy saved, by network, policy and table of energies.",
    ),
    "table1": Listed(
        _ACCURACY,
        "table1_command",
        "Table 1 of the ADA-GP paper: accuracy of image classifiers by backpropagation and by ADA-GP.",
    ),
    "table2": Listed(
        _ACCURACY,
        "table2_command",
        "Table 2 of the ADA-GP paper: a Transformer on Multi30k; token accuracy, loss, BLEU, seconds.",
    ),
    "table3": Listed(
        _ACCURACY,
        "table3_command",
        "Table 3 of the ADA-GP paper: YOLO-v3 on Pascal VOC; class accuracy, mAP at IoU 0.5, seconds.",
    ),
    "table4": Listed(
        _HARDWARE,
        "table4_command",
        "Table 4 of the ADA-GP paper: resources on a 7-series FPGA, the baseline and the three designs.",
    ),
    "table5": Listed(
        _HARDWARE,
        "table5_command",
        "Table 5 of the ADA-GP paper: area in um2 of standard cells, the baseline and the three designs.",
    ),
    "table2-cycles": Listed(
        _ACCELERATOR, "table2_command", "Table 2 of the ADA-GP paper: the cycles of transformer on multi30k."
    ),
    "table3-cycles": Listed(
        _ACCELERATOR, "table3_command", "Table 3 of the ADA-GP paper: the cycles of yolo_v3 on voc2007."
    ),
    "iso-power": Listed(
        _ACCELERATOR,
        "iso_power_command",
        "Section 6.6.1 of the ADA-GP paper: MAX against a larger baseline of equal power.",
    ),
    "iso-area": Listed(
        _ACCELERATOR,
        "iso_area_command",
        "Section 6.6.1 of the ADA-GP paper: MAX against a larger baseline of equal area.",
    ),
    "approximation-kernel": Listed(
        _APPROXIMATION,
        "kernel_command",
        "Table 1 of the gradient-approximation paper: the topk kernel against the dense weight gradient.",
    ),
    "approximation-accuracy": Listed(
        _APPROXIMATION,
        "accuracy_command",
        "Tables 2 to 5 of the gradient-approximation paper: speed and accuracy of zero, random and topk.",
    ),
}


class _Results(LazyGroup):
    listed = RESULTS


reproduce_app = typer.Typer(
    cls=_Results,
    rich_markup_mode=MARKUP,
    no_args_is_help=True,
    help="Reproduce the papers' tables and figures, ours beside theirs.",
)


@reproduce_app.callback()
def _root() -> None:
    pass
