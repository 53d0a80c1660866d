"""What gshard-inspect finds out: from a compiled program's text to memory, communication, compute."""
