"""
`python -m infra.check`: every offline check; one line a finding, and one JSON object at the end.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from infra.check import (
    bicep,
    compose,
    dashboards,
    dockerfile,
    manifests,
    policy,
    queries,
    schema,
    tools,
    workflow,
)

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"


def main() -> int:
    """
    Check everything; return 0 only if nothing was found.
    """
    templates = bicep.read_templates(INFRA)
    bicep_errors = _told(schema.problems(templates, INFRA / "main.parameters.json"))
    policy_failed = _told(
        [
            *policy.violations(templates),
            *tools.hadolint(INFRA / "docker/Dockerfile"),
            *dockerfile.problems((INFRA / "docker/Dockerfile").read_text(encoding="utf-8")),
            *workflow.problems(ROOT / ".github/workflows"),
        ]
    )
    scanned = [*tools.checkov(INFRA, "bicep"), *tools.checkov(INFRA / "docker", "dockerfile")]
    compose_found = _told(compose.problems(ROOT))
    with tempfile.TemporaryDirectory() as scratch:
        try:
            rendered = manifests.render(INFRA / "kubernetes")
        except ValueError as error:
            k8s_found = _told([str(error)])
        else:
            k8s_found = _told(manifests.problems(rendered, Path(scratch)))
            scanned += tools.checkov(Path(scratch), "kubernetes")
    checkov_failed = _told(scanned)
    dashboards_ok = _dashboards()
    report = {
        "bicep_errors": bicep_errors,
        "checkov_failed": checkov_failed,
        "policy_failed": policy_failed,
        "compose_ok": not compose_found,
        "k8s_ok": not k8s_found,
        "dashboards_ok": dashboards_ok,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    failed = bicep_errors or checkov_failed or policy_failed or compose_found or k8s_found
    return 1 if failed or dashboards_ok is False else 0


def _dashboards() -> bool | None:
    telemetry = [ROOT / "worker/telemetry.py"]
    measured = dashboards.metrics_of(telemetry)
    asked = _told(queries.problems(INFRA / "queries", ROOT / "cosmos_outbox/instrumentation.py", measured))
    drawn = dashboards.problems(INFRA / "observability", telemetry)
    if drawn is None:
        sys.stdout.write("NOT VERIFIED: there is no dashboard and no alert rule yet\n")
        return None if not asked else False
    ruled = tools.promtool(INFRA / "observability")
    if ruled is None:
        sys.stdout.write(
            "NOT VERIFIED: alert rules were parsed but not tested; promtool (Debian: prometheus) is missing\n"
        )
    return not (asked + _told(drawn) + _told(ruled or []))


def _told(findings: list[str]) -> int:
    for finding in findings:
        sys.stdout.write(f"{finding}\n")
    return len(findings)


if __name__ == "__main__":
    sys.exit(main())
