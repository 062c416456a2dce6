"""The manifests in deploy/ have the fields that KubeRay and Kubernetes know, with values of their kinds."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
jsonschema = pytest.importorskip("jsonschema")

HERE = Path(__file__).resolve()
SCHEMA = json.loads((HERE.parent / "kuberay_schema.json").read_text())
DEPLOY = HERE.parents[2] / "deploy"
MANIFESTS = [yaml.safe_load(path.read_text()) for path in sorted(DEPLOY.glob("*.yaml"))]


def faults(manifest: Any) -> list[str]:
    kind = next(one for one in SCHEMA["oneOf"] if one["properties"]["kind"]["const"] == manifest["kind"])
    checked = jsonschema.Draft202012Validator({**SCHEMA, "oneOf": [kind]})
    return [error.message for error in checked.iter_errors(manifest)]


def test_a_manifest_fits_its_schema_and_one_with_unknown_fields_or_wrong_kinds_does_not() -> None:
    assert [one["kind"] for one in MANIFESTS] == ["RayCluster", "RayJob"]
    assert [faults(manifest) for manifest in MANIFESTS] == [[], []]
    changes: tuple[dict[str, Any], ...] = ({"headgroupSpec": {}}, {"workerGroupSpecs": {}}, {"rayVersion": 2.6})
    for change in changes:
        wrong = copy.deepcopy(MANIFESTS[0])
        wrong["spec"].update(change)
        assert faults(wrong), change
    wrong = copy.deepcopy(MANIFESTS[0])
    wrong["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["volumeMount"] = []
    assert faults(wrong)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda one: one["kind"])
def test_workers_have_the_label_by_which_they_are_found_and_mounts_have_volumes(manifest: Any) -> None:
    spec = manifest["spec"].get("rayClusterSpec", manifest["spec"])
    groups = spec["workerGroupSpecs"]
    assert all(group["labels"] == {"pecan-role": "remote"} for group in groups)
    assert not any("labels" in group["rayStartParams"] for group in groups), "KubeRay refuses them there"
    for pod in (one["template"]["spec"] for one in (spec["headGroupSpec"], *groups)):
        volumes = {volume["name"] for volume in pod.get("volumes", ())}
        mounts = {mount["name"] for one in pod["containers"] for mount in one.get("volumeMounts", ())}
        assert mounts == volumes
    assert f'=={spec["rayVersion"]}"' in (DEPLOY / "Dockerfile").read_text(), "the image has another Ray"
