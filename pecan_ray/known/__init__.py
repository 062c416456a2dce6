"""Functions of other libraries that AutoOrder knows: torchvision's, Albumentations', NumPy's, OpenCV's and SciPy's.

A function is known by what it is (its very class, or the very function under a `functools.partial`) and by its public
parameters, never by its name or its source.  `recognise` says which steps it consists of, and `KnownRun` does the
steps of several operators at once: it decodes only the part that a crop keeps, and warps once for several times.  What
a random step draws it draws by its own library, as it would.  None of these libraries is imported here: whoever passes
a function of one has imported it.
"""
