"""The words of docs/paper_tables.md: introductions of its sections, and reasons for differences."""

REASONS = {
    r"moe_2048e_.*": (
        "The rows of 512 experts agree with the printed steps and these do not. So the missing factor "
        "appears between these machines, as it does from gspmd_moe_145b to gspmd_moe_577b. We suppose "
        "that the links and the gates of a full pod are slower than we predict. A prediction has no "
        "host, no latency and no core that has more to do than another."
    ),
    r"moe_128e_.*": (
        "We have no explanation that the paper supports. For the products alone, the printed steps would "
        "need a share of the peak that no other row of either paper reaches, and the 36 layers would not "
        "fit. With half of the batch (the rows named half), the predictions agree with the printed steps. "
        "But the paper's own columns, steps per second times days, say that the batch was whole."
    ),
    r"dense_96l.*": (
        "The printed step is the outlier: it uses a few percent of the cores' peak. The paper trained the "
        "model with GPipe, and prints neither stages nor microbatches. The row dense_96l_gpipe is a "
        "pipeline. The row dense_96l has a mesh that splits rows and width (GSPMD Table 1, 2D finalized)."
    ),
    r"gspmd_moe_.*": (
        "Our models recompute every layer, as the scan over blocks requires. The paper's did not: "
        "section 5.2 calls recomputation a difference of the pipelines from all other models. The column "
        "without recomputation has what is left."
    ),
    r"gspmd_narrow_8x32": (
        "The paper's step is much longer than that of its other mesh of as many cores. The predicted "
        "links do not show why."
    ),
    r"gspmd_hybrid_.*": (
        "The FLOPs differ by the same ratio. The printed sizes fix the weights that a token uses. So with "
        "rows of this length no number of experts per token gives the printed utilization. The paper's "
        "rows may have been shorter."
    ),
    r"GSPMD table 4: .*": (
        "We have no explanation. The iterations of a pipeline wait for each other, and a prediction has "
        "no latency."
    ),
    r"GSPMD table 5: .*": (
        "The paper pipelines these layers. Our example splits rows and width, so there are no bubbles."
    ),
    r"GSPMD table 8: .*": (
        "The paper's network has more channels, or its count of FLOPs is another one."
    ),
}
"""Pattern of the names of rows -> why their figures may differ from the printed ones."""

HEAD = """# The papers' tables, compiled

`scripts/paper_tables.py` makes this page, and `scripts/paper_tables.py --only NAME --again` the
figures of one row. Rows were compiled at different times, by the code of their time. The TPU
compiler (libtpu) compiles each model for the paper's own number of TPU v3 cores, on a machine
without a TPU. {done} of {rows} rows have figures. The predicted step is the compiler's estimate of
each operation plus the time of the collectives at the links' peak, without overlap, and without
the time of host and input. [inspect.md](inspect.md) says how each figure is made. Weights include
the scales of norms. """

PIPELINES = """The model is that of table 3 with 1,024 sequences of 1,024
tokens on 256 cores. L are the stages, X splits rows and Y splits the layers. The
printed shares are those of the whole step, and the column "of the iterations" is `(L-1)/(n+L-1)`
for n microbatches (see pipelines.md). The predicted step includes the bubbles, and the predicted
share of recomputation includes that of bubbles. The rows were compiled with label smoothing, as
those of the tables above. The name of a row has the mesh and the microbatches:
`scripts/paper_tables.py --only gspmd_pipeline_4x16x4_16`.
"""

GSHARD_ABOUT = """The batch is the paper's (4M or 1M tokens of one side), in rows of 128 tokens. The
printed step is the inverse of the printed steps per second. GShard gives memory only as the bars of
Figure 7. TFLOP is that of one core in a step, without recomputation. dense_96l_gpipe and dense_128l
are pipelines of 16 stages with 64 microbatches. The papers print
neither number.
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
longer in another run.
"""

LINKS = """These times come from the model of the links that all predictions use. It knows only
bandwidth. The links across the middle of the slice limit an all-to-all, so its time grows as the
square root of the cores. A full pod has closed rings, which halves the time. The time of an
all-reduce does not grow.
"""

TABLE4 = """Each operator is compiled for 8, 32 and 128 cores, and a cell has three figures unless they are
equal. Letters that are split have
64 elements for each core, other letters have 256. Bytes are those of one core.
"""

GSPMD = """Printed memory and steps are the paper's, on TPU v3 cores of 16 GB. The compiled figures
are for the same mesh, batch and sequence length. TFLOP is that of one core in a step. The printed
TFLOP is utilization times step time times the peak of a core. The compiled TFLOP leaves
recomputation out. The rows were compiled with label smoothing, which their configs no longer have.
"""

SWITCH = """The paper does not say how many cores it used. The slices of TPU v3 are our choice, with
batches of 2,048 sequences of 512 source and 128 target tokens. The printed FLOPs of a sequence fit
two FLOPs for each weight that a token uses, forward, without the gates and the attention's scores.
The compiled forward pass also has the scores, the keys and values of the cross-attention for each
source token, and every slot, also an empty one. Its "dispatch" is the share of the gate and of the
one-hot products that move tokens to slots and back. Switch-XXL has 128 experts here: the printed
64 make half of its printed weights. All rows were compiled with the experts in
the first layer of each block, label smoothing and dropout. Their configs now have the experts in
the last layer, and neither of the others.

Each group of Switch-C is spread over 16 cores, and a core computes 896 slots in a pair
of encoder and decoder layers. With a group on each core it would compute 4,096. The price
is in the dispatch: a group of the encoder has 10,240 slots, so the one-hot products take
more than the experts. The compiler turns the reduce-scatters of the encoder's slots into
all-reduces, which take twice the time.
"""

SWITCH_FIGURE9 = """One MoE layer of Switch-Large with 16 experts, forward and backward, on 16 cores
(`v3:2x4`). All rows have the same layer and the same batch of 32,768 tokens. (The figure
keeps the weights and the tokens of a core instead.) The five meshes are shapes of
`meshes/data_expert_tensor.gin`: n = `data` x `expert` cores split the batch, and m = `tensor` cores
split the hidden units. "experts" are those of which a core holds weights. MiB are those of one
core. Times of the links are predictions.
"""

CONTRADICTS = """Figures that are less than 0.8 or more than 1.25 times the printed one. The
ratios are those of the figures on this page. Memory is left out.
"""

KNOWN = [
    "GShard's step grows 1.7 times from 128 to 2,048 experts (section 5.2), and its all-to-all 9 times "
    "from 16 to 2,048 cores (Figure 9). The predictions grow less: a full pod closes both rings of its "
    "links, which halves an all-to-all, and a prediction has no latency. Between the other slices it grows "
    "as the square root of the cores.",
    "In Figure 8 the all-to-all takes 36 % of the measured forward layers at 2,048 cores. The prediction "
    "is lower: the compiler sends the experts' inputs and outputs as bfloat16, and the links have their "
    "peak rate. GSPMD's shares in table 6 agree with ours.",
    "An MoE layer has six all-to-alls here, and four in the paper. Two are in the recomputation of every "
    "layer, which the scan over blocks needs. GShard's models of 12 layers recompute nothing (section "
    "5.1), and GSPMD's dense models neither (section 5.2).",
    "GSPMD's dense and narrow models take much less memory here than printed. The paper says that it "
    "made the batch as large as memory allowed.",
    "The gate's own product, whose cost is O(E), is in true float32 here, and takes six bfloat16 passes "
    "on a TPU. The gates' weights ME, their gradients and the logits GSE grow with E (O(D), section 3.2), "
    "so memory grows a little with the experts.",
    "Table 4's all-gather is an all-reduce of padded shards on 128 v3 cores, but not on 32. In both cases "
    "its bytes are O(D).",
    "Table 1 prints 36,684 and 12,228 experts. Half of E * L gives 36,864 and 12,288, which we use. T(96L) "
    "has 2.3 billion weights with heads of 64, and not with the heads of 128 of appendix A.2.",
]
"""Differences from the papers that the tables of steps do not show."""
