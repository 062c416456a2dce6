"""How much of a small change to the code the tests notice: `make mutate`."""
