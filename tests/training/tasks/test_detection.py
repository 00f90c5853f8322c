import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from adagp import coarse
from adagp.data import Detection
from adagp.models import yolo
from adagp.training import Recipe, RecipeError, Run
from adagp.training.tasks.detection import ObjectDetection
from adagp.training.tasks.precision import ImageDetections, mean_average_precision
from tests.training.tasks.making import toy_objects


@pytest.fixture
def objects(tmp_path: Path) -> Detection:
    return toy_objects(tmp_path)


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(
        model="yolo_v3",
        data="voc2007",
        method="adagp-paper",
        epochs=2,
        batch_size=2,
        image_size=64,  # at 32 batch norm sees one position of two images: gradients of 1e11
        lr=1e-3,
        warmup_epochs=0.5,
    )


def average_precision(found: list[ImageDetections], label: int) -> float | None:
    """From the definition: detections by score, each matched to the free object it overlaps most, by at least half.

    Where one matches nothing but a difficult object, it does not count. None where the class has no object.
    """
    wanted = sum(int(((one.labels == label) & ~one.difficult).sum()) for one in found)
    if not wanted:
        return None
    ranked = sorted(
        (
            (float(score), image, place)
            for image, one in enumerate(found)
            for place, score in enumerate(one.scores)
            if one.detected_labels[place] == label
        ),
        reverse=True,
    )
    taken: set[tuple[int, int]] = set()
    hits: list[bool] = []
    for _, image, place in ranked:
        one = found[image]
        overlaps = yolo.iou(one.detected_boxes[place : place + 1], one.boxes)[0]
        free = [
            (float(overlaps[index]), index)
            for index in range(len(one.labels))
            if one.labels[index] == label and not one.difficult[index] and (image, index) not in taken
        ]
        best = max(free, default=(0.0, -1))
        if best[0] >= 0.5:
            taken.add((image, best[1]))
            hits.append(True)
            continue
        ignored = [
            float(_share_inside(one.detected_boxes[place], one.boxes[index]))
            for index in range(len(one.labels))
            if one.labels[index] == label and one.difficult[index]
        ]
        if max(ignored, default=0.0) < 0.5:
            hits.append(False)
    precisions, recalls = [], []
    for count in range(1, len(hits) + 1):
        precisions.append(sum(hits[:count]) / count)
        recalls.append(sum(hits[:count]) / wanted)
    levels = [level / 100 for level in range(101)]
    return sum(
        max((p for p, r in zip(precisions, recalls, strict=True) if r >= level - 1e-9), default=0.0) for level in levels
    ) / len(levels)


def _share_inside(detected: Tensor, crowd: Tensor) -> Tensor:
    """What COCO takes as the overlap with a crowd: the share of the detection that is inside of it."""
    low, high = torch.maximum(detected[:2], crowd[:2]), torch.minimum(detected[2:], crowd[2:])
    return (high - low).clamp(min=0).prod() / (detected[2:] - detected[:2]).prod()


def _boxes(draw: random.Random, count: int) -> Tensor:
    corners = [[draw.randint(0, 8) * 10, draw.randint(0, 8) * 10] for _ in range(count)]
    sizes = [[draw.randint(2, 5) * 10, draw.randint(2, 5) * 10] for _ in range(count)]
    return torch.tensor([[x, y, x + w, y + h] for (x, y), (w, h) in zip(corners, sizes, strict=True)]).float()


def _random_case(seed: int) -> list[ImageDetections]:
    """Images with objects of three classes, and detections that are moved objects or nothing at all."""
    draw = random.Random(seed)
    found = []
    for _ in range(6):
        boxes = _boxes(draw, count := draw.randint(1, 4))
        labels = torch.tensor([draw.randint(0, 2) for _ in range(count)])
        moved = boxes + torch.tensor([[draw.randint(-8, 8) for _ in range(4)] for _ in range(count)])
        extra = _boxes(draw, draw.randint(1, 3))
        detected = torch.cat((moved, extra))
        found.append(
            ImageDetections(
                boxes,
                labels,
                torch.tensor([draw.random() < 0.2 for _ in range(count)]),
                detected,
                torch.cat((labels, torch.tensor([draw.randint(0, 2) for _ in extra]))),
                torch.tensor([draw.random() for _ in detected]),
            )
        )
    return found


@pytest.mark.parametrize("seed", range(12))
def test_mean_average_precision_is_that_of_its_definition(seed: int) -> None:
    found = _random_case(seed)
    each = [value for label in range(3) if (value := average_precision(found, label)) is not None]
    assert mean_average_precision(found) == pytest.approx(sum(each) / len(each), abs=1e-6)


def test_mean_average_precision_at_its_ends() -> None:
    boxes, labels, none = torch.tensor([[10.0, 10.0, 30.0, 40.0]]), torch.tensor([2]), torch.tensor([False])
    right = ImageDetections(boxes, labels, none, boxes, labels, torch.tensor([0.9]))
    wrong = ImageDetections(boxes, labels, none, boxes, torch.tensor([1]), torch.tensor([0.9]))
    nothing = ImageDetections(boxes, labels, none, boxes[:0], labels[:0], torch.tensor([]))
    assert mean_average_precision([right]) == pytest.approx(1.0)
    assert mean_average_precision([wrong]) == 0.0
    assert mean_average_precision([nothing]) == 0.0
    assert mean_average_precision([right, nothing]) == pytest.approx(51 / 101)  # recall levels 0.00 to 0.50
    assert mean_average_precision([]) == 0.0


@pytest.mark.parametrize("channels_last", [True, False])
def test_images_have_the_layout_of_the_recipe(recipe: Recipe, objects: Detection, channels_last: bool) -> None:
    run = Run(recipe.replace(channels_last=channels_last), objects)
    first = next(module for module in run.model.modules() if isinstance(module, nn.Conv2d))
    shown: list[Tensor] = []
    first.register_forward_hook(lambda _, inputs, output: shown.append(inputs[0]))
    run.step()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert first.weight.is_contiguous(memory_format=layout)
    assert shown[0].is_contiguous(memory_format=layout)


def test_yolo_trains_and_is_judged(recipe: Recipe, objects: Detection) -> None:
    run = Run(recipe, objects)
    losses = []
    while not run.finished:
        while not run.epoch_complete:
            losses.append(run.step().loss)
        run.finish_epoch()
    assert losses[-1] < losses[0]
    assert run.steps_per_epoch == 2
    assert run.metric.name == "map50"
    assert run.task.test_items == 2
    last = run.records[-1]
    assert last.counts["backprop"] > 0
    assert last.counts["predicted"] > 0
    assert 0 <= last.metrics["map50"] <= 1
    # By hand: the class of the prediction that answers for each object that is not difficult.
    model = run.model.eval()
    batch = next(run.task._test.epoch(0))  # type: ignore[attr-defined]
    counted = ~batch.difficult
    targets = yolo.targets(batch.owners[counted], batch.labels[counted], batch.boxes[counted], (64, 64))
    with torch.no_grad():
        outputs = model(batch.images)
    right = (yolo.answers(outputs, targets)[:, 5:].argmax(1) == batch.labels[counted]).float().mean()
    assert last.metrics["class_accuracy"] == pytest.approx(float(right))
    assert last.test_loss == pytest.approx(float(yolo.loss(outputs, targets)), rel=1e-5)


def test_a_coarse_batch_trains_as_the_data_set_at_that_size(recipe: Recipe, objects: Detection) -> None:
    """Oracle: the recipe with half the image size, whose targets and anchors know nothing of scales."""
    recipe = recipe.replace(method="progressive", predictor=None, image_size=128)
    run, oracle = Run(recipe, objects), ObjectDetection(recipe.replace(image_size=64), objects)
    full, small = next(run.task.epoch(0, 0)), next(oracle.epoch(0, 0))
    here = torch.device("cpu")
    targets = [task._targets(batch, here) for task, batch in ((run.task, full), (oracle, small))]  # type: ignore[attr-defined]
    torch.testing.assert_close(*targets, rtol=0, atol=1 / 64)  # the probes of `growing` average full batches
    assert (coarse.images(full.images, 0.5) - small.images).abs().median() < 0.02
    with torch.no_grad():
        wanted = oracle.loss(run.model, small, here)
    assert run.gp.next_plan().scale == 0.5
    assert run.step().loss == float(wanted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image_size": 50}, "image_size = 50 is not a multiple of 32"),
        ({"batch_size": 5}, "batch_size = 5 is larger than the 4 training images of 'toy-objects'"),
    ],
)
def test_what_does_not_fit(recipe: Recipe, objects: Detection, changes: dict[str, int], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Run(recipe.replace(**changes), objects)
