"""From a trained model and source sentences to hypotheses."""
