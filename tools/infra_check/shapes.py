"""
What Azure Resource Manager accepts, read out of the azure-mgmt SDKs: their models name every property, type and enum.

Two generations of SDKs exist: models of typed fields, and older ones with an attribute map of dotted paths. Both become
the same Shape, made when it is asked for, because the models refer to each other in circles.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache

_MODELS = {
    "Microsoft.App/containerApps": ("appcontainers", "ContainerApp"),
    "Microsoft.App/jobs": ("appcontainers", "Job"),
    "Microsoft.App/managedEnvironments": ("appcontainers", "ManagedEnvironment"),
    "Microsoft.Authorization/roleAssignments": ("authorization", "RoleAssignmentCreateParameters"),
    "Microsoft.ContainerRegistry/registries": ("containerregistry", "Registry"),
    "Microsoft.DocumentDB/databaseAccounts": ("cosmosdb", "DatabaseAccountCreateUpdateParameters"),
    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases": ("cosmosdb", "SqlDatabaseCreateUpdateParameters"),
    "Microsoft.DocumentDB/databaseAccounts/sqlDatabases/containers": (
        "cosmosdb",
        "SqlContainerCreateUpdateParameters",
    ),
    "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments": (
        "cosmosdb",
        "SqlRoleAssignmentCreateUpdateParameters",
    ),
    "Microsoft.DocumentDB/databaseAccounts/sqlRoleDefinitions": (
        "cosmosdb",
        "SqlRoleDefinitionCreateUpdateParameters",
    ),
    "Microsoft.Insights/actionGroups": ("monitor", "ActionGroupResource"),
    "Microsoft.Insights/components": ("applicationinsights", "ApplicationInsightsComponent"),
    "Microsoft.Insights/metricAlerts": ("monitor", "MetricAlertResource"),
    "Microsoft.Insights/scheduledQueryRules": ("monitor", "ScheduledQueryRuleResource"),
    "Microsoft.ManagedIdentity/userAssignedIdentities": ("msi", "Identity"),
    "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials": (
        "msi",
        "FederatedIdentityCredential",
    ),
    "Microsoft.Network/networkSecurityGroups": ("network", "NetworkSecurityGroup"),
    "Microsoft.Network/privateDnsZones": ("privatedns", "PrivateZone"),
    "Microsoft.Network/privateDnsZones/virtualNetworkLinks": ("privatedns", "VirtualNetworkLink"),
    "Microsoft.Network/privateEndpoints": ("network", "PrivateEndpoint"),
    "Microsoft.Network/privateEndpoints/privateDnsZoneGroups": ("network", "PrivateDnsZoneGroup"),
    "Microsoft.Network/virtualNetworks": ("network", "VirtualNetwork"),
    "Microsoft.OperationalInsights/workspaces": ("loganalytics", "Workspace"),
    "Microsoft.Resources/resourceGroups": ("resource.resources", "ResourceGroup"),
    "Microsoft.ServiceBus/namespaces": ("servicebus", "SBNamespace"),
    "Microsoft.ServiceBus/namespaces/topics": ("servicebus", "SBTopic"),
    "Microsoft.ServiceBus/namespaces/topics/subscriptions": ("servicebus", "SBSubscription"),
}


class Kind(enum.StrEnum):
    """
    What a value may be.
    """

    ANY = "anything"
    TEXT = "a string"
    NUMBER = "a number"
    BOOLEAN = "true or false"
    LIST = "a list"
    MAP = "a map"
    OBJECT = "an object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """
    A type: the choices of an enum, the items of a list or map, the members of an object.
    """

    kind: Kind
    choices: frozenset[str] = frozenset()
    item: Shape | None = None
    members: Callable[[], Mapping[str, Member]] = dict
    # The discriminating property and the shape for each of its values, where the object is one of several.
    variants: Callable[[], Mapping[str, Shape]] = dict


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """
    A property of an object.
    """

    shape: Shape
    read_only: bool = False
    required: bool = False


ANY = Shape(kind=Kind.ANY)
TEXT = Shape(kind=Kind.TEXT)
BOOLEAN = Shape(kind=Kind.BOOLEAN)


def shape_of(resource_type: str) -> Shape | None:
    """
    Return the shape of a resource's body; None for a type that no SDK in use here knows.
    """
    if resource_type == "Microsoft.Insights/diagnosticSettings":
        return _diagnostic_settings()
    if resource_type not in _MODELS:
        return None
    package, name = _MODELS[resource_type]
    return _of_class(getattr(importlib.import_module(f"azure.mgmt.{package}.models"), name))


def _diagnostic_settings() -> Shape:
    # No current SDK has this model; the properties are those of its published reference.
    category = {"category": TEXT, "categoryGroup": TEXT, "enabled": BOOLEAN}
    texts = ("workspaceId", "storageAccountId", "eventHubName", "logAnalyticsDestinationType")
    listed = Shape(kind=Kind.LIST, item=_object({name: Member(shape=s) for name, s in category.items()}))
    inner = {"logs": Member(shape=listed), "metrics": Member(shape=listed)}
    inner |= {name: Member(shape=TEXT) for name in texts}
    return _object({"properties": Member(shape=_object(inner), required=True)})


def _object(members: Mapping[str, Member]) -> Shape:
    return Shape(kind=Kind.OBJECT, members=lambda: members)


@cache
def _of_class(model: typing.Any) -> Shape:
    if getattr(model, "_attribute_map", None):
        return Shape(
            kind=Kind.OBJECT, members=lambda: _old_members(model), variants=lambda: _old_variants(model)
        )
    return Shape(kind=Kind.OBJECT, members=lambda: _members(model), variants=lambda: _variants(model))


# --- models of typed fields


def _members(model: type) -> Mapping[str, Member]:
    found: dict[str, Member] = {}
    for owner in model.__mro__:
        scope = dict(vars(sys.modules[owner.__module__])) if owner.__module__ in sys.modules else {}
        if "models" in owner.__module__:
            scope["_models"] = importlib.import_module(owner.__module__.rsplit(".", 1)[0])
        hints = inspect.get_annotations(owner)
        for attribute, value in owner.__dict__.items():
            if type(value).__name__ == "_RestField":
                name = value._rest_name_input or attribute  # noqa: SLF001 # the only place that tells the wire name
                read_only = value._visibility == ["read"]  # noqa: SLF001 # and this the only one for read-only
                found.setdefault(
                    name, Member(shape=_of_hint(hints.get(attribute), scope), read_only=read_only)
                )
    return found


def _variants(model: type) -> Mapping[str, Shape]:
    return {str(value): _of_class(sub) for value, sub in getattr(model, "__mapping__", {}).items()}


def _of_hint(hint: object, scope: dict[str, object]) -> Shape:  # noqa: C901, PLR0911 # one line for each kind of hint
    if isinstance(hint, typing.ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        try:
            return _of_hint(eval(hint, scope), scope)  # noqa: S307 # an annotation of an installed SDK
        except (NameError, AttributeError, TypeError):
            return ANY
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        shapes = [_of_hint(a, scope) for a in arguments if a is not type(None)]
        return next((shape for shape in shapes if shape.choices), shapes[0] if shapes else ANY)
    if origin is typing.Literal:
        return Shape(kind=Kind.TEXT, choices=frozenset(_wire(a) for a in arguments))
    if origin is list:
        return Shape(kind=Kind.LIST, item=_of_hint(arguments[0], scope))
    if origin is dict:
        return Shape(kind=Kind.MAP, item=_of_hint(arguments[1], scope))
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return Shape(kind=Kind.TEXT, choices=frozenset(_wire(choice) for choice in hint))
        if hasattr(hint, "_deserialize") or hasattr(hint, "_attribute_map"):
            return _of_class(typing.cast("typing.Any", hint))
        return _SCALARS.get(hint.__name__, ANY)
    return ANY


def _wire(choice: object) -> str:
    return str(choice.value if isinstance(choice, enum.Enum) else choice)


# --- models with an attribute map

_SCALARS = {
    "str": TEXT,
    "bool": BOOLEAN,
    "int": Shape(kind=Kind.NUMBER),
    "long": Shape(kind=Kind.NUMBER),
    "float": Shape(kind=Kind.NUMBER),
    "duration": TEXT,
    "timedelta": TEXT,
    "iso-8601": TEXT,
    "datetime": TEXT,
}


@dataclass(slots=True)
class _Branch:
    """
    A node of the tree that dotted paths such as `properties.scopes` make.
    """

    member: Member | None = None
    below: dict[str, _Branch] = field(default_factory=dict)

    def to_member(self) -> Member:
        if self.member is not None:
            return self.member
        members = {name: branch.to_member() for name, branch in self.below.items()}
        return Member(shape=_object(members), required=any(m.required for m in members.values()))


def _old_members(model: typing.Any) -> Mapping[str, Member]:
    root = _Branch()
    for attribute, described in model._attribute_map.items():  # noqa: SLF001 # the only description there is
        rules = model._validation.get(attribute, {})  # noqa: SLF001 # the same
        branch = root
        for part in re.split(r"(?<!\\)\.", described["key"]):
            branch = branch.below.setdefault(part.replace("\\.", "."), _Branch())
        branch.member = Member(
            shape=_of_old_type(described["type"], model),
            read_only=bool(rules.get("readonly")),
            required=bool(rules.get("required")),
        )
    return {name: branch.to_member() for name, branch in root.below.items()}


def _old_variants(model: typing.Any) -> Mapping[str, Shape]:
    module = importlib.import_module(model.__module__.rsplit(".", 1)[0])
    by_value: dict[str, str] = next(iter(getattr(model, "_subtype_map", {}).values()), {})
    return {value: _of_class(getattr(module, name)) for value, name in by_value.items()}


def _of_old_type(text: str, model: type) -> Shape:
    if text.startswith("["):
        return Shape(kind=Kind.LIST, item=_of_old_type(text[1:-1], model))
    if text.startswith("{"):
        return Shape(kind=Kind.MAP, item=_of_old_type(text[1:-1], model))
    if text in _SCALARS:
        return _SCALARS[text]
    module = importlib.import_module(model.__module__.rsplit(".", 1)[0])
    found = getattr(module, text, None)
    return _of_hint(found, {}) if found is not None else ANY
