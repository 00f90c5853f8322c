import math

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from adagp import models
from adagp.models import yolo
from adagp.models.yolo.boxes import ANCHORS


def _raw(size: int, classes: int = 3, images: int = 1) -> list[torch.Tensor]:
    """Raw predictions of nothing for square images."""
    outputs = [torch.zeros(images, 3, size // s, size // s, 5 + classes) for s in (32, 16, 8)]
    for output in outputs:
        output[..., 4] = -20.0
    return outputs


def test_published_size_and_work() -> None:
    """Darknet's yolov3.weights holds 62,001,757 numbers and its log says 65.86 BFLOPs, two for each multiply-add."""
    with torch.device("meta"):
        model = models.build("yolo_v3", num_classes=80).eval()
        with FlopCounterMode(display=False) as counter:
            outputs = model(torch.zeros(1, 3, 416, 416))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters == 61_949_149
    assert parameters + sum(buffer.numel() for buffer in model.buffers() if buffer.dim()) == 62_001_757
    assert counter.get_total_flops() / 1e9 == pytest.approx(65.86, abs=0.01)
    assert [tuple(output.shape) for output in outputs] == [(1, 3, side, side, 85) for side in (13, 26, 52)]
    assert sum(isinstance(module, torch.nn.Conv2d) for module in model.modules()) == 75


def test_any_multiple_of_32() -> None:
    with torch.device("meta"):
        model = models.build("yolo_v3").eval()
        outputs = model(torch.zeros(2, 3, 64, 96))
        assert [tuple(output.shape) for output in outputs] == [(2, 3, 2 * k, 3 * k, 25) for k in (1, 2, 4)]
        with pytest.raises(ValueError, match="images: height and width must be multiples of 32, got 64x80"):
            model(torch.zeros(1, 3, 64, 80))


def test_values_of_an_anchor_stay_together() -> None:
    """Channel `anchor * (5 + classes) + value` becomes [anchor, ..., value]; objectness starts at 1 in 100."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = models.build("yolo_v3", num_classes=2)
    assert isinstance(model, yolo.YoloV3)
    raw = torch.arange(21.0).reshape(1, 21, 1, 1).expand(1, 21, 2, 3)
    assert model._apart(raw)[0, 1, 0, 2].tolist() == [7, 8, 9, 10, 11, 12, 13]
    chance = models.build("yolo_v3", num_classes=1).coarse.predict.bias.sigmoid().reshape(3, 6)
    torch.testing.assert_close(chance[:, 4], torch.full((3,), 0.01))
    assert torch.equal(chance[:, 5], torch.full((3,), 0.5))


def test_decode_by_hand() -> None:
    outputs = _raw(64)
    # Scale of stride 16 (4x4 cells), anchor 1 of that scale, row 2, column 3.
    outputs[1][0, 1, 2, 3] = torch.tensor([0.4, -0.3, 0.2, -0.1, 1.5, 2.0, -1.0, 0.5])

    def sigmoid(value: float) -> float:
        return 1 / (1 + math.exp(-value))

    width, height = ANCHORS[1][1][0] / 416 * math.exp(0.2), ANCHORS[1][1][1] / 416 * math.exp(-0.1)
    x, y = (3 + sigmoid(0.4)) / 4, (2 + sigmoid(-0.3)) / 4
    boxes, scores = yolo.decode(outputs)
    best = scores[0, :, 0].argmax()
    expected = torch.tensor([x - width / 2, y - height / 2, x + width / 2, y + height / 2])
    torch.testing.assert_close(boxes[0, best], expected)
    torch.testing.assert_close(scores[0, best], torch.tensor([sigmoid(1.5) * sigmoid(v) for v in (2.0, -1.0, 0.5)]))
    assert boxes.shape == (1, 3 * (4 + 16 + 64), 4)
    assert boxes.min() >= 0
    assert boxes.max() <= 1


def test_iou_against_counting_pixels() -> None:
    torch.manual_seed(0)
    low = torch.randint(0, 15, (6, 2))
    boxes = torch.cat((low, low + torch.randint(1, 15, (6, 2))), 1)
    pixels = torch.zeros(6, 30, 30, dtype=torch.bool)
    for mask, (left, top, right, bottom) in zip(pixels, boxes.tolist(), strict=True):
        mask[top:bottom, left:right] = True
    expected = [[((a & b).sum() / (a | b).sum()).item() for b in pixels] for a in pixels]
    torch.testing.assert_close(yolo.iou(boxes.float(), boxes.float()), torch.tensor(expected))
    assert yolo.iou(torch.zeros(1, 4), torch.zeros(1, 4)).item() == 0


def test_nms_keeps_the_surest_of_what_overlaps() -> None:
    boxes = torch.tensor([[0, 0, 10, 10], [1, 0, 11, 10], [20, 0, 30, 10], [2, 0, 12, 10], [5, 0, 15, 10]]).float()
    scores = torch.tensor([0.8, 0.9, 0.3, 0.7, 0.6])
    # 1 removes 0 and 3 (9/11 each); 4 overlaps 1 by 6/14 and stays, though 3, which is gone, overlaps it by 7/13.
    assert yolo.nms(boxes, scores, 0.5).tolist() == [1, 4, 2]
    assert yolo.nms(boxes, scores, 0.4).tolist() == [1, 2]
    assert yolo.nms(boxes, scores, 0.99).tolist() == [1, 0, 3, 4, 2]
    assert yolo.nms(torch.zeros(0, 4), torch.zeros(0), 0.5).tolist() == []


def test_nms_against_the_definition() -> None:
    torch.manual_seed(0)
    low = torch.rand(60, 2)
    boxes, scores = torch.cat((low, low + 0.5 * torch.rand(60, 2)), 1), torch.rand(60)
    kept: list[int] = []
    for index in sorted(range(60), key=lambda i: -scores[i].item()):
        if all(yolo.iou(boxes[index : index + 1], boxes[k : k + 1]).item() <= 0.3 for k in kept):
            kept.append(index)
    assert 5 < len(kept) < 55
    assert yolo.nms(boxes, scores, 0.3).tolist() == kept


def test_detect_suppresses_within_a_class_only() -> None:
    outputs = _raw(64, images=2)
    for anchor, objectness in ((0, 4.0), (1, 3.0)):
        outputs[0][0, anchor, 0, 0, 4] = objectness
        outputs[0][0, anchor, 0, 0, 5:] = torch.tensor([5.0, 5.0, -20.0])
        outputs[0][0, anchor, 0, 0, 2:4] = torch.tensor(
            [math.log(416 / side) for side in ANCHORS[0][anchor]]
        )  # both cover the image
    first, second = yolo.detect(outputs)
    assert sorted(first.classes.tolist()) == [0, 1]
    torch.testing.assert_close(
        first.scores, torch.full((2,), torch.tensor(4.0).sigmoid() * torch.tensor(5.0).sigmoid())
    )
    assert second.boxes.shape == (0, 4)
    assert len(yolo.detect(outputs, iou_threshold=1.0)[0].scores) == 4
    assert len(yolo.detect(outputs, limit=1)[0].scores) == 1


def test_untrained_network_is_soon_done_detecting() -> None:
    torch.manual_seed(0)
    outputs = [10 * torch.randn(1, 3, side, side, 25) for side in (13, 26, 52)]
    (found,) = yolo.detect(outputs, limit=10)
    assert len(found.scores) == 10


# One object the size of the anchor (62, 45) of the middle scale, at column 2, row 1 of its 4x4 cells.
OBJECT = [0, 2, 0.65, 0.3, 62 / 416, 45 / 416]
CELL = (1, 1, 1, 2)  # scale, anchor, row, column


def test_the_prediction_of_the_likest_anchor_and_cell_answers() -> None:
    outputs = [torch.randn(output.shape) for output in _raw(64)]
    scale, anchor, row, column = CELL
    answer = yolo.answers(outputs, torch.tensor([OBJECT]))
    assert torch.equal(answer[0], outputs[scale][0, anchor, row, column])


def test_targets_from_boxes_in_pixels() -> None:
    boxes = torch.tensor([[8.0, 4.0, 24.0, 12.0], [0.0, 0.0, 96.0, 64.0]])
    rows = yolo.targets(torch.tensor([1, 0]), torch.tensor([5, 7]), boxes, (64, 96))
    expected = torch.tensor([[1, 5, 16 / 96, 8 / 64, 16 / 96, 8 / 64], [0, 7, 0.5, 0.5, 1, 1]])
    torch.testing.assert_close(rows, expected)
    assert yolo.targets(torch.zeros(0), torch.zeros(0), torch.zeros(0, 4), (64, 64)).shape == (0, 6)


def test_loss_by_hand() -> None:
    """Every term once more with Python numbers, for one object that one prediction answers for."""
    outputs = [torch.zeros_like(output) for output in _raw(64)]
    scale, anchor, row, column = CELL
    outputs[scale][0, anchor, row, column] = torch.tensor([0.5, -0.5, 0.3, -0.2, 1.0, 0.7, -0.7, 0.2])
    sigmoid = [1 / (1 + math.exp(-v)) for v in (0.5, -0.5, 1.0, 0.7, -0.7, 0.2)]
    offset = (0.65 * 4 - 2, 0.3 * 4 - 1)
    box = (sigmoid[0] - offset[0]) ** 2 + (sigmoid[1] - offset[1]) ** 2 + 0.3**2 + 0.2**2
    box *= 2 - OBJECT[4] * OBJECT[5]
    classes = -math.log(1 - sigmoid[3]) - math.log(1 - sigmoid[4]) - math.log(sigmoid[5])

    boxes, _ = yolo.decode([output.clone() for output in outputs])
    x, y, width, height = OBJECT[2:]
    target = torch.tensor([[x - width / 2, y - height / 2, x + width / 2, y + height / 2]])
    judged = yolo.iou(boxes[0], target)[:, 0] <= 0.5
    others = judged.sum().item() - judged[3 * 4 + 16 + row * 4 + column].item()  # without the one that answers
    expected = box + classes - math.log(sigmoid[2]) + others * math.log(2)
    assert yolo.loss(outputs, torch.tensor([OBJECT])).item() == pytest.approx(expected, rel=1e-5)


def test_what_overlaps_an_object_well_is_not_judged() -> None:
    outputs = _raw(64)
    target = torch.tensor([[0, 2, 0.51, *OBJECT[3:]]])  # near the left border of its cell
    scale, anchor, row, column = CELL
    neighbour = outputs[scale][0, anchor, row, column - 1]
    neighbour[0], neighbour[1], neighbour[4] = 20.0, -1.4, 3.0  # moved to that border, in the same height
    assert yolo.loss(outputs, target).item() == pytest.approx(
        yolo.loss(_raw(64), target).item(), rel=1e-5
    )  # its objectness costs nothing
    neighbour[0] = -20.0  # moved away
    assert yolo.loss(outputs, target).item() > yolo.loss(_raw(64), target).item() + 3


def test_perfect_predictions_cost_nothing_and_are_found() -> None:
    outputs, target = _raw(64), torch.tensor([OBJECT])
    scale, anchor, row, column = CELL
    logit = torch.logit(torch.tensor([0.65 * 4 - 2, 0.3 * 4 - 1]))
    outputs[scale][0, anchor, row, column] = torch.tensor([*logit.tolist(), 0, 0, 20, -20, -20, 20])
    assert yolo.loss(outputs, target).item() == pytest.approx(0, abs=1e-4)
    (found,) = yolo.detect(outputs)
    assert found.classes.tolist() == [2]
    expected = torch.tensor([[0.65 - 31 / 416, 0.3 - 22.5 / 416, 0.65 + 31 / 416, 0.3 + 22.5 / 416]])
    torch.testing.assert_close(found.boxes, expected)


def test_loss_is_averaged_over_images_and_works_without_objects() -> None:
    outputs = [torch.zeros_like(output) for output in _raw(64, images=2)]
    nothing = yolo.loss(outputs, torch.zeros(0, 6))
    assert nothing.item() == pytest.approx(3 * (4 + 16 + 64) * math.log(2), rel=1e-5)
    one = [functional.pad(output[:1], (0, 0)) for output in outputs]
    twice = torch.tensor([OBJECT, [1, *OBJECT[1:]]])
    assert yolo.loss(outputs, twice).item() == pytest.approx(yolo.loss(one, twice[:1]).item(), rel=1e-5)


def test_gradient_reaches_every_scale_even_without_objects() -> None:
    outputs = [torch.zeros_like(output).requires_grad_() for output in _raw(64)]
    yolo.loss(outputs, torch.zeros(0, 6)).backward()
    assert all(output.grad is not None and output.grad[..., 4].all() for output in outputs)


def test_centre_on_the_border_is_in_the_last_cell() -> None:
    outputs = [torch.randn(output.shape) for output in _raw(64)]
    answer = yolo.answers(outputs, torch.tensor([[0, 0, 1.0, 1.0, 10 / 416, 13 / 416]]))
    assert torch.equal(answer[0], outputs[2][0, 0, 7, 7])


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(6), r"targets: expected rows .* \(M, 6\), got \(6,\)"),
        (torch.tensor([[1, 0, 0.5, 0.5, 0.1, 0.1]]), "column 0 must name one of 1 images"),
        (torch.tensor([[0, 3, 0.5, 0.5, 0.1, 0.1]]), "column 1 must name one of 3 classes"),
        (torch.tensor([[0, 0, 32.0, 16.0, 8.0, 8.0]]), "fractions of the image"),
        (torch.tensor([[0, 0, 0.5, 0.5, 0.0, 0.1]]), "the last two positive"),
    ],
)
def test_wrong_targets_are_refused(targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        yolo.loss(_raw(64), targets)


@pytest.mark.slow
def test_learns_to_find_three_objects() -> None:
    torch.manual_seed(0)
    model, images = models.build("yolo_v3"), torch.rand(2, 3, 64, 64)
    boxes = torch.tensor([[4.0, 4, 40, 60], [40, 30, 60, 50], [10, 10, 50, 50]])
    objects = yolo.targets(torch.tensor([0, 0, 1]), torch.tensor([7, 3, 11]), boxes, (64, 64))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(50):
        loss = yolo.loss(model(images), objects)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        outputs = model(images)
    assert yolo.answers(outputs, objects)[:, 5:].argmax(1).tolist() == [7, 3, 11]
    first, second = yolo.detect(outputs, score_threshold=0.5)
    assert sorted(first.classes.tolist()) == [3, 7]
    assert second.classes.tolist() == [11]
    found = torch.cat((first.boxes[first.classes.argsort(descending=True)], second.boxes))
    assert yolo.iou(64 * found, boxes).diagonal().min() > 0.7
