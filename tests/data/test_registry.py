import pytest

from adagp import data
from adagp.data import registry


def test_names() -> None:
    classification = [
        "cifar10",
        "cifar100",
        "digits",
        "fashion-mnist",
        "image-folder",
        "imagenet",
        "imagenette",
        "mnist5k",
    ]
    assert data.names("classification") == classification
    assert data.names("translation") == ["multi30k"]
    assert data.names("detection") == ["voc2007", "voc2012"]
    assert data.names("next-token") == ["multi30k-en", "text-file"]
    assert data.names() == [*classification, "multi30k", "multi30k-en", "text-file", "voc2007", "voc2012"]
    assert all(data.entry(name).summary for name in data.names())


def test_a_set_of_another_task_is_refused_with_the_call_that_loads_it() -> None:
    with pytest.raises(ValueError, match=r"'multi30k' is .* for translation.*data\.load_translation"):
        data.load("multi30k")
    with pytest.raises(ValueError, match=r"'digits' is .* for classification.*data\.load.*voc2007"):
        data.load_detection("digits")
    with pytest.raises(ValueError, match=r"'voc2007' is .*data\.load_detection"):
        data.load_translation("voc2007")
    with pytest.raises(ValueError, match=r"'text-file' is .* for next-token.*data\.load_text"):
        data.load_translation("text-file")


def test_a_loader_gives_the_form_of_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_loaders", dict(registry._loaders))
    data.register("odd", task="detection")(lambda root: data.load("digits"))
    with pytest.raises(TypeError, match="'odd' returned a DataSet; for detection it must return a Detection"):
        data.load_detection("odd")
    with pytest.raises(ValueError, match="task: must be one of classification, translation, detection"):
        data.register("odder", task="regression")  # type: ignore[arg-type]


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'mnist'.*cifar10, cifar100, digits, fashion-mnist, .*mnist5k"):
        data.load("mnist")


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'digits' exists already"):
        data.register("digits")(data.digits.load_digits)
