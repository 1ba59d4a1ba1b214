"""The command `cosmos-outbox doctor`: check the Azure resources of an outbox, and say what to change. `doctor/` has the checks."""

from __future__ import annotations

import logging
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from cosmos_outbox.errors import AccessDenied, StoreUnavailable
from cosmos_outbox_worker.cli import running
from cosmos_outbox_worker.cli.output import answer, table_of
from cosmos_outbox_worker.cli.parked_key_owner import OfConsumer
from cosmos_outbox_worker.cli.running import AsJson, Expiration
from cosmos_outbox_worker.doctor.check import Findings, Severity
from cosmos_outbox_worker.doctor.programs import check_application, check_consumer, check_worker, no_access
from cosmos_outbox_worker.exit_codes import WORST_FIRST, ExitCode
from cosmos_outbox_worker.logs import names_no_leak

_EXIT_CODES = {
    Severity.ERROR: ExitCode.WRONG,
    Severity.UNKNOWN: ExitCode.UNANSWERED,
    Severity.WARNING: ExitCode.WARNED,
    Severity.NOTE: ExitCode.DONE,
    "processor-name": ExitCode.NO_MATCH,
}


@running.command_each
async def doctor(
    *,
    api: Annotated[
        bool, typer.Option("--api", help="Check what an application needs to commit; run as its identity.")
    ] = False,
    consumer: OfConsumer = None,
    expiration: Expiration = 60,
    as_json: AsJson = False,
) -> None:
    """
    Compare the live resources with what the outbox needs. Exit code 0: nothing or only notes, 1: warnings, 4: errors, 5: only
    the processor's name is wrong, 3: a service did not answer.

    Tries with the current identity what a worker does: creates a document in the lease container and in the container of parked
    keys, and deletes it. With --api, tries only what an application does with the data container. With --consumer, checks a
    consumer's container, subscription or queue, and parked keys, without receiving a message. If the account refuses this program
    (an error) or does not answer (unknown), nothing else is checked.
    """
    # Switch off the logs of the SDKs: they log each failed operation, and the findings of this command report the same failures.
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    logging.getLogger("asyncio").addFilter(names_no_leak)
    found = Findings()
    try:
        if consumer is not None:
            async with running.open_consumer(consumer) as (outbox, settings, checked):
                await check_consumer(outbox, found, settings, checked)
        else:
            async with running.connect() as outbox:
                if api:
                    await check_application(outbox, found)
                else:
                    await check_worker(outbox, found, expiration=timedelta(seconds=expiration))
    except (AccessDenied, StoreUnavailable) as error:
        found = Findings(no_access(error))
    findings = found.worst_first()
    rows = [asdict(finding) for finding in findings]
    counts = {severity.value: sum(one.severity is severity for one in findings) for severity in Severity}
    answer(
        {"counts": counts, "findings": rows}, table_of(rows, empty="There are no findings."), as_json=as_json
    )
    codes = [_EXIT_CODES.get(one.check) or _EXIT_CODES[one.severity] for one in findings]
    raise typer.Exit(min(codes, key=WORST_FIRST.index, default=ExitCode.DONE))
