"""Exchanges of operators that do harm, or none, for judging the comparison of values."""
