"""Damaged files of every format, read by us and by a reference reader.

    make fuzz CASES=10000
    make fuzz CASES=1 SEED=4711 FUZZ="-k tar"

A case is a format and a seed: the seed makes a whole file, and says how it is damaged.  A failure is a bare exception,
a hang, an element that the reference reader gives and we do not although we tell of nothing, an error that it tells and
we do not, and an element that differs.
"""
