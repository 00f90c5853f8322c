"""The machine: arrays with their memories, the predictor's size, and what is counted."""

from dataclasses import dataclass, field

from adagp.accelerator.array import DATAFLOWS, Array
from adagp.accelerator.shapes import MOST, require_count, require_known
from adagp.accelerator.traffic import POLICIES
from adagp.accelerator.workload import PredictorShape


@dataclass(frozen=True)
class Machine:
    """Everything a figure depends on except the network, the batch and the schedule; the papers state only 180 PEs.

    Attributes:
        array: The array that computes the network.
        dataflow: One of `DATAFLOWS`.
        predictor: Sizes of the predictor.
        second_array: The array that computes the predictor in the design MAX. The default has 80 PEs: in the paper's
            table 4, MAX has that many multipliers more than the other designs.
        dram_words_per_cycle: DRAM bandwidth, with which LOW reloads the predictor and stalls are counted. 16 words of
            16 bits are 6.4 GB/s, LPDDR3-1600 of 32 bits, at the 200 MHz of Eyeriss.
        stalls: Whether a pass waits for memory if it moves its words more slowly than it computes.
        tiles: Whether layers take the cycles of the RTL: in tiles that fit its buffers, with moves that overlap or not.
            Only for `ws`, which is the RTL's dataflow.
        dram_latency_cycles: Cycles from a DRAM request to its first word; counted with `tiles`.
        policy: What is moved, one of `traffic.POLICIES`.
        vector_lanes: Lanes of a unit for norms, activations, pooling and the optimizer, which works when the array
            does not; None leaves that work out.
    """

    array: Array = field(default_factory=Array)
    dataflow: str = "ws"
    predictor: PredictorShape = field(default_factory=PredictorShape)
    second_array: Array = field(default_factory=lambda: Array(8, 10))
    dram_words_per_cycle: int = 16
    stalls: bool = False
    tiles: bool = False
    dram_latency_cycles: int = 20
    policy: str = "separate"
    vector_lanes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a machine that cannot be built."""
        require_known("dataflow", self.dataflow, DATAFLOWS)
        require_known("policy", self.policy, POLICIES)
        require_count("dram_words_per_cycle", self.dram_words_per_cycle)
        require_count("dram_latency_cycles", self.dram_latency_cycles)
        if self.tiles and self.dataflow != "ws":
            raise ValueError(f"tiles: the RTL has dataflow ws, not {self.dataflow}; leave tiles out, or use stalls")
        if self.tiles and (self.stalls or self.vector_lanes is not None):
            raise ValueError("tiles: include moves and activations; leave stalls and vector-lanes out")
        if self.vector_lanes is not None and not 1 <= self.vector_lanes <= MOST:
            raise ValueError(
                f"vector_lanes={self.vector_lanes}: must be at least 1 and at most {MOST:,}; leave it out for "
                "no vector unit"
            )

    def transfer_cycles(self, words: int) -> int:
        """Cycles to move this number of words from or to DRAM."""
        return -(-words // self.dram_words_per_cycle)

    def vector_cycles(self, words: int) -> int:
        """Cycles on the vector unit; 0 without one."""
        return 0 if self.vector_lanes is None else -(-words // self.vector_lanes)
