"""A model of the control plane's core for the model checker Spin."""
