"""The papers' experiments in the simulator: what they report, what ours do, and the page that compares both."""
