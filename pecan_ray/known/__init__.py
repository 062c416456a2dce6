"""Functions that AutoOrder knows: those of `pecan_ray.images` and torchvision, and `Image.fromarray` of Pillow.

A function is known by what it is (its very class) and by its public parameters, never by its name or its source.
`steps_of` says which steps it consists of, and `KnownRun` does the steps of several operators at once: it decodes only
the part that a crop keeps, and warps once for several times.  What a random step draws it draws by its own library, as
it would.  None of these libraries is imported here: whoever passes a function of one has imported it.
"""
