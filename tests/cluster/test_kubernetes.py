"""The JobSet of configs/cluster/hand-off: what it asks Kubernetes for, and what stoker makes of the environment that it gives a pod."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from supervisor.cli.in_allocation import placed
from supervisor.cli.job_inputs import parse_words
from supervisor.cluster.scheduler import Scheduler, scheduler_of
from supervisor.policy import (
    EXIT_DO_NOT_REQUEUE,
    EXIT_ENDED_EARLY,
    EXIT_FAILED,
    EXIT_GAVE_UP,
    EXIT_LOST,
    EXIT_REQUEUE,
    EXIT_STOPPED,
)

MANIFEST = Path(__file__).parents[2] / "configs" / "cluster" / "hand-off" / "jobset.yaml"
LABELS = {
    "jobset.sigs.k8s.io/jobset-name": "train",
    "jobset.sigs.k8s.io/jobset-uid": "0b1c2d3e-aaaa-bbbb-cccc-000000000000",
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "jobset.sigs.k8s.io/restart-attempt": "0",
}
"""What JobSet's controller puts on a pod (labelAndAnnotateObject in its jobset_controller.go)."""
# The keys of JobSet's v1alpha2 that the manifest uses; the Job within it is held against Kubernetes' own schema (make cluster).
KEYS = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    ".metadata": {"name"},
    ".spec": {"network", "failurePolicy", "replicatedJobs"},
    ".spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    ".spec.failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    ".spec.failurePolicy.rules": {"name", "action", "onJobFailureReasons", "targetReplicatedJobs"},
    ".spec.replicatedJobs": {"name", "replicas", "template"},
}


def unknown_keys(found: Any, place: str = "") -> list[str]:
    """Keys that no JobSet has, each with its place."""
    if place == ".spec.replicatedJobs.template":
        return []
    if isinstance(found, list):
        return [key for each in found if isinstance(each, dict) for key in unknown_keys(each, place)]
    if not isinstance(found, dict):
        return []
    wrong = [f"{place}.{key}" for key in found if key not in KEYS[place]]
    return wrong + [
        key for name in found.keys() & KEYS[place] for key in unknown_keys(found[name], f"{place}.{name}")
    ]


def manifest() -> dict[str, Any]:
    found = yaml.safe_load(MANIFEST.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def job() -> dict[str, Any]:
    found = manifest()["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert isinstance(found, dict)
    return found


def container() -> dict[str, Any]:
    found = job()["template"]["spec"]["containers"][0]
    assert isinstance(found, dict)
    return found


def pod(index: int, restarts: int = 0) -> dict[str, str]:
    """The environment of a pod, as kubelet makes it of the manifest."""
    labels = {**LABELS, "jobset.sigs.k8s.io/restart-attempt": str(restarts)}
    env = {"JOB_COMPLETION_INDEX": str(index)}
    for each in container()["env"]:
        path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        label = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        env[each["name"]] = labels[label[1]] if label else each["value"]
    return env


def test_the_manifest_is_a_jobset() -> None:
    found = manifest()
    assert (found["apiVersion"], found["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert unknown_keys(found) == []
    found["spec"]["failurePolicy"]["rules"][0]["actions"] = "FailJobSet"
    assert unknown_keys(found) == [".spec.failurePolicy.rules.actions"], "a key that is misspelt is found"


def test_exit_codes_that_would_come_again_end_the_job_and_no_others() -> None:
    (rule,) = job()["podFailurePolicy"]["rules"]
    codes = rule["onExitCodes"]
    final = {EXIT_FAILED, 2, 3, EXIT_GAVE_UP, EXIT_STOPPED, EXIT_ENDED_EARLY, EXIT_DO_NOT_REQUEUE}
    assert (rule["action"], codes["operator"], set(codes["values"])) == ("FailJob", "In", final)
    assert not final & {EXIT_REQUEUE, EXIT_LOST, 137, 143}
    assert codes["containerName"] == container()["name"]
    assert job()["template"]["spec"]["restartPolicy"] == "Never", "a pod failure policy needs it"
    assert job()["backoffLimit"] == 0
    (on_jobset,) = manifest()["spec"]["failurePolicy"]["rules"]
    assert (on_jobset["action"], on_jobset["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


def test_as_many_pods_as_the_ranks_wait_for() -> None:
    assert job()["completionMode"] == "Indexed"
    assert job()["completions"] == job()["parallelism"] == int(pod(0)["JOBSET_NODES"])


def test_a_pod_finds_its_place() -> None:
    here = scheduler_of(pod(1, restarts=2))
    assert here.place is not None
    assert (here.place.node_rank, here.place.nodes) == (1, 2)
    assert here.place.names == ("train-node-0-0.train", "train-node-0-1.train")
    assert (here.name, here.job, here.starts) == ("Kubernetes", "train-0b1c2d3e", 2)
    assert here.final_code == 93
    assert here.time_left_s(0.0) is None
    assert "pod" in (here.detach_warning or "")


def test_the_command_of_the_manifest_gets_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    words = container()["command"]
    assert words[:2] == ["stoker", "run"]
    parsed = placed(parse_words(words[2:], {}), pod(1))
    assert dict(parsed.torchrun) == {
        "nnodes": "2",
        "node_rank": "1",
        "master_addr": "train-node-0-0.train",
        "nproc_per_node": "8",
    }
    assert parsed.flag("run_dir") == "/shared/runs/kubernetes-train-0b1c2d3e"
    assert "node 1 of 2 in JobSet train" in capsys.readouterr().err


def test_odd_values_are_no_crash() -> None:
    here = scheduler_of(
        {**pod(0), "JOBSET_NODES": "many", "JOBSET_RESTARTS": "-1", "JOB_COMPLETION_INDEX": ""}
    )
    assert here.place is not None
    assert (here.place.node_rank, here.place.nodes, here.starts) == (0, 1, 0)
    assert isinstance(scheduler_of({"JOB_COMPLETION_INDEX": "0"}), Scheduler), (
        "an Indexed Job of somebody else's"
    )
    assert scheduler_of({"JOB_COMPLETION_INDEX": "0"}).job is None
