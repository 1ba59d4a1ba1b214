"""
`make verify`: start the emulators, and run `cosmos-outbox verify` on them with the arguments of this program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SEED = {
    "databases": [
        {
            "id": "verify",
            "containers": [
                {"id": "data", "defaultTtl": -1, "ranges": 2},
                {"id": "leases", "partitionKey": "/id", "defaultTtl": -1},
                {"id": "parked", "defaultTtl": -1},
            ],
        }
    ]
}
TOPIC = {
    "name": "verify",
    "dedup_window_s": 600,
    "subscriptions": [
        {"name": "verify", "requires_session": True, "lock_s": 10},
        {"name": "verify-plain", "lock_s": 10},
    ],
}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        seed, config = Path(folder, "seed.json"), Path(folder, "config.json")
        seed.write_text(json.dumps(SEED))
        config.write_text(json.dumps({"topics": [TOPIC]}))
        python = [sys.executable, "-m"]
        files = ["--seed", str(seed), "--config", str(config), "--json", "--control-port", "0"]
        with subprocess.Popen(  # noqa: S603 - our own command
            [*python, "cosmos_outbox_emulators", *files], stdout=subprocess.PIPE, text=True
        ) as emulators:
            try:
                assert emulators.stdout is not None
                urls = json.loads(emulators.stdout.readline())
                named = {
                    "EMULATORS_CONTROL": urls["control"],
                    "OUTBOX_COSMOS_CONNECTION_STRING": urls["cosmos"],
                    "OUTBOX_COSMOS_DATABASE": "verify",
                    "OUTBOX_COSMOS_CONTAINER": "data",
                    "OUTBOX_LEASE_CONTAINER": "leases",
                    "OUTBOX_PARKED_CONTAINER": "parked",
                    "OUTBOX_SERVICEBUS_CONNECTION_STRING": urls["servicebus"],
                    "OUTBOX_TOPIC": "verify",
                }
                clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
                given = [*python, "cosmos_outbox_worker", "verify", "--output", folder, *sys.argv[1:]]
                code = subprocess.run(given, env=clean | named, check=False).returncode  # noqa: S603 - as above
                page = Path(folder, "verify.md")
                if code and page.exists():
                    sys.stderr.write(page.read_text())
                return code
            finally:
                emulators.terminate()


if __name__ == "__main__":
    sys.exit(main())
