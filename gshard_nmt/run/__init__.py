"""What a training run keeps in its folder and shows while it works."""
