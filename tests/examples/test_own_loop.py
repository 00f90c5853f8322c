import re
from collections.abc import Callable


def test_own_loop_learns_and_resumes_bit_for_bit(run_example: Callable[..., str]) -> None:
    printed = run_example("own_loop.py")
    assert re.search(r"^0 +Conv2d +160 +yes$", printed, re.MULTILINE)
    assert re.search(r"^1 +BatchNorm2d +32 +no ", printed, re.MULTILINE)
    accuracies = [float(value) for value in re.findall(r"accuracy ([\d.]+)%", printed)]
    assert len(accuracies) == 6
    assert accuracies[-1] > 70  # ten classes: chance gives 10
    # 6 epochs of 25 batches, 3 layers: 2 epochs of warm-up, then rungs of 4:1, 3:1, 2:1 and 1:1 of an epoch each.
    assert "layer updates by source: {'backprop': 243, 'predicted': 207}" in printed
    assert printed.rstrip().endswith("the resumed run has the same weights, bit for bit: True")
