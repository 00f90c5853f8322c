"""ImageNet (ILSVRC 2012) in the usual layout: train/ and val/ with one folder per class."""

from pathlib import Path

from adagp.data.classification import DataSet
from adagp.data.files import CorruptDataError, missing
from adagp.data.folder import is_image_folder, load_image_folder
from adagp.data.registry import register

_CLASSES = 1000


@register("imagenet", summary="ImageNet, ILSVRC 2012, 1000 classes", large_images=True)
def load_imagenet(root: Path | None = None) -> DataSet:
    """1281167 training images in 1000 classes; the 50000 of the validation split are the test split.

    A part of the images works too if every class is present.

    Raises:
        MissingDataError: if the folder is not in `root`.
        CorruptDataError: if a split does not have the 1000 classes, with images.
    """
    if root is not None and is_image_folder(root / "imagenet"):
        dataset = load_image_folder("imagenet", root / "imagenet")
        if dataset.num_classes != _CLASSES:
            raise CorruptDataError(
                f"{root / 'imagenet'}: has {dataset.num_classes} classes, not {_CLASSES}; for a subset of the classes"
                f" use the data set image-folder with the data root {root / 'imagenet'}"
            )
        return dataset
    layout = (
        "ROOT/imagenet/train/n01440764/*.JPEG, one folder for each of the 1000 classes",
        "ROOT/imagenet/val/n01440764/*.JPEG, the validation images sorted into the same folders",
    )
    source = (
        "Get ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from https://image-net.org (after registration) and"
        " sort them into folders."
    )
    raise missing("imagenet", root, layout, source)
