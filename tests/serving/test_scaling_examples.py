"""The examples of autoscaling run without a cluster, and the other side sets what the policy wants."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import yaml

from tests.paths import ROOT

EXAMPLES = ROOT / "examples" / "serve"
NAMES = ("kubernetes", "keda", "aibrix", "dynamo_planner")


@pytest.mark.parametrize("name", NAMES)
def test_the_example_runs_and_the_other_side_follows_the_policy(name):
    command = [sys.executable, EXAMPLES / name / "run.py"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines() if re.match(r"\s*\d+\.\d ", line)]
    replicas = [int(row[-1]) for row in rows]
    assert max(replicas) > replicas[0]
    if name == "keda":
        assert 0 in replicas
        assert "StreamIsActive pushed [True, False, True" in ran.stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_page_and_its_manifests(name):
    page = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
    assert "pip install" in page
    assert f"python examples/serve/{name}/run.py" in page
    for path in (EXAMPLES / name).glob("*.yaml"):
        parts = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
        assert parts
        assert path.name in page
