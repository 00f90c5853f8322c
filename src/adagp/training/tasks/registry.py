"""From a data set to its task."""

from adagp.data import AnyDataSet, DataSet, Text, Translation
from adagp.training.recipe import Recipe
from adagp.training.tasks.classification import Classification
from adagp.training.tasks.detection import ObjectDetection
from adagp.training.tasks.next_token import NextToken
from adagp.training.tasks.task import Task
from adagp.training.tasks.translation import TextTranslation


def build(recipe: Recipe, dataset: AnyDataSet) -> Task:
    """The task of a recipe on its data.

    Raises:
        RecipeError: When the recipe does not fit the data.
    """
    match dataset:
        case DataSet():
            return Classification(recipe, dataset)
        case Translation():
            return TextTranslation(recipe, dataset)
        case Text():
            return NextToken(recipe, dataset)
        case _:
            return ObjectDetection(recipe, dataset)
