import json
from pathlib import Path

import pytest
import sacrebleu
import torch
from torch.nn import functional

from adagp.data import Translation, Vocabulary
from adagp.data.vocabulary import BEGIN, END
from adagp.models.search import beam, greedy
from adagp.models.transformer import Transformer
from adagp.report import comparison_table, seeds_table, write_report
from adagp.training import Recipe, RecipeError, Run, RunFolder, RunFolderError, Settings, compare, train
from tests.training.tasks.making import counting, toy_text

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def text() -> Translation:
    return toy_text()


@pytest.fixture
def recipe() -> Recipe:
    """Twelve batches an epoch of a network that is small, but has dropout."""
    return Recipe(
        model="transformer",
        sizes={"layers": 1, "width": 32, "heads": 2, "hidden": 32},
        data="multi30k",  # what the recipe names; the tests hand over their own
        vocabulary=300,
        method="adagp",
        epochs=2,
        batch_size=8,
        optimizer="adam",
        lr=5e-3,
        weight_decay=0.0,
        lr_warmup=0.1,
        beam=3,
    )


def finish(run: Run) -> Run:
    while not run.finished:
        while not run.epoch_complete:
            run.step()
        run.finish_epoch()
    return run


def test_a_transformer_learns_to_translate(recipe: Recipe) -> None:
    """Sixteen sentences by heart."""
    known = counting(16, 0)
    recipe = recipe.replace(method="bp", epochs=8, sizes={"layers": 1, "width": 64, "heads": 2, "hidden": 64})
    run = finish(Run(recipe, Translation("toy", "en", "de", 8 * known, (), known)))
    assert run.metric.name == "bleu"
    assert run.scores[0] < 10 < 30 < run.scores[-1]
    last = run.records[-1]
    assert last.metrics["token_accuracy"] > 0.8
    assert last.metrics["beam_bleu"] > 30
    assert all("beam_bleu" not in record.metrics for record in run.records[:-1])
    assert last.test_loss < run.records[0].test_loss


def test_the_figures_are_those_of_their_definitions(recipe: Recipe, text: Translation) -> None:
    """Sentence by sentence, without padding, and BLEU of texts translated one at a time."""
    run = finish(Run(recipe.replace(method="bp", epochs=6), text))
    model = run.model.eval()
    assert isinstance(model, Transformer)
    source, target = (
        Vocabulary.build((one for one, _ in text.train), 300),
        Vocabulary.build((two for _, two in text.train), 300),
    )
    losses, right, texts, wide = [], [], [], []
    with torch.no_grad():
        for one, two in text.test:
            words, wanted = (
                torch.tensor([[*source.encode(one), END]]),
                torch.tensor([[BEGIN, *target.encode(two), END]]),
            )
            logits = model(words, wanted[:, :-1])[0]
            losses += functional.cross_entropy(logits, wanted[0, 1:], reduction="none").tolist()
            right += (logits.argmax(1) == wanted[0, 1:]).tolist()
            texts += map(target.decode, greedy(model, words, begin=BEGIN, end=END, longest=40))
            wide += map(target.decode, beam(model, words, begin=BEGIN, end=END, longest=40, width=3))
    references = [[two for _, two in text.test]]
    last = run.records[-1]
    assert last.test_loss == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert last.metrics["token_accuracy"] == pytest.approx(sum(right) / len(right))
    assert last.metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(texts, references).score)
    assert last.metrics["beam_bleu"] == pytest.approx(sacrebleu.corpus_bleu(wide, references).score)


def test_smoothing_is_for_training_only(recipe: Recipe, text: Translation) -> None:
    plain, smooth = Run(recipe, text), Run(recipe.replace(label_smoothing=0.5), text)
    batch = next(plain.task.epoch(0, 0))
    model = plain.model.eval().requires_grad_(False)
    losses = [run.task.loss(model, batch, CPU).item() for run in (plain, smooth)]
    logits = model(batch[0], batch[1][:, :-1]).flatten(0, 1)
    expected = functional.cross_entropy(logits, batch[1][:, 1:].flatten(), ignore_index=0, label_smoothing=0.5)
    assert losses[1] == pytest.approx(expected.item())
    assert losses[0] != losses[1]
    assert smooth.task.evaluate(model, CPU, last=False) == plain.task.evaluate(model, CPU, last=False)


@pytest.mark.parametrize("at", [5, 17])
def test_a_run_continues_bit_for_bit(recipe: Recipe, text: Translation, at: int) -> None:
    recipe = recipe.replace(warmup_epochs=0.3, rung_epochs=0.2)
    whole, first = finish(Run(recipe, text)), Run(recipe, text)
    while first.step_index < at:
        first.finish_epoch() if first.epoch_complete else first.step()
    second = Run(recipe, text)
    second.load_state_dict(first.state_dict())
    finish(second)
    mine, theirs = second.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert second.scores == whole.scores
    assert second.records[-1].counts["predicted"] > 0


def test_the_vocabularies_stay_with_the_run(tmp_path: Path, recipe: Recipe, text: Translation) -> None:
    folder = RunFolder(tmp_path / "run")
    run = Run(recipe.replace(epochs=1), text)
    folder.prepare(run, resume=False)
    result = train(run, folder)
    assert (result["metric"], set(result) > {"test_bleu", "test_beam_bleu", "test_token_accuracy"}) == ("bleu", True)
    kept = [Vocabulary.load(folder.path / f"vocabulary-{side}.json") for side in ("source", "target")]
    assert kept[0].decode(kept[0].encode("one two")) == "one two"
    assert len(kept[0]) == run.model.get_parameter("source.words.weight").shape[0]
    assert json.loads((folder.path / "recipe.json").read_text())["sizes"]["width"] == 32

    changed = Translation("toy", "en", "de", (("something else", "was"), *text.train[1:]), (), text.test)
    with pytest.raises(RunFolderError, match=r"vocabulary-source\.json.*text has changed.*new folder"):
        folder.prepare(Run(recipe.replace(epochs=1), changed), resume=True)


def test_methods_are_compared_by_bleu(tmp_path: Path, recipe: Recipe, text: Translation) -> None:
    settings = Settings(recipe.replace(method="bp"), ("bp", "adagp", "skip", "short-bp"), (0,))
    found = compare(settings, text, tmp_path, device=CPU)
    assert (found.metric.name, found.items, found.test_items) == ("bleu", "sentence pairs", 24)
    assert comparison_table(found).columns[1] == "BLEU"
    assert any("24 test sentence pairs" in note for note in comparison_table(found).notes)
    assert seeds_table(found).columns[2:6] == ("BLEU", "best", "token accuracy %", "BLEU by beam search")
    assert "adagp reached" in found.verdict
    assert "BLEU" in found.verdict
    assert found.methods[1].counts["predicted"] > 0
    png, html = write_report(found, tmp_path)
    assert png.stat().st_size > 10_000
    assert "Test BLEU" not in html.read_text()  # it is inside of the picture
    assert "token accuracy %" in html.read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 200}, r"batch_size = 200.*96 training sentence pairs of 'toy'.*lower batch_size"),
        ({"train_limit": 16, "batch_size": 16, "vocabulary": 259}, None),
    ],
)
def test_data_that_does_not_fill_a_batch(
    recipe: Recipe, text: Translation, changes: dict[str, int], message: str | None
) -> None:
    if message is None:
        assert Run(recipe.replace(**changes), text).steps_per_epoch == 1
        return
    with pytest.raises(RecipeError, match=message):
        Run(recipe.replace(**changes), text)


def test_sizes_that_do_not_go_together_are_told_before_training(recipe: Recipe, text: Translation) -> None:
    with pytest.raises(RecipeError, match="heads: 5 does not divide the width 32"):
        Run(recipe.replace(sizes={"width": 32, "heads": 5}), text)


def test_a_test_sentence_that_is_too_long_is_told_before_training(recipe: Recipe) -> None:
    long = Translation("toy", "en", "de", counting(96, 0), (), (("one " * 600, "eins"),))
    with pytest.raises(RecipeError, match=r"test sentence of 'toy' has 60\d tokens.*512 at most.*cut the sentence"):
        Run(recipe, long)
