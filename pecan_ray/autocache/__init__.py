"""Keeping elements at `autocache` points: what to keep, decided from costs and from the speed of the store."""
