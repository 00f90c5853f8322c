"""What a layer's passes take in tiles, moves included; `rtl.tiled` computes it."""

from dataclasses import dataclass

from adagp.accelerator.array_tasks import ArrayTask


@dataclass(frozen=True)
class TiledCosts:
    """Cycles of each pass of a layer on one design, from barrier to barrier.

    Attributes:
        forward: The forward, with pooling for the predictor, if the design has one.
        input_grad: The input gradient.
        weight_grad: The weight gradient and the update, and the predictor's error, if it learns.
        predict: A prediction to learn from.
        predict_update: A prediction that is subtracted from the weights.
        learn: The predictor's learning.
    """

    forward: int
    input_grad: int
    weight_grad: int
    predict: int
    predict_update: int
    learn: int

    def backward_cycles(self, task: ArrayTask) -> int:
        """Cycles of the gradients that a task asks for."""
        return (self.input_grad if task.input_grad else 0) + (self.weight_grad if task.weight_grad else 0)

    def predict_cycles(self, task: ArrayTask) -> int:
        """Cycles of the prediction that a task asks for."""
        if not task.predict:
            return 0
        return self.predict if task.learn else self.predict_update
