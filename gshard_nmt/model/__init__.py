"""The MoE Transformer and its training step, as pure TensorFlow functions."""
