"""
Whether somebody is told of every way in which the platform or the worker says that something is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from infra.check.bicep import Located, Template
from infra.check.search import created

_ALERTED = {
    "DeadletteredMessages",
    "ThrottledRequests",
    "ServerErrors",
    "TotalRequests",
    "NormalizedRUConsumption",
}
# Of the worker itself: each a query in infra/queries.
_ASKED = {
    *("event-rejected", "events-late", "lease-halted", "parked-keys", "ttl-headroom"),
    *("worker-silent", "worker-unready"),
}


def troubles_are_told(templates: Sequence[Template]) -> Iterator[str]:
    """
    There is an alert for each way in which the platform or the worker tells of trouble, and somebody who gets it.
    """
    text = "\n".join(t.source for t in templates if any(t.of_type("Microsoft.Insights/metricAlerts")))
    for metric in sorted(_ALERTED):
        if f"'{metric}'" not in text:
            yield f"no alert on {metric}"
    for name in sorted(_ASKED):
        if f"loadTextContent('../queries/{name}.kql')" not in text:
            yield f"no alert by the query {name}"
    for resource_type in ("Microsoft.Insights/metricAlerts", "Microsoft.Insights/scheduledQueryRules"):
        for template, alert in created(templates, resource_type):
            if (
                "people.id" not in _everything(alert.body)
                or alert.body.at("properties", "enabled") is not True
            ):
                yield f"{template.path.name}:{alert.line}: tells nobody"


def alerts_ask_what_is_there(templates: Sequence[Template]) -> Iterator[str]:
    """
    What the platform logs is in the workspace on Container Apps alone, and what the worker measures everywhere.
    """
    for template in templates:
        rules = template.variables.get("logAlerts")
        for rule in rules.value if rules is not None and isinstance(rules.value, list) else []:
            query = template.path.parent / str(rule.at("query")).partition("'")[2].partition("'")[0]
            if query.is_file() and rule.at("measured") is not ("AppMetrics" in query.read_text("utf-8")):
                yield f"{template.path.name}:{rule.line}: measured must say whether {query.name} asks the metrics"


def _everything(located: Located) -> str:
    value = located.value
    if isinstance(value, dict):
        return " ".join(_everything(item) for item in value.values())
    if isinstance(value, list):
        return " ".join(_everything(item) for item in value)
    return str(value)
