"""Your own images: a data root that itself has train/ and val/ with one folder per class."""

from pathlib import Path

from adagp.data.classification import DataSet
from adagp.data.files import missing
from adagp.data.folder import is_image_folder, load_image_folder
from adagp.data.registry import register


@register("image-folder", summary="your own images, one folder per class", large_images=True)
def load_own_images(root: Path | None = None) -> DataSet:
    """Load the images in the data root.

    Raises:
        MissingDataError: if train/ and val/ are not in `root`.
        CorruptDataError: if they do not hold the same classes, with images.
    """
    if root is not None and is_image_folder(root):
        return load_image_folder("image-folder", root)
    layout = ("ROOT/train/CLASS/*.jpg, one folder per class (.jpeg and .png are fine)", "ROOT/val/CLASS/*.jpg")
    raise missing("image-folder", root, layout, "These are images of your own.")
