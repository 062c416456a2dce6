"""How many workers run: scaling by batch time."""
