"""What is kept and shared: execution modes, allocation, substitution."""
