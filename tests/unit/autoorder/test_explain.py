"""`pipe.explain()` and `pecan explain`: the facts as HTML and JSON; as text they are in decided.txt."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import pecan_ray as pecan
from pecan_ray.autoorder.accepted import VALUES_MAY_DIFFER
from pecan_ray.autoorder.explain import ExplainFormat
from pecan_ray.cli import main
from pecan_ray.cli.user_pipeline import find_pipeline
from pecan_ray.errors import PlanError
from pecan_ray.observe.read_script import load
from tests.unit.autoorder.sampled_orders import tone
from tests.unit.autoorder.test_autoorder_decided import half

ROOT = Path(__file__).resolve().parents[3]
ELEMENTS = 32
pytestmark = pytest.mark.usefixtures("on_the_meter")
PROGRAM = """
import numpy as np
import pecan_ray as pecan

SOURCE = pecan.sources.Items([{"x": np.ones(40_000, np.float32)}] * 32)
CONFIG = pecan.Config(sample_elements=32, sample_seconds=60.0)


def work(x):
    for _ in range(20):
        x = np.sqrt(x * x + 1)
    return x


def crop(x):
    return x[:40].copy()

"""
FUNCTION = """
def pipeline(engine="python"):
    pipe = pecan.PecanPipeline(SOURCE, name="mine", config=CONFIG, engine=engine)
    return pipe.map(work, on="x").map(crop, on="x").batch(4)
"""


def pipeline(**options: Any) -> pecan.PecanPipeline:
    """One move, and one operator that keeps its place."""
    noise = np.random.default_rng(0).integers(0, 255, (ELEMENTS, 64, 64, 3), np.uint8)
    source = pecan.sources.Items([{"image": image} for image in noise])
    config = pecan.Config(sample_elements=ELEMENTS, sample_seconds=60.0, **options)
    pipe = pecan.PecanPipeline(source, name="noise", config=config)
    pipe = pipe.map(lambda image: image.astype(np.float32), on="image", name="<b>", keep_position=True)
    return pipe.map(tone, on="image").map(half, on="image").batch(4)


def test_json_has_places_factors_bytes_times_and_reasons() -> None:
    found = json.loads(pipeline().explain("json"))
    assert (found["before"], found["after"]) == (["<b>", "tone", "half", "batch"], ["<b>", "half", "tone", "batch"])
    operator = found["operators"][1]
    assert operator["why"] == "moved: makes the data smaller (factor 0.25): runs earlier, before 'tone'"
    assert [operator[name] for name in ("name", "now", "was", "moved")] == ["half", 2, 3, True]
    assert operator["factor"] == pytest.approx(0.25, abs=0.001) and operator["microseconds"] > 0
    assert operator["elements_in"] == operator["elements_out"] == ELEMENTS
    (stretch,) = found["stretches"]
    assert stretch["sample"]["ops"][2]["profiled"]["reads"] == ["image"]
    assert stretch["measured"]["fields"]["speedup"] > 1.2
    assert stretch["exchanges"][0]["first"] == "tone" and stretch["exchanges"][0]["changed"] > 0


def test_html_is_escaped_other_formats_are_refused_and_mode_pecan_warns(caplog: pytest.LogCaptureFixture) -> None:
    pipe = pipeline(reorder="pecan")
    page = pipe.explain("html")
    assert "&lt;b&gt;" in page and "<b>" not in page and "moved: makes the data smaller" in page
    with pytest.raises(PlanError, match="format must be one of 'text', 'html', 'json', but got 'xml'"):
        pipe.explain(cast(ExplainFormat, "xml"))
    with pytest.raises(PlanError, match="again must be"):
        pipe.explain(again=cast(bool, "no"))
    assert VALUES_MAY_DIFFER in pipe.explain().splitlines()[0]
    (event,) = pipe.iter_batches(debug=True).report().events
    assert "AutoOrder moved half before tone" in event.text and event.text.endswith(VALUES_MAY_DIFFER)
    assert [one.levelname for one in caplog.records if VALUES_MAY_DIFFER in one.message] == ["WARNING"]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a test writes a program, which is imported as by a process of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_program", raising=False)
    return tmp_path / "my_program.py"


EXAMPLE = """
def example_pipeline():
    return pecan.PecanPipeline(SOURCE, name="example").map(crop, on="x")
"""
VARIABLE = 'pipe = pecan.PecanPipeline(SOURCE, name="held", config=CONFIG).map(crop, on="x")\n'


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (PROGRAM + FUNCTION, [], 'mine (mode "safe"): AutoOrder moved crop before work'),
        (PROGRAM + FUNCTION + EXAMPLE, [], "example (mode"),
        (PROGRAM + FUNCTION + EXAMPLE, ["--name", "pipeline"], "mine (mode"),
        (PROGRAM + VARIABLE, [], "held (mode"),
    ],
)
def test_the_command_explains_a_function_an_example_or_a_variable(
    program: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], said: str
) -> None:
    program.write_text(text)
    assert main(["explain", str(program), *arguments]) == 0
    assert capsys.readouterr().out.startswith(said)
    assert main(["explain", str(program), *arguments, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pipeline"] == said.partition(" ")[0]


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        ("x = 1\n", [], "has no pipeline: give it a function"),
        ("import numpy as np\nx = np.no_such_thing\n", [], "my_program.py, line 2: "),
        ("x = (\n", [], "my_program.py, line 1: '(' was never closed"),
        ("import no_such_module\n", [], "no_such_module"),
        ("raise SystemExit('give --data')\n", [], "ended with status 'give --data' before it called iter_batches"),
        ("def pipeline(root):\n    ...\n", [], "has no pipeline"),
        ("def pipeline():\n    return 3\n", [], "returned int, not a PecanPipeline"),
        (PROGRAM + "a = pecan.PecanPipeline(SOURCE)\nb = a.batch(2)\n", [], "several pipelines: a, b"),
        (PROGRAM + "a = pecan.PecanPipeline(SOURCE)\n", ["--name", "c"], "has no 'c'"),
        (PROGRAM + "a = pecan.PecanPipeline(SOURCE).map(crop, on='y')\n", [], "there is no column 'y'"),
    ],
)
def test_the_command_says_what_is_missing(
    program: Path, capsys: pytest.CaptureFixture[str], text: str, arguments: list[str], said: str
) -> None:
    program.write_text(text)
    assert main(["explain", str(program), *arguments]) == 2
    written = capsys.readouterr()
    assert said in written.err and written.err.startswith("pecan: ") and written.err.count("\n") == 1
    assert written.out == ""
    assert main(["explain", "nowhere.py"]) == 2
    assert "there is no file nowhere.py" in capsys.readouterr().err


@pytest.mark.parametrize("example", ["resnet50", "simclr", "retinanet", "asr_transformer"])
def test_the_examples_offer_a_pipeline(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # photographs are written there
    assert find_pipeline(load(ROOT / "examples" / f"{example}.py")).name == example
