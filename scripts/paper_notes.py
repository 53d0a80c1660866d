"""The words of docs/paper_tables.md: introductions of its sections, and reasons for differences."""

from paper_rows import GSHARD, GSPMD_DENSE, GSPMD_HYBRID, GSPMD_MOE, GSPMD_NARROW
from paper_rows import PIPELINES as PIPELINES_OF_TRANSLATION

REASONS = (
    (
        [row for row in GSHARD if "128e" not in row.name and row.name != "dense_96l"],
        "A prediction has no host, no latency and no core that has more to do than another, and "
        "its links are at their peak. Our compiler is also six years younger than the paper's.",
    ),
    (
        [row for row in GSHARD if "128e" in row.name],
        "We have no explanation that the paper supports. A batch of 1M tokens is 8,192 tokens of "
        "each side on a core. For the products alone, the printed steps would need four fifths of "
        "the peak or more, which no other row of either paper reaches, and the 36 layers would "
        "not fit. With half of the batch (the rows named half), the predictions agree with the "
        "printed steps. But the paper's own columns say that the batch was whole: 0.67 steps/s "
        "for 17.3 days with 1M tokens are 1.0T tokens, which the paper trained each model on, and "
        "half of the batch would be 0.5T. Its footnote says that the tokens are those of the "
        "source side.",
    ),
    (
        [row for row in (*GSHARD, *PIPELINES_OF_TRANSLATION) if row.name.startswith("dense_96l")],
        "We have no explanation that the paper supports. It trained the model with GPipe, and prints "
        "neither stages nor microbatches. The row dense_96l_gpipe is a pipeline with idle times of 19 % "
        "(15 of 79 iterations). The row dense_96l has a mesh of 128 x 16 that splits rows and width "
        "(GSPMD Table 1, 2D finalized). Both predict less than a quarter of the printed step.",
    ),
    (
        GSPMD_MOE,
        "Our models recompute every layer, as the scan over blocks requires. The paper's "
        "probably did not: its FLOPS do not include recomputation. The remaining difference is "
        "within 15 %.",
    ),
    (
        [*GSPMD_DENSE, *GSPMD_NARROW],
        "With X = 8 and Y = 32, the paper's step is two thirds longer than on its other mesh of "
        "256 cores. The predicted links do not show why.",
    ),
    (
        GSPMD_HYBRID,
        "The FLOPs differ by the same ratio. The printed sizes fix the weights that a token uses. "
        "So with rows of 1024 tokens no number of experts per token gives the printed "
        "utilization, whatever M, D and the depth are. The paper's rows may have been shorter.",
    ),
)
"""(rows, why their predicted steps may differ from the printed ones)."""

HEAD = """# The papers' tables, compiled

`scripts/paper_tables.py` makes this page, and `scripts/paper_tables.py --only NAME --again` the
figures of one row. Rows were compiled at different times, by the code of their time. The TPU
compiler (libtpu) compiles each model for the paper's own number of TPU v3 cores, on a machine
without a TPU. {done} of {rows} rows have figures. The predicted step is the compiler's estimate of
each operation plus the time of the collectives at the links' peak, without overlap, and without
the time of host and input. [inspect.md](inspect.md) says how each figure is made. Weights include
the scales of norms. "in all" is the time of gshard-inspect on 2 cores. Other work ran on the
machine while most rows compiled, which also lengthens the CPU time in parentheses. "host GiB" is
the memory of that process.
"""

PIPELINES = """The model is that of table 3 with 1,024 sequences of 1,024 tokens on 256 cores. L are the
stages, X splits rows and Y splits the layers. The printed shares are those of the whole step, and the
column "of the iterations" is (L - 1) / (n + L - 1) for n microbatches (see pipelines.md). The predicted
step includes the bubbles, and the predicted share of recomputation includes that of bubbles.
The name of a row has the mesh and the microbatches:
`scripts/paper_tables.py --only gspmd_pipeline_4x16x4_16`.
"""

GSHARD_ABOUT = """The batch is the paper's (4M or 1M tokens of one side), in rows of 128 tokens. The
printed step is 1 / steps per second. GShard gives memory only as the bars of Figure 7. TFLOP is
that of one core in a step, without recomputation. dense_96l_gpipe and dense_128l are pipelines of 16
stages with 64 microbatches. The papers print neither number.
"""

FIGURE7 = """The paper's claim: if the depth is fixed, neither weights nor activations of a core
grow with the experts. Activations include gradients here. The models of 128 experts have four times
the tokens on a core.
"""

FIGURE8 = """These are the models of the section above: one expert, one group and 16 rows on each
core. The paper's bars are measured. These figures are the compiler's estimates and the links' peak.
"""

STEP = """The table gives the share of each part of the compiled step in its predicted time.
"""

GROWS = """MoE(36L) with one expert, one group and 16 rows on each core (`--scale_with_devices`), so
only the number of devices changes. Section 3.3 claims that program size and compile time do not
depend on it. "CPU s" is the CPU time of the whole process, including lowering. It may be a third
longer in another run. `python benchmarks/compile_time.py` compiles the smallest and the largest in
turns.
"""

LINKS = """These times come from the model of the links that all predictions use. It knows only
bandwidth. The links across the middle of the slice limit an all-to-all, so its time grows as the
square root of the cores. A full pod has closed rings, which halves the time. The time of an
all-reduce does not grow.
"""

TABLE4 = """Each operator is compiled for 8, 32 and 128 cores. Letters that are split have 64
elements for each core, other letters have 256. Bytes are those of one core.
"""

GSPMD = """Printed memory and steps are the paper's, on TPU v3 cores of 16 GB. The compiled figures
are for the same mesh, batch and sequence length. TFLOP is that of one core in a step. The printed
TFLOP is utilization times step time times the peak of a core. The compiled TFLOP leaves
recomputation out.
"""

SWITCH = """The paper does not say how many cores it used. The slices of TPU v3 are our choice,
with batches of 2,048 sequences of 512 source and 128 target tokens. The printed FLOPs of a
sequence fit two FLOPs for each weight that a token uses, forward, without the gates and the
attention's scores. The compiled forward pass also has the scores, the keys and values of the
cross-attention for each source token, and every slot, also an empty one. Its "dispatch" is the
share of the gate and of the one-hot products that move tokens to slots and back. Switch-XXL has
128 experts here: the printed 64 make half of its printed weights.

Each group of Switch-C is spread over 16 cores, and a core computes 896 slots in a pair of encoder
and decoder layers. With a group on each core it would compute 4,096. The price is in the
dispatch: a group of the encoder has 10,240 slots, so the one-hot products take more than the
experts. The compiler turns the reduce-scatters of the encoder's slots into all-reduces, which
take twice the time.
"""

SWITCH_FIGURE9 = """One MoE layer of Switch-Large with 16 experts, forward and backward, on 16 cores
(`v3:2x4`). All rows have the same layer and the same batch of 32,768 tokens. (The figure keeps the
weights and the tokens of a core instead.) The five meshes are shapes of
`meshes/data_expert_tensor.gin`: n = `data` x `expert` cores split the batch, and m = `tensor` cores
split the hidden units. "experts" are those of which a core holds weights. MiB are those of one core.
Times of the links are predictions.
"""

CONTRADICTS = """Steps whose prediction is less than 0.8 or more than 1.25 times the printed one:
"""

KNOWN = [
    "From 128 to 2,048 experts, GShard's device time grows 1.7 times (section 5.2). The predicted "
    "step grows 1.20 times, and the predicted forward layers of Figure 8 grow 1.17 times.",
    "GShard reaches 48 % of its roofline with 2,048 experts and more than 70 % with 128. The "
    "prediction for moe_2048e_36l is 79 %. The two cannot be compared directly. The paper "
    "measures the step. We divide one estimate by another, and both contain the same time for the "
    "links.",
    "From 16 to 2,048 cores, the paper's all-to-all grows 9 times (Figure 9), the square root of "
    "the number of cores 11 times, and the predicted time 4 times. Ours grows less for two "
    "reasons: the full pod closes both rings, which halves its time, and in our model of the "
    "links 2 x 4 chips take the same time as 4 x 4.",
    "GShard's models of 12 layers recompute nothing (section 5.1). Ours spend 16 to 20 % of the "
    "step on it, because their configs recompute every layer (Model.remat = 'layer').",
    "Figure 8's all-to-all takes 36 % of the measured forward layers at 2,048 cores, and 13 % of "
    "the predicted ones. The compiler now sends the experts' inputs and outputs as bfloat16, "
    "because products round them to it anyway. That is half of the bytes of the paper's float32. "
    "We suppose that the rest is the difference between the links' peak and the rate that 2,048 "
    "cores in lock step reach. GSPMD's shares in table 6 agree with ours.",
    "From 8 to 2,048 cores the time of an all-to-all grows 8 times, but the square root of the "
    "number of cores grows 16 times. From 128 to 2,048 cores it grows 2 times, but 3.75 times in "
    "the paper. Ours grows less because the full pod closes both rings. Between the other slices "
    "it grows as the square root.",
    "The gate's own product, whose cost is O(E), is in true float32 here, and takes "
    "six bfloat16 passes on a TPU; its gradients take one. The paper does not say which precision "
    "it used. This product is the part of the gate einsums that grows with the experts.",
    "Memory grows a little with the experts: the gates' weights ME, their gradients and the logits "
    "GSE grow with E (O(D), section 3.2). They take at most a twentieth of a core's memory.",
    "An MoE layer has six all-to-alls here, and four in the paper. Two of the six are in the "
    "recomputation: our 36-layer configs recompute every layer (Model.remat = 'layer', which a scan "
    "over blocks needs). The paper spent 28 % of the cycles on recomputation.",
    "GSPMD's dense and narrow models take much less memory here than printed. The paper says that "
    "it made the batch as large as memory allowed. Ours recompute every layer.",
    "Table 4's all-gather is an all-reduce of padded shards on 128 v3 cores, but not on 32. In "
    "both cases its bytes are O(D).",
    "Table 1 prints 36,684 and 12,228 experts. E * L / 2 gives 36,864 and 12,288, which we use. "
    "T(96L) has 2.3 billion weights with heads of 64, and not with the heads of 128 of appendix "
    "A.2.",
]
"""Differences from the papers that the tables of steps do not show."""
