"""YOLO-v3: the network, the decoding of its output to boxes, and its loss."""

from adagp.models.yolo.boxes import Detections, decode, detect, iou, nms
from adagp.models.yolo.loss import answers, loss, targets
from adagp.models.yolo.network import YoloV3

__all__ = ["Detections", "YoloV3", "answers", "decode", "detect", "iou", "loss", "nms", "targets"]
