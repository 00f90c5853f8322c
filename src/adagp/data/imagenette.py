"""Imagenette: ten easily distinguished classes of ImageNet (fast.ai)."""

from pathlib import Path

from adagp.data.archives import places
from adagp.data.classification import DataSet
from adagp.data.files import missing
from adagp.data.folder import is_image_folder, load_image_folder
from adagp.data.registry import register

CHECKSUMS = {
    "imagenette2.tgz": "fe2fc210e6bb7c5664d602c3cd71e612",
    "imagenette2-320.tgz": "3df6f0d01a2c9592104656642f5e78a3",
    "imagenette2-160.tgz": "e793b78cc4c9e9a4ccc0c1155377a412",
    "imagenette2-224-subset.tar.gz": "9ed7982bae55ee427f0fdba29be35935390a24b70ce5ccef8faccd6a2b638f34",
}


@register("imagenette", summary="ten easy classes of ImageNet", large_images=True)
def load_imagenette(root: Path | None = None) -> DataSet:
    """9469 training and 3925 test images, or a part of them.

    Raises:
        MissingDataError: if neither folder nor archive is in `root`.
        CorruptDataError: if the archive is damaged, a split has no images, or the splits differ in their classes.
    """
    for place in places(root, "imagenette2*", CHECKSUMS):
        for folder in sorted(place.glob("imagenette2*")):
            if is_image_folder(folder):
                return load_image_folder("imagenette", folder)
    layout = (
        "ROOT/imagenette2.tgz, imagenette2-320.tgz or imagenette2-160.tgz, or the same unpacked",
        "ROOT/imagenette2*/train/n01440764/*.JPEG, one folder for each of the ten classes",
        "ROOT/imagenette2*/val/n01440764/*.JPEG",
    )
    raise missing("imagenette", root, layout, "Get an archive from https://github.com/fastai/imagenette.")
