"""What lies in examples/deploy: arguments that exist, commands that are known, versions that are ours."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("fastapi", reason="needs the extra 'server'")
from test_documents import unknown

import headstart_integrations.ray
from headstart_integrations.ray.arguments import RayArguments

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
PINS = dict(re.findall(r"^([\w.-]+)==(.+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def on_kubernetes() -> Any:
    return read("rayservice.yaml")["spec"]


@pytest.mark.parametrize(
    "config", [read("serve.yaml"), yaml.safe_load(on_kubernetes()["serveConfigV2"])], ids=["serve", "rayservice"]
)
def test_applications_are_ours_and_their_arguments_go_together(config: Any) -> None:
    (application,) = config["applications"]
    module, _, name = application["import_path"].partition(":")
    assert module == headstart_integrations.ray.__name__
    assert callable(getattr(headstart_integrations.ray, name))
    arguments = RayArguments(**application["args"])
    arguments.check()
    assert arguments.bounds == (2, 8)


def test_replicas_fit_their_workers() -> None:
    spec = on_kubernetes()
    arguments = RayArguments(**yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"])
    (workers,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    pod = workers["template"]["spec"]
    assert float(pod["containers"][0]["resources"]["limits"]["cpu"]) >= arguments.cpus_per_replica
    assert (workers["minReplicas"], workers["maxReplicas"]) == arguments.bounds
    assert pod["terminationGracePeriodSeconds"] > arguments.drain_seconds
    mounted = pod["containers"][0]["volumeMounts"][0]["mountPath"]
    assert arguments.api_key_file is not None
    assert str(arguments.api_key_file.parent) == mounted


def commands() -> list[str]:
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    entry, words = (
        json.loads(re.findall(rf"^{name} (\[.*\])$", dockerfile, re.MULTILINE)[0]) for name in ("ENTRYPOINT", "CMD")
    )
    service = (FOLDER / "headstart.service").read_text(encoding="utf-8")
    unit = re.findall(r"^ExecStart=(.*)$", service, re.MULTILINE)[0]
    composed = read("compose.yaml")["services"]["headstart"]["command"]
    return [shlex.join([*entry, *words]), shlex.join([*entry, *composed]), unit]


@pytest.mark.parametrize("command", commands())
def test_commands_are_known(command: str) -> None:
    assert "headstart serve" in command
    assert not list(unknown(command))


def test_versions_are_those_that_are_tested() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"torch==(\S+)", dockerfile) == [PINS["torch"]]
    assert on_kubernetes()["rayClusterConfig"]["rayVersion"] == PINS["ray"]
