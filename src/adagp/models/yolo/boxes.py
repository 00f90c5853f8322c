"""Decoding of raw predictions to boxes, and non-maximum suppression.

Boxes are fractions of the image, 0 to 1, and so independent of its size. A `centre` box is x, y, width, height; a
`corner` box is left, top, right, bottom.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

# Width and height in pixels of a 416x416 image, from the paper (section 2.3); coarse scale first, as in the output.
ANCHORS = (
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
_ANCHOR_IMAGE = 416


@dataclass(frozen=True)
class Grid:
    """Positions of the P predictions of an image, coarse scale first.

    Attributes:
        cells: Column and row of its cell, (P, 2).
        sizes: Columns and rows of its scale, (P, 2).
        anchors: Width and height of its anchor as fractions of the image, (P, 2).
    """

    cells: Tensor
    sizes: Tensor
    anchors: Tensor


class Detections(NamedTuple):
    """Objects found in one image, by descending score: corner boxes (K, 4), scores (K,) and classes (K,)."""

    boxes: Tensor
    scores: Tensor
    classes: Tensor


def anchor_shares(device: torch.device | None = None) -> Tensor:
    """All anchors as fractions of the image, (scales, anchors, 2).

    The fractions hold for images of any size, because objects scale with their image.
    """
    return torch.tensor(ANCHORS, dtype=torch.float32, device=device) / _ANCHOR_IMAGE


def flatten(outputs: Sequence[Tensor]) -> Tensor:
    """Concatenate the predictions of all scales: (N, P, 5 + classes)."""
    return torch.cat([output.flatten(1, 3) for output in outputs], 1)


def grid(outputs: Sequence[Tensor]) -> Grid:
    """Positions of the predictions in the order of `flatten`."""
    device = outputs[0].device
    cells, sizes, anchors = [], [], []
    for output, shares in zip(outputs, anchor_shares(device), strict=True):
        count, height, width = output.shape[1:4]
        rows, columns = torch.meshgrid(
            torch.arange(height, device=device), torch.arange(width, device=device), indexing="ij"
        )
        cells.append(torch.stack((columns, rows), -1).reshape(-1, 2).repeat(count, 1))
        sizes.append(torch.tensor([width, height], device=device).expand(count * height * width, 2))
        anchors.append(shares.repeat_interleave(height * width, 0))
    return Grid(torch.cat(cells), torch.cat(sizes), torch.cat(anchors))


def centre_boxes(raw: Tensor, where: Grid) -> Tensor:
    """Centre boxes (N, P, 4) of flat raw predictions: sigmoids shift within a cell, exponentials scale an anchor."""
    centre = (raw[..., :2].sigmoid() + where.cells) / where.sizes
    return torch.cat((centre, where.anchors * raw[..., 2:4].exp()), -1)


def corners(centred: Tensor) -> Tensor:
    """Centre boxes (..., 4) as corner boxes."""
    middle, half = centred[..., :2], centred[..., 2:] / 2
    return torch.cat((middle - half, middle + half), -1)


def decode(outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Decode raw predictions to corner boxes (N, P, 4) within the image and class scores (N, P, classes)."""
    raw = flatten(outputs)
    boxes = corners(centre_boxes(raw, grid(outputs))).clamp(0, 1)
    return boxes, raw[..., 4:5].sigmoid() * raw[..., 5:].sigmoid()


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every corner box of `first` (A, 4) with every one of `second` (B, 4): (A, B)."""
    low = torch.maximum(first[:, None, :2], second[None, :, :2])
    high = torch.minimum(first[:, None, 2:], second[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - common
    return common / union.clamp(min=torch.finfo(union.dtype).tiny)


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """Non-maximum suppression: indices of the boxes to keep, by descending score.

    A box is dropped if a kept one of higher score overlaps it by more than the threshold.
    """
    order = scores.argsort(descending=True, stable=True)
    overlaps = iou(boxes[order], boxes[order]) > iou_threshold
    dropped = [False] * len(order)
    kept = []
    for place, row in enumerate(overlaps.tolist()):
        if not dropped[place]:
            kept.append(place)
            dropped = [before or now for before, now in zip(dropped, row, strict=True)]
    return order[torch.tensor(kept, dtype=torch.long, device=order.device)]


def detect(
    outputs: Sequence[Tensor], *, score_threshold: float = 0.05, iou_threshold: float = 0.5, limit: int = 100
) -> list[Detections]:
    """Detect objects in each image: scores above a threshold, then non-maximum suppression within each class.

    Only the 10 * `limit` candidates of highest score are compared with each other. An untrained network has thousands
    of candidates, whose comparison would take minutes.
    """
    found = []
    for boxes, scores in zip(*decode(outputs), strict=True):
        place, label = (scores > score_threshold).nonzero(as_tuple=True)
        value = scores[place, label]
        best = value.topk(min(len(value), 10 * limit)).indices
        place, label, value = place[best], label[best], value[best]
        # An offset per class keeps boxes of different classes from overlapping: the image has width 1.
        kept = nms(boxes[place] + 2.0 * label[:, None], value, iou_threshold)[:limit]
        found.append(Detections(boxes[place[kept]], value[kept], label[kept]))
    return found
