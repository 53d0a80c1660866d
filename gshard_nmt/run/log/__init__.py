"""What a run reports while it goes on."""
