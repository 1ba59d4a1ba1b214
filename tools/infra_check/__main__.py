"""
`python -m tools.infra_check`: every offline check; one line a finding, and one JSON object at the end.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tools.infra_check import (
    azd,
    bicep,
    compose,
    dashboards,
    dockerfile,
    environments,
    manifests,
    policy,
    queries,
    recipes,
    schema,
    tools,
    workflow,
)

ROOT = Path(__file__).parents[2]
INFRA = ROOT / "infra"

Findings = Iterable[str]


def main() -> int:
    """
    Check everything; return 0 only if nothing was found.
    """
    with tempfile.TemporaryDirectory() as scratch:
        rendered = Path(scratch)
        k8s_found = reported(lambda: _manifests(rendered))
        report = {
            "bicep_errors": reported(_bicep),
            "checkov_failed": reported(lambda: _scanned(rendered)),
            "policy_failed": sum(reported(check) for check in _policies()),
            "compose_ok": not reported(_compose),
            "k8s_ok": not k8s_found,
            "dashboards_ok": _dashboards(),
        }
    sys.stdout.write(json.dumps(report) + "\n")
    failed = report["bicep_errors"] or report["checkov_failed"] or report["policy_failed"]
    return 1 if failed or False in (report["compose_ok"], report["k8s_ok"], report["dashboards_ok"]) else 0


def _bicep() -> Findings:
    return schema.problems(bicep.read_templates(INFRA), INFRA / "main.parameters.json")


def _policies() -> Iterator[Callable[[], Findings]]:
    templates = bicep.read_templates(INFRA)
    for rule in policy.POLICIES:
        yield functools.partial(rule, templates)
    yield lambda: azd.problems(templates)
    yield lambda: environments.problems(_everywhere())
    yield lambda: tools.hadolint(INFRA / "docker/Dockerfile")
    yield lambda: tools.hadolint(ROOT / "emulators/Dockerfile")
    yield lambda: dockerfile.problems((INFRA / "docker/Dockerfile").read_text(encoding="utf-8"))
    yield lambda: recipes.problems((ROOT / "docs/how-to/deploy.md").read_text(encoding="utf-8"))
    yield lambda: workflow.problems(ROOT / ".github/workflows")


def _everywhere() -> dict[environments.Place, environments.Environment]:
    return {
        **environments.of_apps(bicep.read_templates(INFRA)),
        **environments.of_pods(manifests.read(manifests.render(INFRA / "kubernetes"))),
        **environments.of_compose(compose.resolve(ROOT)["services"]),
    }


def _scanned(rendered: Path) -> Findings:
    yield from tools.checkov(INFRA, "bicep")
    yield from tools.checkov(INFRA / "docker", "dockerfile")
    yield from tools.checkov(rendered, "kubernetes")


def _compose() -> Findings:
    return compose.problems(ROOT)


def _manifests(scratch: Path) -> Findings:
    yield from manifests.problems(manifests.render(INFRA / "kubernetes"), scratch)
    yield from manifests.wiring(manifests.read(manifests.marked(INFRA / "kubernetes")))


def _dashboards() -> bool | None:
    measured = dashboards.metrics_of(dashboards.SOURCES)
    asked = reported(lambda: queries.problems(INFRA / "queries", ROOT / "cosmos_outbox/records.py", measured))
    drawn = dashboards.problems(INFRA / "observability", dashboards.SOURCES)
    if drawn is None:
        sys.stdout.write("NOT VERIFIED: there is no dashboard and no alert rule yet\n")
        return None if not asked else False
    ruled = tools.promtool(INFRA / "observability")
    if ruled is None:
        sys.stdout.write(
            "NOT VERIFIED: alert rules were parsed but not tested; promtool (Debian: prometheus) is missing\n"
        )
    rules, tests = (INFRA / f"observability/alerts.{kind}" for kind in ("yaml", "test.yaml"))
    untested = dashboards.untested(rules.read_text(encoding="utf-8"), tests.read_text(encoding="utf-8"))
    return not (asked + reported(lambda: [*drawn, *untested, *(ruled or [])]))


def reported(check: Callable[[], Findings]) -> int:
    """
    Print what a check finds; what it cannot go on from is a finding, too, since the JSON has to come whatever there is.
    """
    count = 0
    try:
        for finding in check():
            sys.stdout.write(f"{finding}\n")
            count += 1
    except Exception as error:  # noqa: BLE001 # any mistake in a file ends here
        sys.stdout.write(f"cannot be checked any further: {error!r}\n")
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
