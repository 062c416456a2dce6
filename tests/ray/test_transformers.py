"""A `Trainer` of Hugging Face trains on pipelines, and goes on from its checkpoints with what it has not used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.errors import PlanError, StateError
from tests.long_form import some_later

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("one_node", "no_actor_left")

ROWS, EPOCHS = 43, 3
STEPS = 6
"""Of an epoch, in batches of 8."""


class CutError(Exception):
    """What ends a run in the middle."""


class Noting(torch.nn.Module):  # type: ignore[misc]  # torch is imported where it is installed
    """Notes what it is called with; fails in one call."""

    def __init__(self, cut_in: int | None = None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.cut_in, self.seen = cut_in, list[list[int]]()

    def forward(self, i: Any, labels: Any) -> dict[str, Any]:
        if len(self.seen) == self.cut_in:
            raise CutError
        self.seen.append(i.tolist())
        return {"loss": self.weight**2, "logits": i}


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(i for batch in batches for i in batch)


def rows(*, known: bool = True) -> pecan.PecanPipeline:
    """Return batches with a column that the model does not take."""
    each = np.arange(ROWS)
    pipe = pecan.PecanPipeline(pecan.sources.Arrays(i=each, labels=each, other=each), name="transformers")
    return (pipe if known else pipe.filter(lambda i: i >= 0, on="i")).shuffle(20).batch(8)


def trainer(model: Any, folder: Path, *, known: bool = True, **more: Any) -> Any:
    from pecan_ray.integrations import PecanTrainer

    steps = {} if known else {"max_steps": EPOCHS * STEPS}
    pipes = {key: more.pop(key) for key in ("eval_dataset", "options", "compute_metrics") if key in more}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        save_strategy="steps",
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **{**steps, **more},
    )
    pipes = {"options": {"workers": pecan.Workers(local=1)}, **pipes}
    return PecanTrainer(model, arguments, train_dataset=rows(known=known), **pipes)


@pytest.mark.parametrize("known", some_later([True, False], True), ids=["length known", "length not known"])
def test_a_run_that_was_cut_off_goes_on_with_what_it_has_not_used(tmp_path: Path, known: bool) -> None:
    cut_in = 2
    first, second = Noting(cut_in), Noting()
    with pytest.raises(CutError):
        trainer(first, tmp_path, known=known).train()
    damaged = tmp_path / "elsewhere" / f"checkpoint-{cut_in}"
    shutil.copytree(tmp_path / damaged.name, damaged)
    (damaged / "pecan_input.json").write_text("{")
    with pytest.raises(StateError, match=rf"{damaged.name}.*damaged"):
        trainer(Noting(), tmp_path, known=known).train(resume_from_checkpoint=str(damaged))
    going_on = trainer(second, tmp_path, known=known)
    going_on.train(resume_from_checkpoint=True)
    seen = first.seen + second.seen
    assert len(seen) == EPOCHS * STEPS == going_on.state.global_step, "nothing is made again to be skipped"
    for epoch in range(EPOCHS):
        assert flat(seen[epoch * STEPS : (epoch + 1) * STEPS]) == list(range(ROWS))
    if known:
        assert going_on.state.epoch == EPOCHS


@pytest.mark.slow
def test_gradients_of_several_batches_are_one_step(tmp_path: Path) -> None:
    first, second = Noting(7), Noting()
    several: dict[str, Any] = {"gradient_accumulation_steps": 4, "ignore_data_skip": True}
    with pytest.raises(CutError):  # in the second batch of the second epoch, of whose batches none was in a step
        trainer(first, tmp_path, **several).train()
    going_on = trainer(second, tmp_path, **several)
    told = going_on.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2")).metrics
    assert going_on.state.global_step == EPOCHS * 2
    assert round(told["train_samples_per_second"] * told["train_runtime"]) == 2 * ROWS, "not of 8 for each batch"
    assert flat(second.seen) == sorted([*range(ROWS)] * 2), "the second epoch and the third"


@pytest.mark.slow
def test_an_evaluation_goes_over_everything_each_time(tmp_path: Path) -> None:
    def counted(found: Any) -> dict[str, int]:
        return {"rows": len(found.predictions)}

    evaluated = trainer(Noting(), tmp_path, eval_dataset=rows(), compute_metrics=counted)
    assert [evaluated.evaluate()["eval_rows"] for _ in range(2)] == [ROWS, ROWS]
    assert sorted(evaluated.predict(rows()).predictions.tolist()) == list(range(ROWS))


@pytest.mark.slow
def test_a_checkpoint_without_the_input_is_gone_on_from_by_skipping(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CutError):
        trainer(Noting(8), tmp_path).train()
    (tmp_path / "checkpoint-8" / "pecan_input.json").unlink()
    model = Noting()
    trainer(model, tmp_path).train(resume_from_checkpoint=True)
    assert len(model.seen) == EPOCHS * STEPS - 8 and "holds nothing of the input" in caplog.text


def test_the_trainers_own_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="format"):
        trainer(Noting(), tmp_path, options={"format": "torch"})
    with pytest.raises(PlanError, match="no argument 'wrokers'"):
        trainer(Noting(), tmp_path, options={"wrokers": 3})
