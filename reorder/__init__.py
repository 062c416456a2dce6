"""In which order transforms run: the AutoOrder rewriting of a plan."""
