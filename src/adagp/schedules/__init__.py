"""Schedules: which source supplies each layer's gradient in each batch."""

from typing import TYPE_CHECKING

from adagp.lazy import lazily
from adagp.schedules.adaptive import Adaptive, adaptive
from adagp.schedules.approximation import APPROXIMATIONS, approximate, approximation
from adagp.schedules.economical import Economical, economical
from adagp.schedules.growing import Growing, growing
from adagp.schedules.ladder import COARSE, Ladder, fixed, ladder
from adagp.schedules.plan import Phase, Plan, Probe, Repeating, Schedule, always_backprop, always_local, from_function
from adagp.schedules.prefix import prefix
from adagp.schedules.progressive import Progressive, progressive
from adagp.schedules.resolve import LayerTask, ResolvedPlan, resolve
from adagp.schedules.sources import GradientWork, SourceSpec
from adagp.schedules.table import from_table, to_table
from adagp.schedules.trials import Trial

if TYPE_CHECKING:
    from adagp.layers.coverage import layer_names

__all__ = [
    "APPROXIMATIONS",
    "COARSE",
    "Adaptive",
    "Economical",
    "GradientWork",
    "Growing",
    "Ladder",
    "LayerTask",
    "Phase",
    "Plan",
    "Probe",
    "Progressive",
    "Repeating",
    "ResolvedPlan",
    "Schedule",
    "SourceSpec",
    "Trial",
    "adaptive",
    "always_backprop",
    "always_local",
    "approximate",
    "approximation",
    "economical",
    "fixed",
    "from_function",
    "from_table",
    "growing",
    "ladder",
    "layer_names",
    "prefix",
    "progressive",
    "resolve",
    "to_table",
]

__getattr__ = lazily(__name__, {"layer_names": "adagp.layers.coverage"})
