"""
What `run` writes for other terminals: a shell that reads it has the settings of the stack, and nothing else of it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from demo.commands import exports

SETTINGS = {
    "OUTBOX_COSMOS_CONNECTION_STRING": "AccountEndpoint=http://127.0.0.1:1/;AccountKey=aw==;",
    "OUTBOX_TOPIC": "it's $HOME and `more`",
}


def test_a_shell_that_reads_the_file_has_the_settings_of_the_stack_alone(tmp_path: Path):
    file = tmp_path / "env"
    file.write_text(exports({**SETTINGS, "PATH": "/nowhere"}), encoding="utf-8")
    shown = subprocess.run(  # noqa: S603 - fixed commands
        ["/bin/sh", "-c", '. "$1"; /usr/bin/env', "sh", str(file)],
        env={"PATH": "/bin"},
        text=True,
        capture_output=True,
        check=True,
    )
    found = dict(line.split("=", 1) for line in shown.stdout.splitlines())
    assert SETTINGS == {name: text for name, text in found.items() if name.startswith("OUTBOX_")}
    assert "/bin" == found["PATH"]
