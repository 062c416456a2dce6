"""Where workers run, beside the trainer or on other nodes: the AutoPlacement policy."""
