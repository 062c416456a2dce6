"""The control plane of a job in a deterministic simulation: the state machines that run live, and a model of the rest.

One seeded scheduler with a virtual clock delays, reorders, doubles and loses messages, kills and freezes workers and
trainers, and changes speeds and numbers.  What must hold is checked at every step and at the end.
"""
