"""The table: what people do with DataLoader, tf.data and other libraries, and what happens here."""

from __future__ import annotations

from tests.parity.rows_of_operators import OPERATORS
from tests.parity.rows_of_passes import PASSES, SEEDS
from tests.parity.rows_of_programs import OTHERS
from tests.parity.rows_of_trainers import KERAS, LIGHTNING, TRAINER

SECTIONS = {
    "Passes": PASSES,
    "Seeds and random numbers": SEEDS,
    "The order of operators": OPERATORS,
    "Keras": KERAS,
    "Lightning": LIGHTNING,
    "The Trainer of Hugging Face": TRAINER,
    "Data sets, processes, programs": OTHERS,
}
HABITS = tuple(habit for habits in SECTIONS.values() for habit in habits)
