"""
`python -m tools.infra_check.snapshots`: let `bicep` evaluate the template with each file of infra/parameters, and write the results
to infra/snapshots. With `--validate`, compare the results with the committed ones instead.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

INFRA = Path(__file__).parents[2] / "infra"
SNAPSHOTS = INFRA / "snapshots"
HASH = SNAPSHOTS / "sources.sha256"
_DEPLOYED_TO = ("--subscription-id", "00000000-0000-0000-0000-000000000000", "--location", "westeurope")


def sources_hash() -> str:
    """Return one hash of all files from which the snapshots are made."""
    digest = hashlib.sha256()
    for suffix in ("bicep", "bicepparam", "kql"):
        for file in sorted(INFRA.rglob(f"*.{suffix}")):
            digest.update(file.relative_to(INFRA).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def main(*, validate: bool) -> int:
    """Write the snapshots, or with `validate` compare them with the committed ones. Return 1 if `bicep` warns, or if a snapshot differs."""
    if shutil.which("bicep") is None:
        sys.stdout.write("NOT VERIFIED: no `bicep` is in PATH, so the snapshots were not compared\n")
        return 0 if validate else 1
    failed = 0
    # `bicep` writes a snapshot beside the file of parameters, so let it work on a copy of the folder.
    with tempfile.TemporaryDirectory() as scratch:
        copied = shutil.copytree(INFRA, Path(scratch) / "infra")
        for parameters in sorted((copied / "parameters").glob("*.bicepparam")):
            written, kept = parameters.with_suffix(".snapshot.json"), SNAPSHOTS / f"{parameters.stem}.json"
            if validate:
                shutil.copy(kept, written)
            mode = "validate" if validate else "overwrite"
            done = subprocess.run(  # noqa: S603 # on our own files
                ["bicep", "snapshot", str(parameters), *_DEPLOYED_TO, "--mode", mode],  # noqa: S607 # the one in PATH
                capture_output=True,
                text=True,
                check=False,
            )
            said = done.stdout + done.stderr
            if done.returncode or "Warning" in said or "Error" in said:
                sys.stdout.write(f"{parameters.stem}: {said}\n")
                failed = 1
            elif not validate:
                # `bicep` writes the outputs in another order each time, so sort the keys.
                snapshot = json.loads(written.read_text(encoding="utf-8"))
                kept.write_text(json.dumps(snapshot, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if not validate and not failed:
        HASH.write_text(sources_hash() + "\n", encoding="utf-8")
    return failed


if __name__ == "__main__":
    sys.exit(main(validate="--validate" in sys.argv[1:]))
