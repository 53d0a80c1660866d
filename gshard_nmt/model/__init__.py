"""The MoE Transformer and its training step, as pure TensorFlow functions.

Dimensions cheat sheet. Einsum strings, shapes in docstrings, declared parameters and the sharding rules
of a mesh use these letters, and each letter has one meaning:

    B  rows of a batch; a row is one sentence, or several packed sentences
    L  length: the tokens of a row; in attention, the queries
    T  length of the attention's keys
    M  model: the width of the residual stream
    H  hidden units of a feed-forward layer or of an expert
    N  attention heads
    D  width of an attention head
    V  vocabulary
    E  experts
    G  groups of tokens; each group is gated on its own
    S  group size: the tokens of a group
    C  capacity: the slots of an expert in a group
    J  slots of all experts of a group, J = E * C
    A  assignments of a token, also called its choices: the 1 or 2 experts that it asks for
    U  buckets of relative distance
    R  repeats of a block; parameters and scanned activations are stacked along R
    P  stages of a pipeline
    K  beams: the hypotheses that are kept for a sentence
    I  search steps of decoding
    _  a dimension that no rule splits
"""
