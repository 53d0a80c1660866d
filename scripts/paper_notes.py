"""The words of docs/paper_tables.md: introductions of its sections, and reasons for differences.

A number in the reasons and differences has a name in braces, and paper_facts.py computes it.
"""

REASONS = {
    r"moe_2048e_.*": (
        "The rows of 512 experts are {ratios_512} times the printed step, and these {ratios_2048} times. "
        "So the missing factor appears between these machines, as it does from gspmd_moe_145b to "
        "gspmd_moe_577b. We suppose that the links and the gates of a full pod are slower than we "
        "predict. A prediction has no host, no latency and no core that has more to do than another."
    ),
    r"moe_128e_.*": (
        "We have no explanation that the paper supports. A batch of {small_batch} tokens is "
        "{small_batch_of_core} tokens of each side on a core. For the products alone, the printed steps "
        "would need {needed_of_peak} % of the peak, which no other row of either paper reaches, and the "
        "36 layers would not fit. With half of the batch (the rows named half), the predictions agree "
        "with the printed steps. But the paper's own columns say that the batch was whole: "
        "{steps_of_a_second_128e} steps/s for {days_128e} days with {small_batch} tokens are "
        "{training_tokens} tokens, which the paper trained each model on, and half of the batch would be "
        "{half_tokens}. Its footnote says that the tokens are those of the source side."
    ),
    r"dense_96l.*": (
        "The printed step is the outlier: {dense_days} days are {dense_of_peak} % of the cores' peak. "
        "The paper trained the model with GPipe, and prints neither stages nor microbatches. The row "
        "dense_96l_gpipe is a pipeline. The row dense_96l has a mesh that splits rows and width (GSPMD "
        "Table 1, 2D finalized)."
    ),
    r"gspmd_moe_.*": (
        "Our models recompute every layer, as the scan over blocks requires. The paper's did not: "
        "section 5.2 calls recomputation a difference of the pipelines from all other models. The column "
        "without recomputation has what is left."
    ),
    r"gspmd_narrow_8x32": (
        "The paper's step is {narrow_growth} times that of its other mesh of as many cores. The "
        "predicted links do not show why."
    ),
    r"gspmd_hybrid_.*": (
        "The FLOPs differ by the same ratio, {hybrid_flops}. The printed sizes fix the weights that a "
        "token uses. So with rows of this length no number of experts per token gives the printed "
        "utilization, whatever M, D and the depth are. The paper's rows may have been shorter."
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
the scales of norms. "in all" is the time of gshard-inspect on two cores. Other work ran on the
machine while most rows compiled, which also lengthens the CPU time in parentheses. "host GiB" is
the memory of that process.
"""

PIPELINES = """The model is that of table 3 with {pipeline_rows} sequences of {pipeline_length}
tokens on {pipeline_cores} cores. L are the stages, X splits rows and Y splits the layers. The
printed shares are those of the whole step, and the column "of the iterations" is `(L-1)/(n+L-1)`
for n microbatches (see pipelines.md). The predicted step includes the bubbles, and the predicted
share of recomputation includes that of bubbles. The rows were compiled with label smoothing, as
those of the tables above. The name of a row has the mesh and the microbatches:
`scripts/paper_tables.py --only gspmd_pipeline_4x16x4_16`.
"""

GSHARD_ABOUT = """The batch is the paper's (4M or 1M tokens of one side), in rows of 128 tokens. The
printed step is the inverse of the printed steps per second. GShard gives memory only as the bars of
Figure 7. TFLOP is that of one core in a step, without recomputation. dense_96l_gpipe and dense_128l
are pipelines of {gpipe_stages} stages with {gpipe_microbatches} microbatches. The papers print
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
longer in another run. `python benchmarks/compile_time.py` compiles the smallest and the largest in
turns.
"""

LINKS = """These times come from the model of the links that all predictions use. It knows only
bandwidth. The links across the middle of the slice limit an all-to-all, so its time grows as the
square root of the cores. A full pod has closed rings, which halves the time. The time of an
all-reduce does not grow.
"""

TABLE4 = """Each operator is compiled for 8, 32 and 128 cores. Letters that are split have
{split_size} elements for each core, other letters have {whole_size}. Bytes are those of one core.
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
{printed_xxl_experts} make half of its printed weights. All rows were compiled with the experts in
the first layer of each block, label smoothing and dropout. Their configs now have the experts in
the last layer, and neither of the others.

Each group of Switch-C is spread over 16 cores, and a core computes {spread_slots} slots in a pair
of encoder and decoder layers. With a group on each core it would compute {whole_slots}. The price
is in the dispatch: a group of the encoder has {group_slots} slots, so the one-hot products take
more than the experts. The compiler turns the reduce-scatters of the encoder's slots into
all-reduces, which take twice the time.
"""

SWITCH_FIGURE9 = """One MoE layer of Switch-Large with 16 experts, forward and backward, on 16 cores
(`v3:2x4`). All rows have the same layer and the same batch of {layer_tokens} tokens. (The figure
keeps the weights and the tokens of a core instead.) The five meshes are shapes of
`meshes/data_expert_tensor.gin`: n = `data` x `expert` cores split the batch, and m = `tensor` cores
split the hidden units. "experts" are those of which a core holds weights. MiB are those of one
core. Times of the links are predictions.
"""

CONTRADICTS = """Figures that are less than {lowest} or more than {highest} times the printed one. The
ratios are those of the figures on this page. Memory is left out.
"""

KNOWN = [
    "The largest model trains in {printed_days} days in the paper (section 1). {days} days are "
    "predicted for a trillion tokens of the source side.",
    "{weights_growth} times the weights cost {printed_cost_growth} times the core-years (Table 3, "
    "from moe_128e_36l to moe_2048e_36l), and {cost_growth} times by the predicted steps. The order "
    "by core-years is {printed_cost_order} in the paper, and {cost_order} as predicted.",
    "From 128 to 2,048 experts, GShard's device time grows {printed_step_growth} times (section "
    "5.2). The predicted step grows {step_growth} times, and the predicted forward layers of Figure "
    "8 grow {layers_growth} times. In these layers the compiler's estimate for the experts jumps: "
    "{experts_ms} ms, although each core has the same work.",
    "GShard reaches {printed_roofline_2048} % of its roofline with 2,048 experts and more than "
    "{printed_roofline_128} % with 128. The predictions are {roofline_2048} % and {roofline_128} %. "
    "The two cannot be compared directly. The paper measures the step. We divide one estimate by "
    "another, and both contain the same time for the links.",
    "From 16 to 2,048 cores, the paper's all-to-all grows {printed_figure9_growth} times (Figure 9), "
    "the square root of the number of cores {root_16} times, and the predicted time {figure9_growth} "
    "times. Ours grows less for two reasons: the full pod closes both rings, which halves its time, "
    "and in our model of the links 2 x 4 chips take the same time as 4 x 4.",
    "GShard's models of 12 layers recompute nothing (section 5.1). Ours spend {recomputed_12} % of "
    "the step on it, because the scan over blocks keeps only what enters a block.",
    "Figure 8's all-to-all takes {printed_share_2048} % of the measured forward layers at 2,048 "
    "cores, and {printed_share_128} % at 128 (section 5.2). {share_2048} % and {share_128} % are "
    "predicted. The compiler now sends the experts' inputs and outputs as bfloat16, because products "
    "round them to it anyway. That is half of the bytes of the paper's float32. We suppose that the "
    "rest is the difference between the links' peak and the rate that cores in lock step reach. "
    "GSPMD's shares in table 6 agree with ours.",
    "From 8 to 2,048 cores the time of an all-to-all grows {exchange_growth_8} times, but the square "
    "root of the number of cores grows {root_8} times. From 128 to 2,048 cores it grows "
    "{exchange_growth_128} times, but {printed_share_growth} times in the paper. Ours grows less "
    "because the full pod closes both rings. Between the other slices it grows as the square root.",
    "Section 3.3 of GShard calls the time to compile constant. From 8 to 2,048 cores it grew "
    "{compile_growth} % here.",
    "The gate's own product, whose cost is O(E), is in true float32 here, and takes six bfloat16 "
    "passes on a TPU; its gradients take one. The paper does not say which precision it used. This "
    "product is the part of the gate einsums that grows with the experts.",
    "Memory grows {memory_growth} % from 8 to 2,048 experts: the gates' weights ME, their gradients "
    "and the logits GSE grow with E (O(D), section 3.2).",
    "An MoE layer has six all-to-alls here, and four in the paper. Two of the six are in the "
    "recomputation of every layer, which the scan over blocks needs. It takes {recomputed_36} % of "
    "the step of the 36-layer models. The paper spent {printed_recomputation} % of the cycles on it.",
    "Of the cores' peak, GSPMD's table 2 prints {printed_utilization} %, and {utilization} % are "
    "predicted, with recomputation in the predicted steps. The paper had none there (section 5.2). "
    "So these steps agree more than they should.",
    "GSPMD's dense and narrow models take much less memory here than printed. The paper says that it "
    "made the batch as large as memory allowed. Ours recompute every layer.",
    "GSPMD's table 4 has its shortest step with {printed_fastest} (stages, rows, width), and its "
    "longest with {printed_slowest}. {fastest} and {slowest} are predicted. The best pipeline is "
    "{printed_slower_than_2d} % slower than the 2D mesh 32 x 8 of table 3 in the paper, and "
    "{slower_than_2d} % as predicted.",
    "From gspmd_moe_10b to gspmd_moe_577b the printed step grows {printed_sparse_growth} times, "
    "because the gating becomes significant (section 5.4), and the printed TFLOP from "
    "{printed_sparse_flops}. The predicted step grows {sparse_growth} times, and the TFLOP from "
    "{sparse_flops}. The last row agrees ({sparse_ratio}) while the others do not ({sparse_ratios}): "
    "it has recomputation that the paper's has not, and less for the gates and links.",
    "GSPMD's table 8 is {printed_unet_speedup} times as fast with 32 shards of the images as with "
    "16, and {unet_speedup} times as predicted.",
    "Table 4's all-gather is an all-reduce of padded shards on 128 v3 cores, but not on 32. In both "
    "cases its bytes are O(D).",
    "Table 1 prints {printed_experts_36} and {printed_experts_12} experts. Half of E * L gives "
    "{counted_experts_36} and {counted_experts_12}, which we use. T(96L) has {dense_weights} billion "
    "weights with heads of {dense_heads}, and not with the heads of {printed_heads} of appendix A.2.",
]
"""Differences from the papers that the tables of steps do not show."""
