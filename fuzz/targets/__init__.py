"""The kinds of input, one file each."""

from fuzz.case import Target
from fuzz.targets import (
    archives,
    checkpoints,
    folders,
    kills,
    layer_strings,
    machines,
    options,
    patterns,
    recipes,
    tables,
)

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        recipes,
        options,
        tables,
        layer_strings,
        machines,
        patterns,
        checkpoints,
        archives,
        folders,
        kills,
    )
}
