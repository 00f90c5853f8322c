import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.accelerator import (
    COST_TABLES,
    POLICIES,
    Array,
    Design,
    LayerOp,
    LayerShape,
    Machine,
    Pass,
    cost_table,
    network,
    paper_schedule,
    pass_cost,
    simulate,
)
from adagp.accelerator.traffic import layer_traffic, pass_words, product_words
from adagp.schedules import fixed

PLENTY = 10**12
# X, W and Y are told apart by their words: 4000, 280 and 700.
LAYER = LayerOp("a", "linear", LayerShape(40, 7, batch=100), tuple(Pass), covered=True)
X, W, Y = LAYER.shape.input_words, LAYER.shape.weight_words, LAYER.shape.output_words
SMALL = st.integers(1, 60)


def brute_force(left, right, result, buffer_words):
    """Every way to cut two sides of the tensor that is held."""

    def ways(words):
        most = -(-words // buffer_words)
        return [(a, b) for a in range(1, most + 1) for b in range(1, most + 1) if a * b >= most]

    return min(
        *(q * left + p * right + result for p, q in ways(result)),
        *(q * left + right + (2 * r - 1) * result for q, r in ways(right)),
        *(left + p * right + (2 * r - 1) * result for p, r in ways(left)),
    )


@given(SMALL, SMALL, SMALL, st.integers(1, 70))
def test_the_cheapest_blocking_is_found(left, right, result, buffer_words):
    found = product_words(left, right, result, buffer_words)
    assert found == brute_force(left, right, result, buffer_words)
    if buffer_words >= min(left, right, result):
        assert found == left + right + result


@given(st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1, 10**7), st.integers(1000, 10**6), SMALL)
@settings(max_examples=50, deadline=None)
def test_a_larger_buffer_never_moves_more(left, right, result, buffer_words, more):
    small = product_words(left, right, result, buffer_words)
    assert left + right + result <= product_words(left, right, result, buffer_words + more) <= small


def test_each_pass_moves_its_own_tensors():
    small = 10
    assert pass_words(LAYER.shape, Pass.FORWARD, PLENTY) == X + W + Y
    assert pass_words(LAYER.shape, Pass.FORWARD, small) == product_words(X, W, Y, small)
    assert pass_words(LAYER.shape, Pass.INPUT_GRAD, small) == product_words(Y, W, X, small)
    assert pass_words(LAYER.shape, Pass.WEIGHT_GRAD, small) == product_words(X, Y, W, small)
    grouped = LayerShape(80, 14, groups=2, batch=100)
    assert pass_words(grouped, Pass.FORWARD, small) == 2 * product_words(X, W, Y, small)
    transposed = LayerShape(4, 6, (16, 16), (2, 2), (2, 2), image=(8, 8), transposed=True)
    assert pass_words(transposed, Pass.FORWARD, PLENTY) == transposed.words


def batch_traffic(policy):
    """Of a true and of a predicted batch of the one layer, without the predictor's words."""
    traffic = layer_traffic(LAYER, POLICIES[policy], PLENTY)
    bp = traffic.forward + traffic.input_grad + traffic.weight_grad - traffic.shared + traffic.update
    return bp, traffic.forward_on_chip + traffic.update_in_place


def test_policies_by_hand():
    forward = X + W + Y
    assert batch_traffic("once") == (forward + (Y + X + W) + (X + W), forward + W)
    separate = forward + (Y + W + X) + (Y + X + W) + 3 * W
    assert batch_traffic("separate") == (separate, forward + W)
    assert batch_traffic("momentum") == (separate + 2 * W, forward + 3 * W)
    assert batch_traffic("kept") == (separate, 2 * W)
    first = layer_traffic(LAYER, POLICIES["kept"], PLENTY, first=True)
    assert first.forward_on_chip == X + W


def test_a_first_layer_without_an_input_gradient_reads_its_weights_for_the_update():
    op = LayerOp("a", "linear", LAYER.shape, (Pass.FORWARD, Pass.WEIGHT_GRAD))
    runs = simulate([op], fixed(0, 1), 1, Machine(policy="once"))
    assert runs[Design.BASELINE].dram_words == (X + W + Y) + (Y + X) + 2 * W


def test_products_of_activations_have_no_weights_to_update():
    op = LayerOp("a", "matmul", LayerShape(40, 70, groups=10, batch=9), tuple(Pass))
    traffic = layer_traffic(op, POLICIES["kept"], PLENTY)
    assert (traffic.update, traffic.update_in_place, traffic.forward_on_chip) == (0, 0, 0)
    assert traffic.weight_grad == op.shape.words


def test_predictor_words_are_counted():
    machine = Machine()
    runs = simulate([LAYER], fixed(1, 1), 2, machine)
    gp, bp = runs[Design.EFFICIENT].batches
    small, last = machine.predictor.layers(LAYER)
    plain_bp, plain_gp = batch_traffic("separate")
    assert gp.dram_words == plain_gp
    assert bp.dram_words == plain_bp + 2 * last.output_words  # a prediction waits off the chip for the truth
    low_gp, low_bp = runs[Design.LOW].batches
    weights = small.weight_words + last.weight_words
    assert low_gp.dram_words == gp.dram_words + weights
    assert low_bp.dram_words == bp.dram_words + 7 * weights
    assert gp.buffer_words == sum(
        pass_cost(shape, Pass.FORWARD, Array(), "ws").buffer_words for shape in (LAYER.shape, small, last)
    )


@pytest.mark.parametrize(
    ("policy", "low", "high"), [("once", 0.27, 0.29), ("separate", 0.31, 0.33), ("kept", 0.45, 0.48)]
)
def test_what_the_policies_save_in_a_network_of_large_activations(policy, low, high):
    runs = simulate(network("mobilenet_v2", "imagenet", 128), *paper_schedule(90), Machine(policy=policy))
    assert low < 1 - runs[Design.EFFICIENT].dram_words / runs[Design.BASELINE].dram_words < high


def test_energy_tables():
    assert COST_TABLES["eyeriss"].dram / COST_TABLES["eyeriss"].buffer == pytest.approx(200 / 6)
    assert COST_TABLES["horowitz"].dram == 320
    assert COST_TABLES["lpddr3"].dram == pytest.approx(73.6)
    assert COST_TABLES["ddr3"].dram == pytest.approx(252.8)
    runs = simulate([LAYER], fixed(1, 1), 2)
    run = runs[Design.MAX]
    assert run.energy(COST_TABLES["eyeriss"]) == 200 * run.dram_words + 6 * run.buffer_words
    with pytest.raises(ValueError, match=r"energy='free': is unknown.*eyeriss, horowitz, lpddr3, ddr3"):
        cost_table("free")
