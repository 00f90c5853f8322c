"""Mean average precision, by faster-coco-eval."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

IOU = 0.5


@dataclass(frozen=True)
class ImageDetections:
    """The objects of an image and what was detected in it; boxes are x1 y1 x2 y2 in pixels.

    Attributes:
        boxes: Boxes of the objects, (M, 4).
        labels: Classes of the objects, (M,).
        difficult: Which objects are not counted, (M,): neither finding nor missing them matters.
        detected_boxes: Boxes of the detections, (K, 4).
        detected_labels: Classes of the detections, (K,).
        scores: Confidence of each detection, (K,).
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor
    detected_boxes: Tensor
    detected_labels: Tensor
    scores: Tensor


def mean_average_precision(found: Sequence[ImageDetections]) -> float:
    """COCO's average precision (101 recall levels) at IoU 0.5, averaged over the classes that occur; 0 without any.

    Difficult objects are passed as COCO's crowds, which are not counted.
    """
    import numpy as np
    from faster_coco_eval import COCO, COCOeval_faster

    detections = [
        {"image_id": image, "category_id": label, "bbox": _corner_and_size(box), "score": score}
        for image, one in enumerate(found, 1)
        for box, label, score in zip(
            one.detected_boxes.tolist(), one.detected_labels.tolist(), one.scores.tolist(), strict=True
        )
    ]
    objects = [
        {"image_id": image, "category_id": label, "bbox": _corner_and_size(box), "iscrowd": int(difficult)}
        for image, one in enumerate(found, 1)
        for box, label, difficult in zip(one.boxes.tolist(), one.labels.tolist(), one.difficult.tolist(), strict=True)
    ]
    if not detections or not objects:
        return 0.0
    categories = sorted({entry["category_id"] for entry in (*objects, *detections)})
    truth = COCO(
        {
            "images": [{"id": image} for image in range(1, len(found) + 1)],
            "categories": [{"id": category, "name": str(category)} for category in categories],
            "annotations": [
                {**entry, "id": number, "area": entry["bbox"][2] * entry["bbox"][3]}
                for number, entry in enumerate(objects, 1)
            ],
        }
    )
    evaluation = COCOeval_faster(truth, truth.loadRes(detections), "bbox")
    evaluation.params.iouThrs = np.array([IOU])
    evaluation.evaluate()
    evaluation.accumulate()
    precision = np.asarray(evaluation.eval["precision"])[0, :, :, 0, -1]  # recall levels x classes, all areas
    present = precision[:, precision.max(0) > -1]  # a class without objects has precision -1 everywhere
    return float(present.mean()) if present.size else 0.0


def _corner_and_size(box: list[float]) -> list[Any]:
    """The box in COCO's form: x, y, width, height."""
    x1, y1, x2, y2 = box
    return [x1, y1, x2 - x1, y2 - y1]
