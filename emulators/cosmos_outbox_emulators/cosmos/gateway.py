"""
Turns one request into one reply: finds its route, checks its signature, executes it, and answers every refusal as Azure would.
"""

from __future__ import annotations

import http
import itertools
import logging
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import quote

from cosmos_outbox_emulators.cosmos import batches, documents, feeds, jsontext, resources
from cosmos_outbox_emulators.cosmos.account import Account
from cosmos_outbox_emulators.cosmos.auth import check_item_id, check_signature
from cosmos_outbox_emulators.cosmos.container import Container
from cosmos_outbox_emulators.cosmos.errors import CosmosError, bad_request
from cosmos_outbox_emulators.cosmos.faults import FaultRule
from cosmos_outbox_emulators.cosmos.protocol import (
    Reply,
    Request,
    RequestKind,
    Route,
    check_headers,
    range_of,
    route_of,
)
from cosmos_outbox_emulators.cosmos.regions import refuse_writes_elsewhere
from cosmos_outbox_emulators.cosmos.replies import refusal_headers
from cosmos_outbox_emulators.cosmos.sessions import lsn_of_replicas
from cosmos_outbox_emulators.cosmos.throttling import Throttle, bucket_of, is_low

log = logging.getLogger(__name__)

_RECREATED = 1024
_IN_A_URL = "/:%?&=+,;@!$'()*~"
_ACTIVITY_ID = re.compile(r"[0-9A-Za-z-]{1,64}")


class Gateway:
    """
    Answers requests from the data of an account. It is synchronous, so an operation is always finished before the next request
    begins.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        self.counts: Counter[str] = Counter()
        self._activities = itertools.count(1)
        self._throttles: dict[str, Throttle] = {}  # keyed by the container's resource id

    def throttle(
        self, container: Container, request_units: float, buckets: Mapping[str, float] | None = None
    ) -> None:
        """
        Limit a container to this number of request units a second from now on, and each throughput bucket to its percentage of
        these units. 0 removes the limit.
        """
        self._throttles.pop(container.rid, None)
        if request_units:
            self._throttles[container.rid] = Throttle(request_units, buckets)

    def admit(self, request: Request) -> Route:
        """Check the route and the signature of a request, count the request, and return its route."""
        route = route_of(request)
        check_signature(self.account.keys, request.method, route.segments, request.headers)
        check_headers(request.headers)
        if self.account.strict_ids:
            check_item_id(route.segments)
        self.counts[route.kind] += 1
        return replace(route, segments=self.account.by_name(route.segments))

    def partition_of(self, request: Request, route: Route) -> str | None:
        """
        Return the id of the physical partition that a request addresses, by its range or by a partition key. Return None if it
        addresses none.
        """
        range_id, key = range_of(request.headers), request.headers.get("x-ms-documentdb-partitionkey")
        if range_id is not None or key is None:
            return range_id
        try:
            container = self.account.container(route.segments[1], route.segments[3])
            return container.partition_of(container.key_from_header(key).epk).range_id
        except (CosmosError, IndexError):
            return None  # a wrong request is refused later, when it is executed

    def answer(self, request: Request, route: Route | None = None, fault: FaultRule | None = None) -> Reply:
        """
        Execute a request and return the reply. If `route` is None, check the request with `admit` first. Every error becomes a
        reply, so this method never raises.
        """
        try:
            return self._stamp(request, self._execute(request, route or self.admit(request), fault))
        except CosmosError as error:
            return self.refuse(request, error)
        except (RecursionError, UnicodeError) as error:
            # Nothing was written, because a request is decoded completely before its transaction commits.
            return self.refuse(
                request, bad_request(f"The request is too deeply nested or not UTF-8: {error}.")
            )
        except Exception:
            # This is a defect of the emulator. The client gets an answer with status 500, and the log gets the traceback.
            log.exception("request.failed", extra={"method": request.method, "target": request.target})
            return self.refuse(request, CosmosError(500, "The emulator has a defect; see its log."))

    def refuse(self, request: Request, error: CosmosError) -> Reply:
        body = {"code": _code(error.status), "message": error.message, **error.details}
        headers = {**error.headers, "x-ms-substatus": str(error.substatus), "x-ms-request-charge": "1.00"}
        if error.retry_after_ms is not None:
            headers["x-ms-retry-after-ms"] = str(error.retry_after_ms)
        # The message may quote text of the client that has no UTF-8 form, so characters that cannot be encoded are replaced.
        text = jsontext.encode({k: v.encode(errors="replace").decode() for k, v in body.items()})
        return self._stamp(request, Reply(status=error.status, body=text, headers=headers))

    def _stamp(self, request: Request, reply: Reply) -> Reply:
        activity = request.headers.get("x-ms-activity-id", "")
        if _ACTIVITY_ID.fullmatch(activity) is None:
            activity = f"00000000-0000-0000-0000-{next(self._activities):012x}"
        reply.headers["x-ms-activity-id"] = activity
        reply.headers["content-type"] = "application/json"
        reply.headers["content-location"] = quote(
            request.origin + request.target, safe=_IN_A_URL, errors="replace"
        )
        return reply

    def _execute(self, request: Request, route: Route, fault: FaultRule | None) -> Reply:
        match route.kind:
            case RequestKind.ACCOUNT:
                return resources.account_reply(self.account, request)
            case RequestKind.METADATA:
                if len(route.segments) > 4:
                    return resources.conflicts_reply(self._container(request, route), request, route.segments)
                return resources.metadata_reply(self.account, request, route.segments)
            case _:
                return self._execute_inside(request, route, fault)

    def _execute_inside(self, request: Request, route: Route, fault: FaultRule | None) -> Reply:
        container = self._container(request, route)
        refuse_writes_elsewhere(self.account, request, route.kind)
        now = self.account.clock()
        if route.kind is RequestKind.PKRANGES:
            return resources.ranges_reply(container, request)
        bucket_of(request.headers)
        throttle, range_id = self._throttles.get(container.rid), ""
        if throttle is not None:
            range_id = self.partition_of(request, route) or ""
            try:
                throttle.admit(range_id, len(container.partitions), request.headers, now)
            except CosmosError:
                self.counts["throttled, low priority" if is_low(request.headers) else "throttled"] += 1
                raise
        try:
            reply = self._execute_on(container, request, route, fault, now)
        except CosmosError as error:
            partition = container.find(self.partition_of(request, route))
            # The reply to a refused operation has a session token as well. Only a refusal with a sub-status has no token, such as
            # 404/1002, which says that the replica is behind the session.
            if partition is not None and error.status in (404, 409, 412) and not error.substatus:
                reads = route.kind is RequestKind.READ
                lsn = lsn_of_replicas(container, partition, now) if reads else partition.lsn
                error.headers = refusal_headers(container, partition, lsn)
            raise
        if throttle is not None:
            throttle.charge(range_id, request.headers, float(reply.headers.get("x-ms-request-charge", 0)))
        return reply

    def _execute_on(
        self, container: Container, request: Request, route: Route, fault: FaultRule | None, now: float
    ) -> Reply:
        match route.kind:
            case RequestKind.BATCH:
                return batches.reply(container, request, now, fault)
            case RequestKind.QUERY | RequestKind.CHANGEFEED | RequestKind.READFEED:
                return feeds.REPLIES[route.kind](container, request, now)
            case _:
                item_id = (
                    route.segments[5] if route.segments[4] == "docs" and len(route.segments) > 5 else None
                )
                return documents.item_reply(container, request, route.kind, item_id, now)

    def _container(self, request: Request, route: Route) -> Container:
        container = self.account.container(route.segments[1], route.segments[3])
        intended = request.headers.get("x-ms-cosmos-intended-collection-rid")
        if intended is not None and intended != container.rid:
            raise bad_request("The container was re-created under the same name.", substatus=_RECREATED)
        return container


def _code(status: int) -> str:
    """Return the name that the service has for a status, such as NotFound for 404."""
    known = {one.value: one.phrase.title().replace(" ", "") for one in http.HTTPStatus} | {449: "RetryWith"}
    return known.get(status, str(status))
