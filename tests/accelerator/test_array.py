import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adagp.accelerator import (
    DATAFLOWS,
    Array,
    Gemm,
    LayerShape,
    Pass,
    PredictorShape,
    layer_cost,
    paper_schedule,
    pass_cost,
)
from adagp.accelerator.row_stationary import Planes, map_planes
from adagp.accelerator.systolic import is_cycles, os_cycles, ws_cycles

HERE = Path(__file__).parent
SYSTOLIC = ("ws", "os", "is")


def rows_of(name):
    with (HERE / name).open() as file:
        return [
            {key: value if key in ("layer", "dataflow", "pass") else float(value) for key, value in row.items()}
            for row in csv.DictReader(file)
        ]


def integers(row, *names):
    return tuple(int(row[name]) for name in names)


@pytest.mark.parametrize("row", rows_of("systolic_cycles.csv"), ids=lambda row: f"{row['layer']}-{row['dataflow']}")
def test_systolic_cycles_are_scalesims_and_one(row):
    shape = LayerShape(*integers(row, "c_in", "c_out"), integers(row, "out_h", "out_w"), (3, 3))
    cost = pass_cost(shape, Pass.FORWARD, Array(12, 15), row["dataflow"])
    assert cost.cycles - 1 == row["cycles"]
    assert cost.macs == row["c_in"] * row["c_out"] * row["out_h"] * row["out_w"] * 9


@pytest.mark.parametrize("row", rows_of("systolic_backward.csv"))
def test_systolic_cycles_of_gradients_and_groups_are_scalesims_and_one_for_each_group(row):
    shape = LayerShape(
        *integers(row, "c_in", "c_out"),
        integers(row, "out_h", "out_w"),
        integers(row, "kernel_h", "kernel_w"),
        **{name: int(row[name]) for name in ("batch", "groups")},
    )
    cost = pass_cost(shape, Pass(row["pass"]), Array(12, 15), row["dataflow"])
    assert cost.cycles == row["groups"] * (row["group_cycles"] + 1)


@pytest.mark.parametrize("row", rows_of("row_stationary.csv"), ids=lambda row: f"{row['layer']}-{row['batch']:.0f}")
def test_row_stationary_is_nn_dataflows(row):
    shape = LayerShape(
        *integers(row, "c_in", "c_out"), integers(row, "out_h", "out_w"), (3, 3), batch=int(row["batch"])
    )
    cost = pass_cost(shape, Pass.FORWARD, Array(12, 15), "rs")
    assert cost.cycles == row["cycles"]
    assert cost.dram_words == row["dram_words"]
    assert cost.utilisation == pytest.approx(row["utilisation"], abs=5e-4)


@pytest.mark.parametrize("row", rows_of("row_stationary_more.csv"))
def test_row_stationary_is_nn_dataflows_for_other_kernels_strides_batches_and_arrays(row):
    stride = int(row["stride"])
    shape = LayerShape(
        *integers(row, "c_in", "c_out"),
        integers(row, "out_h", "out_w"),
        integers(row, "kernel_h", "kernel_w"),
        (stride, stride),
        batch=int(row["batch"]),
    )
    cost = pass_cost(shape, Pass.FORWARD, Array(*integers(row, "rows", "columns")), "rs")
    assert (cost.cycles, cost.dram_words) == (row["cycles"], row["dram_words"])


@pytest.mark.parametrize("row", rows_of("row_stationary_backward.csv"))
def test_row_stationary_gradients_are_nn_dataflows_of_the_convolutions_they_are(row):
    sizes = integers(row, "out_h", "out_w"), integers(row, "kernel_h", "kernel_w")
    shape = LayerShape(*integers(row, "c_in", "c_out"), *sizes, batch=int(row["batch"]))
    cost = pass_cost(shape, Pass(row["pass"]), Array(12, 15), "rs")
    assert (cost.cycles, cost.dram_words) == (row["cycles"], row["dram_words"])


def ws_by_clock(inputs, weights):
    """One fold of a weight-stationary array, register by register: the product, and the cycles it took."""
    m, k = inputs.shape
    n = weights.shape[1]
    flowing, sums = np.zeros((k, n), dtype=int), np.zeros((k, n), dtype=int)
    result = np.zeros((m, n), dtype=int)
    cycle = k  # one row of weights enters in each of the first k cycles
    for t in range(m + k + n - 2):
        arriving = [inputs[t - r, r] if 0 <= t - r < m else 0 for r in range(k)]
        flowing = np.column_stack([arriving, flowing[:, :-1]])
        sums = np.vstack([np.zeros(n, dtype=int), sums[:-1]]) + flowing * weights
        cycle += 1
        for c in range(n):
            if 0 <= t - (k - 1) - c < m:
                result[t - (k - 1) - c, c] = sums[-1, c]
    return result, cycle


def os_by_clock(inputs, weights):
    """One fold of an output-stationary array, register by register."""
    (m, k), n = inputs.shape, weights.shape[1]
    right, down, sums = (np.zeros((m, n), dtype=int) for _ in range(3))
    cycles = 0
    while not np.array_equal(sums, inputs @ weights):
        t = cycles
        from_left = [inputs[r, t - r] if 0 <= t - r < k else 0 for r in range(m)]
        from_top = [weights[t - c, c] if 0 <= t - c < k else 0 for c in range(n)]
        right = np.column_stack([from_left, right[:, :-1]])
        down = np.vstack([from_top, down[:-1]])
        sums = sums + right * down
        cycles += 1
    return cycles


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (7, 3, 4), (2, 5, 3), (9, 4, 1)])
def test_one_fold_takes_as_long_as_registers_do(m, n, k):
    random = np.random.default_rng(0)
    inputs, weights = random.integers(1, 9, (m, k)), random.integers(1, 9, (k, n))
    product, cycles = ws_by_clock(inputs, weights)
    np.testing.assert_array_equal(product, inputs @ weights)
    assert cycles == ws_cycles(Gemm(m, n, k), rows=k, columns=n)
    transposed, cycles = ws_by_clock(weights.T, inputs.T)
    np.testing.assert_array_equal(transposed.T, inputs @ weights)
    assert cycles == is_cycles(Gemm(m, n, k), rows=k, columns=m)
    assert os_by_clock(inputs, weights) == os_cycles(Gemm(m, n, k), rows=m, columns=n)


def test_depthwise_layer_is_one_product_of_a_single_column_per_channel():
    shape = LayerShape(32, 32, (16, 16), (3, 3), groups=32)
    assert shape.gemm(Pass.FORWARD) == Gemm(256, 1, 9, 32)
    assert shape.weight_words == 32 * 9
    one = pass_cost(LayerShape(1, 1, (16, 16), (3, 3)), Pass.FORWARD, Array(), "ws")
    assert pass_cost(shape, Pass.FORWARD, Array(), "ws").cycles == 32 * one.cycles == 32 * (24 + 15 + 256 - 2)


def test_backward_products_of_a_strided_layer_by_hand():
    shape = LayerShape(16, 32, (8, 8), (3, 3), (2, 2), batch=4)
    assert shape.image == (16, 16)
    assert shape.gemm(Pass.FORWARD) == Gemm(4 * 64, 32, 16 * 9)
    assert shape.gemm(Pass.INPUT_GRAD) == Gemm(4 * 256, 16, 32 * 9)
    assert shape.gemm(Pass.WEIGHT_GRAD) == Gemm(16 * 9, 32, 4 * 64)
    assert (shape.input_words, shape.weight_words, shape.output_words) == (4 * 16 * 256, 16 * 32 * 9, 4 * 32 * 64)


def test_transposed_convolution_does_the_passes_of_its_adjoint():
    shape = LayerShape(8, 4, (16, 16), (2, 2), (2, 2), image=(8, 8), transposed=True)
    forward = LayerShape(4, 8, (8, 8), (2, 2), (2, 2))
    assert shape.gemm(Pass.FORWARD) == forward.gemm(Pass.INPUT_GRAD)
    assert shape.gemm(Pass.INPUT_GRAD) == forward.gemm(Pass.FORWARD)
    for dataflow in DATAFLOWS:
        ours, theirs = layer_cost(shape, Array(), dataflow), layer_cost(forward, Array(), dataflow)
        assert ours[Pass.FORWARD] == theirs[Pass.INPUT_GRAD]
        assert ours[Pass.WEIGHT_GRAD] == theirs[Pass.WEIGHT_GRAD]


def test_row_stationary_weight_gradient_cuts_planes_that_registers_cannot_hold():
    shape = LayerShape(3, 64, (224, 224), (3, 3))  # a row of 224 gradients and one of inputs exceed 256 words
    cost = pass_cost(shape, Pass.WEIGHT_GRAD, Array(), "rs")
    assert cost.macs == 224 * 224 * 27 * 64
    assert 0.5 < cost.utilisation <= 1
    assert cost.dram_words >= shape.words


@st.composite
def shapes(draw):
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    stride = draw(st.sampled_from([1, 1, 2]))
    kernel = (draw(st.integers(1, 5)), draw(st.integers(1, 5)))
    out = (draw(st.integers(1, 20)), draw(st.integers(1, 20)))
    channels = st.integers(1, 24)
    return LayerShape(
        groups * draw(channels), groups * draw(channels), out, kernel, (stride, stride), groups, draw(st.integers(1, 5))
    )


arrays = st.builds(Array, rows=st.integers(1, 20), columns=st.integers(1, 20))


@given(shape=shapes(), array=arrays)
@settings(max_examples=60, deadline=None)
def test_every_dataflow_does_the_same_work_and_no_pe_does_two_things_at_once(shape, array):
    costs = {dataflow: layer_cost(shape, array, dataflow) for dataflow in DATAFLOWS}
    for which in Pass:
        assert len({costs[dataflow][which].macs for dataflow in DATAFLOWS}) == 1
        for dataflow in DATAFLOWS:
            cost = costs[dataflow][which]
            assert 0 < cost.utilisation <= 1
            assert cost.cycles * array.pes >= cost.macs
    assert costs["ws"][Pass.FORWARD].macs == costs["ws"][Pass.WEIGHT_GRAD].macs


@given(shape=shapes(), array=arrays)
@settings(max_examples=60, deadline=None)
def test_row_stationary_fetches_every_word_it_uses_at_least_once(shape, array):
    cost = pass_cost(shape, Pass.FORWARD, array, "rs")
    read = [
        min(image, out * kernel, (out - 1) * stride + kernel)
        for image, out, stride, kernel in zip(shape.image, shape.out, shape.stride, shape.kernel, strict=True)
    ]
    least = shape.batch * shape.c_in * math.prod(read) + shape.weight_words + shape.output_words
    assert cost.dram_words >= least


@given(shape=shapes(), array=arrays, more=st.integers(1, 64), dataflow=st.sampled_from(SYSTOLIC), data=st.data())
@settings(deadline=None)
def test_more_work_never_takes_less_time(shape, array, more, dataflow, data):
    name = data.draw(st.sampled_from(["c_in", "c_out", "batch"]))
    values = {field: getattr(shape, field) for field in shape.__dataclass_fields__}
    larger = LayerShape(**{**values, name: values[name] + more * values["groups"]})
    for which in Pass:
        before, after = (pass_cost(each, which, array, dataflow) for each in (shape, larger))
        assert after.cycles >= before.cycles
        assert after.dram_words > before.dram_words


@given(shape=shapes(), columns=st.integers(1, 20))
@settings(max_examples=40, deadline=None)
def test_a_batch_takes_as_long_as_its_samples_where_only_one_replication_exists(shape, columns):
    values = {field: getattr(shape, field) for field in shape.__dataclass_fields__}
    array = Array(shape.kernel[0], columns)
    one, many = (pass_cost(LayerShape(**{**values, "batch": n}), Pass.FORWARD, array, "rs") for n in (1, 7))
    assert many.cycles == 7 * one.cycles


def energy(mapping):
    return 200 * mapping.dram_words + 6 * mapping.buffer_words + 2 * mapping.array_words


@given(shape=shapes(), words=st.integers(2_000, 50_000), more=st.integers(0, 50_000))
@settings(max_examples=40, deadline=None)
def test_more_memory_never_costs_more_energy(shape, words, more):
    c_in, c_out = shape.c_in // shape.groups, shape.c_out // shape.groups
    planes = Planes(c_in, c_out, shape.batch, shape.out, shape.kernel, shape.stride)
    small = map_planes(planes, 12, 15, words, 64)
    if small is not None:
        assert energy(map_planes(planes, 12, 15, words + more, 64)) <= energy(small) + 200
        assert energy(map_planes(planes, 12, 15, words, 64 + more)) <= energy(small) + 200  # words are rounded


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Array(0, 12), "array=0x12.*at least 1"),
        (lambda: Array(10**20, 8), "array=100000000000000000000x8.*more than 1,000,000,000"),
        (lambda: Array(buffer_words=0), "buffer_words=0"),
        (lambda: LayerShape(0, 4), "c_in=0"),
        (lambda: LayerShape(6, 4, groups=3), "groups=3.*c_out=4"),
        (lambda: LayerShape(6, 4, (8, 8), (3,)), "kernel=3.*out=8x8"),
        (lambda: LayerShape(6, 4, (8, 0)), "out=8x0"),
        (lambda: LayerShape(3, 2, (512, 512), (11, 11), batch=10**9), "batch=1000000000.*lower the batch"),
        (lambda: LayerShape(10**400, 97), "c_in=10+: .*at most 1,000,000,000"),
        (lambda: LayerShape(3, 4, stride=(10**20, 1), image=(8, 8)), "stride.*at most 1,000,000,000"),
        (lambda: PredictorShape(grid=10**12), "predictor grid=1000000000000: .*at most 1,000,000,000"),
        (lambda: PredictorShape(channels=0), "predictor channels=0: must be at least 1"),
        (lambda: paper_schedule(10**15), "epochs=1000000000000000: must be at least 1 and at most 10,000"),
        (lambda: pass_cost(LayerShape(6, 4), Pass.FORWARD, Array(), "xs"), "'xs'.*ws, os, is, rs"),
        (
            lambda: pass_cost(LayerShape(3, 4, (8, 8), (3, 3)), Pass.FORWARD, Array(buffer_words=9), "rs"),
            "buffer_words=9",
        ),
        (lambda: pass_cost(LayerShape(3, 4, (8, 8, 8), (3, 3, 3)), Pass.FORWARD, Array(), "rs"), "choose ws, os or is"),
    ],
)
def test_bad_input_is_refused_by_name_with_a_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
