from typing import Any

import pytest

from adagp.training import Recipe, RecipeError, Settings
from adagp.training.method_options import unused_options

TABLE = """layer            1         2          3
features.0       backprop  zero       backprop
features.*       topk      predicted  backprop
"""


@pytest.mark.parametrize(
    ("methods", "changes", "message"),
    [
        (
            ("bp", "adagp"),
            {"schedule": "1"},
            "schedule would change nothing for bp, adagp: it is for zero, random, topk",
        ),
        (("zero",), {"schedule": "4"}, "unknown schedule '4': choose one of 1, 2, 3, second-layer"),
        (("table",), {}, "method table needs a table"),
        (("table",), {"schedule": "2"}, "method table needs a table"),
        (("bp", "zero"), {"schedule": TABLE}, "for a table use method table"),
        (("topk",), {"schedule": "ladder"}, "unknown schedule 'ladder'"),
        (("bp", "zero"), {"topk": 4}, "topk and topk_scale would change nothing for bp, zero"),
        (("bp", "random"), {"topk_scale": 0.5}, "topk and topk_scale would change nothing"),
        (
            ("bp", "economical"),
            {"rate": 0.5},
            "rate or keep would change nothing for bp, economical: it is for sampled",
        ),
        (("bp",), {"keep": "rows"}, "rate or keep would change nothing for bp"),
        (("topk",), {"until": "stem"}, "until would change nothing for topk: it is for prefix"),
        (("bp",), {"parts": 3, "head": "predsim"}, "parts and head would change nothing for bp: it is for local"),
        (("bp", "skip"), {"predictor": "paper"}, "predictor = paper would change nothing for bp, skip"),
        (("table",), {"schedule": "layer 1\n* zero\n", "predictor": "paper"}, "predictor = paper would change nothing"),
    ],
)
def test_options_of_no_use_are_refused(methods: tuple[str, ...], changes: dict[str, Any], message: str) -> None:
    recipe = Recipe(**changes)
    assert message in "; ".join(unused_options(methods, recipe))
    with pytest.raises(RecipeError, match=message.split("'")[0]):
        Settings(recipe, methods, (0,))


@pytest.mark.parametrize(
    ("methods", "changes"),
    [
        *((("bp", "zero", "random"), {"schedule": name}) for name in (None, "1", "2", "3", "second-layer")),
        (("bp", "topk"), {"topk": 4, "topk_scale": 0.5}),
        (("bp", "sampled"), {"rate": 0.5, "keep": "rows"}),
        (("economical",), {"keep": "rows"}),
        (("table",), {"schedule": "layer 1\n* sampled\n", "rate": 0.1}),
        (("table",), {"schedule": TABLE, "topk": 4, "predictor": "paper"}),
        (("prefix-zero", "adagp-paper"), {"until": "stem", "predictor": "paper"}),
    ],
)
def test_options_of_use_are_not(methods: tuple[str, ...], changes: dict[str, Any]) -> None:
    assert unused_options(methods, Recipe(**changes)) == []
