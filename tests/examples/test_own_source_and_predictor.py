from collections.abc import Callable


def test_own_source_and_predictor_are_used(run_example: Callable[..., str]) -> None:
    fading, halved, known = run_example("own_source_and_predictor.py").splitlines()
    # 60 batches of 2 layers, two GP batches and then one BP batch; nothing is known before the first BP batch.
    assert fading.startswith("source 'fading', predictor None: {'skip': 4, 'backprop': 40, 'fading': 76}")
    assert halved.startswith("source 'predicted', predictor 'halved': {'predicted': 80, 'backprop': 40}")
    assert all(float(line.rsplit(" ", 1)[1]) < 0.9 for line in (fading, halved))  # three classes: chance gives 1.10
    assert known == "known predictors: trusted, paper, literal, halved"
