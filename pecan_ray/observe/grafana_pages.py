"""Boards for Grafana about the jobs of a cluster, as its provisioning takes them: values in, JSON out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

CHOSEN = 'pecan_job=~"$pecan_job",pipeline=~"$pipeline",SessionName=~"$SessionName"'
"""What every query is narrowed to; Ray gives its session's name to all metrics."""
SCHEMA = 39
"""Of a board's JSON; Grafana moves older ones up by itself."""
PANEL = {"w": 12, "h": 8}
"""Its width, of 24 columns, and its height."""


@dataclass(frozen=True)
class PanelQuery:
    """One query of a panel."""

    expr: str
    """PromQL, with `CHOSEN` where `{}` stands."""
    legend: str

    @property
    def promql(self) -> str:
        """The query as Grafana gets it."""
        return self.expr.replace("{}", f"{{{CHOSEN}}}")


@dataclass(frozen=True)
class DashboardPanel:
    """One panel."""

    title: str
    description: str
    """What it tells, for the panel's description."""
    unit: str
    """As Grafana calls it."""
    queries: tuple[PanelQuery, ...]
    top: float | None = None


def of(title: str, says: str, unit: str, *queries: tuple[str, str], top: float | None = None) -> DashboardPanel:
    """Return a panel; `queries`: PromQL and legend of each."""
    return DashboardPanel(title, says, unit, tuple(PanelQuery(*one) for one in queries), top)


# A test asks whether each query names metrics that there are:
# docs/decisions/observing.md#63-names-of-metrics.
JOBS = (
    of(
        "Batches a second",
        "What trainers receive.",
        "short",
        ("sum by (pecan_job) (rate(ray_pecan_batches_total{}[$__rate_interval]))", "{{pecan_job}}"),
    ),
    of(
        "Share of the time in which trainers wait",
        "Near 0 the trainer is the bottleneck; well above it more workers would help.",
        "percentunit",
        ("avg by (pecan_job) (rate(ray_pecan_wait_seconds_total{}[$__rate_interval]))", "{{pecan_job}} now"),
        ("avg by (pecan_job) (ray_pecan_wait_ratio{})", "{{pecan_job}} since it began"),
        top=1,
    ),
    of(
        "Workers that run, and that are aimed at",
        "By placement: beside the trainers (local), and on other nodes (remote).",
        "short",
        ("sum by (pecan_job, placement) (ray_pecan_workers{})", "{{pecan_job}} {{placement}}"),
        ("sum by (pecan_job, placement) (ray_pecan_workers_wanted{})", "{{pecan_job}} {{placement}}, aimed at"),
    ),
    of(
        "Batches that wait at a trainer",
        "An empty queue lets the trainer wait.",
        "short",
        ("ray_pecan_queue_batches{}", "{{pecan_job}} rank {{rank}}"),
    ),
    of(
        "Elements a second",
        "What trainers receive.",
        "short",
        ("sum by (pecan_job) (rate(ray_pecan_elements_total{}[$__rate_interval]))", "{{pecan_job}}"),
    ),
    of(
        "Bytes a second",
        "What trainers receive.",
        "Bps",
        ("sum by (pecan_job) (rate(ray_pecan_bytes_total{}[$__rate_interval]))", "{{pecan_job}}"),
    ),
    of(
        "Time of a trainer's step",
        "Mean of the newest window that AutoPlacement has looked at.",
        "s",
        ("ray_pecan_batch_seconds{}", "{{pecan_job}}"),
    ),
    of(
        "Decisions of AutoPlacement",
        "By step of its search, in the last five minutes.",
        "short",
        ("sum by (pecan_job, phase) (increase(ray_pecan_decisions_total{}[5m]))", "{{pecan_job}} {{phase}}"),
    ),
    of(
        "Epochs that are over",
        "Since the job began.",
        "short",
        ("ray_pecan_epochs_total{}", "{{pecan_job}}"),
    ),
    of(
        "Bad elements",
        "That were left out, in the last five minutes.",
        "short",
        ("sum by (pecan_job) (increase(ray_pecan_bad_elements_total{}[5m]))", "{{pecan_job}}"),
    ),
    of(
        "Dropped elements",
        'That went with their workers where data is visited "at_most_once", in the last five minutes; and rests of '
        "splits whose length nobody knows yet.",
        "short",
        ("sum by (pecan_job) (increase(ray_pecan_dropped_elements_total{}[5m]))", "{{pecan_job}}"),
        ("ray_pecan_dropped_rests{}", "{{pecan_job}}, rests"),
    ),
)

WORKERS = (
    of(
        "Elements a second of each worker",
        "What it has produced.",
        "short",
        ("rate(ray_pecan_worker_elements_total{}[$__rate_interval])", "{{worker}}"),
    ),
    of("Threads of each worker", "That are at work now.", "short", ("ray_pecan_worker_threads{}", "{{worker}}")),
    of(
        "Bytes read of object stores",
        "A second, by placement.",
        "Bps",
        (
            "sum by (pecan_job, placement) (rate(ray_pecan_worker_remote_bytes_total{}[$__rate_interval]))",
            "{{pecan_job}} {{placement}}",
        ),
    ),
    of(
        "Reads asked for twice",
        "That an object store was late with, in 5 minutes.",
        "short",
        (
            "sum by (pecan_job) (increase(ray_pecan_worker_hedged_reads_total{}[5m])) or "
            "0 * sum by (pecan_job) (ray_pecan_workers{})",  # a counter that has not counted is not there
            "{{pecan_job}}",
        ),
    ),
)

COST = (
    of(
        "Paid so far",
        "At the prices that the job was given: hosts with their accelerators, and remote workers.",
        "currencyUSD",
        ("sum by (pecan_job, placement) (ray_pecan_cost_dollars_total{})", "{{pecan_job}} {{placement}}"),
    ),
    of(
        "Dollars an hour",
        "Over the last five minutes.",
        "currencyUSD",
        ("3600 * sum by (pecan_job) (rate(ray_pecan_cost_dollars_total{}[5m]))", "{{pecan_job}}"),
    ),
    of(
        "What input has cost, by operator",
        "Remote workers, and hosts while their trainers waited, dealt to operators by their time.",
        "currencyUSD",
        ("sum by (pecan_job, operator) (ray_pecan_operator_cost_dollars_total{})", "{{pecan_job}} {{operator}}"),
    ),
    of(
        "The last epoch",
        "What it has cost.",
        "currencyUSD",
        ("sum by (pecan_job, placement) (ray_pecan_epoch_cost_dollars{})", "{{pecan_job}} {{placement}}"),
    ),
)

BOARDS = {"jobs": JOBS, "workers": WORKERS, "cost": COST}
"""Panels by the name of their board, in which each file is called pecan_<name>_grafana_dashboard.json."""


def grafana_pages() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name of each file and what belongs into it."""
    for name, panels in BOARDS.items():
        yield f"pecan_{name}_grafana_dashboard.json", dashboard(name, panels)


def dashboard(name: str, panels: tuple[DashboardPanel, ...]) -> dict[str, Any]:
    """Return a board."""
    return {
        "uid": f"pecan-{name}",
        "title": f"pecan_ray: {name}",
        "tags": ["pecan_ray"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "links": [{"type": "dashboards", "tags": ["pecan_ray"], "title": "pecan_ray", "keepTime": True}],
        "annotations": {"list": []},
        "templating": {"list": list(_variables())},
        "panels": [_panel(number, one) for number, one in enumerate(panels)],
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "hide": 2, "refresh": 1}
    chosen = ""
    for name in ("SessionName", "pipeline", "pecan_job"):
        query = f"label_values(ray_pecan_workers{{{chosen}}}, {name})"
        yield {
            "name": name,
            "label": {"SessionName": "Ray's session", "pecan_job": "job"}.get(name, name),
            "type": "query",
            "datasource": {"type": "prometheus", "uid": "${datasource}"},
            "definition": query,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 2,
            "includeAll": True,
            "allValue": ".*",
            "multi": True,
            "current": {"text": ["All"], "value": ["$__all"]},
        }
        chosen = ",".join(filter(None, (chosen, f'{name}=~"${name}"')))


def _panel(number: int, panel: DashboardPanel) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0, "custom": {"fillOpacity": 8, "showPoints": "never"}}
    if panel.top is not None:
        defaults["max"] = panel.top
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": source,
        "gridPos": {**PANEL, "x": PANEL["w"] * (number % 2), "y": PANEL["h"] * (number // 2)},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": one.promql, "legendFormat": one.legend}
            for place, one in enumerate(panel.queries)
        ],
    }
