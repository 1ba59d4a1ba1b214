"""
Reads the snapshots that `make snapshots` writes: what Microsoft's deployment engine would deploy from infra/main.bicep.

There is one snapshot for each file in infra/parameters.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

INFRA = Path(__file__).parents[3] / "infra"
EVERY = sorted(file.stem for file in (INFRA / "snapshots").glob("*.json"))
COSMOS = "Microsoft.DocumentDB/databaseAccounts"
CONTAINERS = f"{COSMOS}/sqlDatabases/containers"
BUS = "Microsoft.ServiceBus/namespaces"
SUBSCRIPTIONS = f"{BUS}/topics/subscriptions"
REGISTRY = "Microsoft.ContainerRegistry/registries"
INSIGHTS = "Microsoft.Insights/components"
WORKSPACE = "Microsoft.OperationalInsights/workspaces"
APPS = "Microsoft.App/containerApps"
IDENTITIES = "Microsoft.ManagedIdentity/userAssignedIdentities"

Resource = dict[str, Any]


class Deployment:
    """
    The resources and outputs that Microsoft's engine predicts for a deployment.

    The id of a resource begins with its type. A value that only Azure knows is written `[ID.property]`.
    """

    def __init__(self, text: str) -> None:
        (token,) = set(re.findall(r"/cosmos-(\w{13})\b", text))  # this text is part of all generated names
        text = text.replace(token, "token")
        text = re.sub(r"/subscriptions/0[0-]+(/resourceGroups/rg-\w+)?/providers/", "", text)
        self.referenced = set(re.findall(r"reference\('([^']+)'", text))
        found = json.loads(re.sub(r"reference\('([^']+)', '[\w-]+'\)", r"\1", text))
        self.resources: list[Resource] = found["predictedResources"]
        self.outputs: dict[str, Any] = found["outputs"]
        self.diagnostics: list[str] = found["diagnostics"]
        self.ids = {resource["id"] for resource in self.resources}

    def of_type(self, kind: str) -> dict[str, Resource]:
        """Return the resources of a type, each by the last part of its name."""
        return {one["name"].rpartition("/")[2]: one for one in self.resources if one["type"] == kind}

    def apps(self) -> dict[str, Resource]:
        """Return each container app by the name of its service in azure.yaml."""
        return {one["tags"]["azd-service-name"]: one for one in self.of_type(APPS).values()}

    def properties(self, kind: str) -> dict[str, Any]:
        return {name: one["properties"] for name, one in self.of_type(kind).items()}

    def one(self, kind: str) -> Resource:
        (found,) = self.of_type(kind).values()
        return found


@functools.cache
def deployed(name: str) -> Deployment:
    return Deployment((INFRA / f"snapshots/{name}.json").read_text())


def identity(service: str) -> str:
    return f"{IDENTITIES}/id-{service}-token"


def nested(node: object) -> Iterator[tuple[str, Any]]:
    """Yield each key of nested dictionaries with its value, at any depth."""
    if isinstance(node, dict):
        yield from node.items()
    for child in node if isinstance(node, list) else node.values() if isinstance(node, dict) else ():
        yield from nested(child)
