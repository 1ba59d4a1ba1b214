"""Reads and writes the XML of HTTP management: durations and times, entries and feeds of Atom, and errors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from copy import deepcopy
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
SCHEMA = "http://www.w3.org/2001/XMLSchema"
TYPE = f"{{{INSTANCE}}}type"
# This is .NET's TimeSpan.MaxValue, which Service Bus uses for a time without end.
FOR_EVER = "P10675199DT2H48M5.4775807S"
_FOR_EVER_S = 10_675_199 * 86400
_DURATION = re.compile(r"^P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?$")

for _prefix, _namespace in (("", ATOM), ("sb", CONNECT), ("counts", COUNTS), ("i", INSTANCE)):
    ET.register_namespace(_prefix, _namespace)


def seconds(text: str) -> float | None:
    """
    Return the seconds of an ISO 8601 duration, or None if the duration stands for a time without end.

    Raises:
        ValueError: the text is not a duration of days, hours, minutes and seconds.
    """
    found = _DURATION.match(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as PT30S.")
    days, hours, minutes, rest = (float(part or 0) for part in found.groups())
    total = days * 86400 + hours * 3600 + minutes * 60 + rest
    return None if total >= _FOR_EVER_S else total


def duration(value: float | None) -> str:
    if value is None:
        return FOR_EVER
    days, rest = divmod(value, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    date = f"{days:.0f}D" if days else ""
    time = (f"{hours:.0f}H" if hours else "") + (f"{minutes:.0f}M" if minutes else "")
    time += f"{rest:g}S" if rest or not (date or time) else ""
    return f"P{date}" + (f"T{time}" if time else "")


def timestamp(value: float) -> str:
    return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def child(name: str, text: str, namespace: str = CONNECT) -> ET.Element:
    element = ET.Element(f"{{{namespace}}}{name}")
    element.text = text
    return element


def read_description(body: bytes, kinds: Iterable[str]) -> ET.Element:
    """
    Return the description of an entity from the XML body of a request.

    Raises:
        ValueError: the body is not XML, or has no description of one of these kinds.
    """
    if b"<!" in body:
        raise ValueError("The body must not have a document type or a comment.")
    try:
        root = ET.fromstring(body)  # noqa: S314  # without a document type there are no entities to expand
    except ET.ParseError as error:
        raise ValueError(f"The body is not XML: {error}") from error
    found = next((element for kind in kinds for element in root.iter(f"{{{CONNECT}}}{kind}")), None)
    if found is None:
        raise ValueError(f"The body has no {' or '.join(kinds)}.")
    return found


def local(element: ET.Element) -> str:
    return element.tag.rpartition("}")[2]


def entry(title: str, description: ET.Element, address: str, at: float) -> ET.Element:
    element = ET.Element(f"{{{ATOM}}}entry")
    element.append(child("id", address, ATOM))
    element.append(child("title", title, ATOM))
    for name in ("published", "updated"):
        element.append(child(name, timestamp(at), ATOM))
    ET.SubElement(element, f"{{{ATOM}}}link", {"rel": "self", "href": address})
    ET.SubElement(element, f"{{{ATOM}}}content", {"type": "application/xml"}).append(description)
    return element


def feed(
    title: str, entries: Iterable[ET.Element], address: str, at: float, following: str = ""
) -> ET.Element:
    """Return an Atom feed of these entries. `following` is the address of the next page."""
    element = ET.Element(f"{{{ATOM}}}feed")
    element.append(child("title", title, ATOM))
    element.append(child("id", address, ATOM))
    element.append(child("updated", timestamp(at), ATOM))
    ET.SubElement(element, f"{{{ATOM}}}link", {"rel": "self", "href": address})
    if following:
        ET.SubElement(element, f"{{{ATOM}}}link", {"rel": "next", "href": following})
    element.extend(entries)
    return element


def failure(status: int, detail: str) -> ET.Element:
    element = ET.Element("Error")
    for name, text in (("Code", str(status)), ("Detail", detail)):
        ET.SubElement(element, name).text = text
    return element


def encode(element: ET.Element) -> bytes:
    element = deepcopy(element)  # a rule keeps the XML of its filter, which must not change
    _name_as_net_does(element, "")
    return bytes(ET.tostring(element, encoding="utf-8", xml_declaration=True))


def _name_as_net_does(element: ET.Element, around: str) -> None:
    """
    Make each description declare its own default namespace, and give counts a prefix, as .NET does. This is needed because the
    client for JavaScript reads element names without regard to namespaces.
    """
    namespace = element.tag.rpartition("}")[0].strip("{")
    if namespace == CONNECT:
        element.tag = local(element)
        if namespace != around:
            element.set("xmlns", CONNECT)
    elif namespace == COUNTS:
        element.tag = f"d2p1:{local(element)}"
    for part in element:
        if part.tag.startswith(f"{{{COUNTS}}}"):
            element.set("xmlns:d2p1", COUNTS)
        _name_as_net_does(part, namespace)
