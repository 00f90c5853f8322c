"""YOLO-v3's loss: squared errors of boxes, binary cross-entropies of objectness and of each class."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from adagp.models.yolo.boxes import Grid, anchor_shares, centre_boxes, corners, flatten, grid, iou

_IGNORED = 0.5
"""A prediction that is not responsible for an object but overlaps it by more than this has no objectness loss."""


def targets(owners: Tensor, labels: Tensor, boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Convert the objects of a `DetectionBatch` to the rows that `loss` takes, (M, 6).

    Args:
        owners: Index of the image in the batch that each object is in, (M,).
        labels: Classes, (M,).
        boxes: Left, top, right, bottom in pixels, (M, 4).
        size: Height and width of the images in pixels.
    """
    shares = boxes / torch.tensor([size[1], size[0], size[1], size[0]], device=boxes.device)
    centre, extent = (shares[:, :2] + shares[:, 2:]) / 2, shares[:, 2:] - shares[:, :2]
    return torch.cat((owners[:, None], labels[:, None], centre, extent), 1)


def answers(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
    """The raw predictions (M, 5 + classes) responsible for the objects; `[:, 5:].argmax(1)` are their classes.

    Args:
        outputs: The network's output.
        targets: One row per object, (M, 6): index of the image in the batch, class, and its centre box as
            fractions of the image (x, y, width, height).
    """
    return flatten(outputs)[targets[:, 0].long(), _places(outputs, targets)]


def loss(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
    """The sum over all predictions of an image, averaged over the batch.

    One prediction is responsible for each object: that of the anchor closest in shape, in the cell of its centre. All
    others should predict no object, unless they overlap one by more than half. Small boxes weigh up to twice as much,
    because an error of one pixel is larger for them.

    Args:
        outputs: The network's output.
        targets: Objects of all images, as in `answers`; (0, 6) for no objects.

    Raises:
        ValueError: for invalid targets.
    """
    raw, where = flatten(outputs), grid(outputs)
    _check(targets, images=raw.shape[0], classes=raw.shape[2] - 5)
    image, place = targets[:, 0].long(), _places(outputs, targets)
    answer, box = raw[image, place], targets[:, 2:]

    objectness = torch.zeros_like(raw[..., 4])
    objectness[image, place] = 1
    judged = ~_overlapping(raw.detach(), where, targets)
    judged[image, place] = True
    total = functional.binary_cross_entropy_with_logits(raw[..., 4][judged], objectness[judged], reduction="sum")

    classes = functional.one_hot(targets[:, 1].long(), raw.shape[2] - 5).to(raw.dtype)
    total = total + functional.binary_cross_entropy_with_logits(answer[:, 5:], classes, reduction="sum")

    offset = box[:, :2] * where.sizes[place] - where.cells[place]
    scale = (box[:, 2:] / where.anchors[place]).log()
    errors = torch.cat((answer[:, :2].sigmoid() - offset, answer[:, 2:4] - scale), 1).square().sum(1)
    total = total + (errors * (2 - box[:, 2] * box[:, 3])).sum()
    return total / raw.shape[0]


def _places(outputs: Sequence[Tensor], targets: Tensor) -> Tensor:
    """For each object, the index of the responsible one among an image's flat predictions."""
    anchors = anchor_shares(targets.device)
    size = targets[:, None, 4:]
    common = torch.minimum(size, anchors.flatten(0, 1)).prod(-1)
    union = size.prod(-1) + anchors.flatten(0, 1).prod(-1) - common
    best = (common / union).argmax(1)
    scale, anchor = best // anchors.shape[1], best % anchors.shape[1]

    shapes = torch.tensor([output.shape[1:4] for output in outputs], device=targets.device)
    starts = shapes.prod(1).cumsum(0) - shapes.prod(1)
    height, width = shapes[scale, 1], shapes[scale, 2]
    column = (targets[:, 2] * width).long().clamp(max=width - 1)
    row = (targets[:, 3] * height).long().clamp(max=height - 1)
    return starts[scale] + (anchor * height + row) * width + column


@torch.no_grad()
def _overlapping(raw: Tensor, where: Grid, targets: Tensor) -> Tensor:
    """Which predictions (N, P) overlap an object of their image by more than `_IGNORED`."""
    boxes = corners(centre_boxes(raw, where))
    objects = corners(targets[:, 2:])
    found = torch.zeros(raw.shape[:2], dtype=torch.bool, device=raw.device)
    for image in targets[:, 0].long().unique().tolist():
        found[image] = (iou(boxes[image], objects[targets[:, 0] == image]) > _IGNORED).any(1)
    return found


def _check(targets: Tensor, *, images: int, classes: int) -> None:
    if targets.dim() != 2 or targets.shape[1] != 6:
        raise ValueError(
            f"targets: expected rows of image, class, x, y, width, height: (M, 6), got {tuple(targets.shape)}"
        )
    for column, name, count in ((0, "images", images), (1, "classes", classes)):
        values = targets[:, column]
        if ((values < 0) | (values >= count)).any():
            raise ValueError(f"targets: column {column} must name one of {count} {name}, counted from 0")
    if ((targets[:, 2:4] < 0) | (targets[:, 2:4] > 1)).any() or (targets[:, 4:] <= 0).any():
        raise ValueError("targets: boxes must be x, y, width, height as fractions of the image, the last two positive")
