"""What a notebook shows of a pipeline: its operators in their order, without running any."""

from __future__ import annotations

import html

from pecan_ray.plan.operators import Join, Plan, as_written


def pipeline_html(name: str, engine: str, seed: int, plan: Plan) -> str:
    """Return a pipeline as HTML."""
    title = f"<b>{html.escape(name)}</b> ({html.escape(engine)} engine, seed {seed})"
    return f"<div>{title}{_steps(plan)}</div>"


def _steps(plan: Plan) -> str:
    if isinstance(plan.head, Join):
        head = html.escape(plan.head.kind) + "".join(map(_steps, plan.head.inputs))
    else:
        head = html.escape(type(plan.head).__name__)
    steps = [head, *(f"<code>.{html.escape(as_written(op))}</code>" for op in plan.ops)]
    return f"<ol>{''.join(f'<li>{step}</li>' for step in steps)}</ol>"
