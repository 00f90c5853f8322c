from dataclasses import replace

import pytest
import torch

import benchmarks.coarse as study
from benchmarks.coarse import BATCH, HALF, TRAIN, WORK, Case, batch_sizes, cases, first_answers, scales_of, train


@pytest.mark.parametrize("case", [case for case in cases() if case.order != "growing" and not case.predictor])
def test_every_case_costs_as_many_pixels(case: Case) -> None:
    sizes = batch_sizes(case)
    work = sum(size * scale**2 for size, scale in zip(sizes, scales_of(case, sizes), strict=True)) / TRAIN
    assert work == pytest.approx(WORK, abs=0.06)


def test_larger_batches_are_those_of_the_small_images() -> None:
    case = Case("larger batches", 0.8, HALF, growth=2)
    sizes = batch_sizes(case)
    assert set(zip(sizes, scales_of(case, sizes), strict=True)) == {(2 * BATCH, 0.5), (BATCH, 1.0)}


def test_no_question_waits_for_a_third_seed_of_another() -> None:
    found = list(cases())
    assert len(set(found)) == len(found)
    before = found[: [case.seed for case in found].index(2)]
    assert {replace(case, seed=0) for case in before} == {replace(case, seed=0) for case in found}
    assert [case.seed for case in found[: len(list(first_answers()))]] == [0] * len(list(first_answers()))


@pytest.mark.parametrize("learns", ["all", "full"])
def test_the_predictor_learns_from_what_the_case_says(learns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "TRAIN", 48)
    monkeypatch.setattr(study, "BATCH", 8)
    images, labels = torch.randn(48, 3, 32, 32), torch.arange(48) % 10
    case = Case("predictor", 0.1, ((0.5, 0.5), (1.0, 0.5)), work=2.5, predictor=learns)
    scales = scales_of(case, batch_sizes(case))
    assert scales[:12] == [0.5] * 12
    found = train(case, images, labels, (images, labels))
    cosines = found["cosines"]
    assert isinstance(cosines, list)
    # After ten small batches there is a prediction to judge only where the predictor learned from them.
    assert [step for step, _ in cosines] == ([9, 19] if learns == "all" else [19])
