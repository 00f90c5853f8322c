"""What is missing is named before any work is done, with what to install."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

from adagp.data import decoding
from adagp.extras import INTEGRATIONS, PACKAGES, remedy, require
from adagp.training import Recipe
from adagp.training.tasks import build
from tests.training.tasks.making import toy_objects, toy_text


@pytest.mark.parametrize("module", PACKAGES)
def test_a_module_that_is_missing_is_named_with_its_extra(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require(module)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        require(module)
    distribution, extra = PACKAGES[module]
    assert str(caught.value) == f"{distribution} is not installed: pip install 'adagp[{extra}]'"
    assert remedy(caught.value) == str(caught.value)
    assert remedy(ModuleNotFoundError("No module", name=f"{module}.part")) == str(caught.value)


@pytest.mark.parametrize("module", INTEGRATIONS)
def test_an_integration_names_its_extra_before_its_library_is_imported(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    extra = INTEGRATIONS[module].extra
    monkeypatch.delitem(sys.modules, f"adagp.integrations.{extra}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"is not installed: pip install 'adagp\[{extra}\]'"):
        import_module(f"adagp.integrations.{extra}")


def test_a_module_of_the_user_is_not_explained() -> None:
    assert remedy(ModuleNotFoundError("No module named 'mine'", name="mine")) is None
    assert remedy(ModuleNotFoundError("No module")) is None


def test_scores_are_asked_for_before_the_first_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, model, name, dataset in (
        ("sacrebleu", "transformer", "multi30k", toy_text()),
        ("faster_coco_eval", "yolo_v3", "voc2007", toy_objects(tmp_path)),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ModuleNotFoundError, match=r"is not installed: pip install 'adagp\[tasks\]'"):
            build(Recipe(model=model, data=name, method="bp", batch_size=2), dataset)


def test_images_are_not_decoded_without_pillow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoding._pool.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match=r"pillow is not installed: pip install 'adagp\[data\]'"):
        next(decoding.decode_batches([[tmp_path / "image.png"]], 8, "crop"))
