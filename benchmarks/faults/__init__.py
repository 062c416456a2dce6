"""Random real jobs on a real cluster, with faults while they run, and what became of every element."""
