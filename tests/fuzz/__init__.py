"""Damaged files of every format, read by us and by a reference reader.

    make fuzz MINUTES=30
    python -m tests.fuzz --cases 10000 --formats tar csv
    python -m tests.fuzz --formats tar --seed 4711

A case is a format and a seed: the seed makes a whole file, and says how it is damaged.  A failure is a bare exception,
a hang, an element that the reference reader gives and we do not although we tell of nothing, an error that it tells and
we do not, and an element that differs.
"""
