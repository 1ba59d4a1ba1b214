"""How the runs of the vendors' own tests are judged, and that what they need is pinned."""

from __future__ import annotations

import tarfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from azure.servicebus._pyamqp._decode import _decode_decimal128
from azure.servicebus._pyamqp._encode import encode_decimal128

from tools.vendor_tests import dotnet
from tools.vendor_tests.__main__ import NAMES, SUITES, main, report, status
from tools.vendor_tests.expected import Expected, Kind, Verdict, judge, read_expected
from tools.vendor_tests.running import Outcome, Result
from tools.vendor_tests.source import ROOT, pin, unpack
from tools.vendor_tests.suite import HERE, Edit, Suite

KNOWN = Expected(
    kind=Kind.DOCUMENTED,
    cause="no sprocs",
    errors=("404 NotFound", "405"),
    tests=("test_a.py::*::test_sproc[*]", "test_b.py::*"),
)


def result(test: str, outcome: Outcome, *failures: str) -> Result:
    return Result(test=test, outcome=outcome, why="".join(failures[:1]), failures=failures)


def test_a_failure_without_a_cause_is_wrong_and_an_entry_that_passes_is_mended():
    verdict = judge(
        [
            result("test_a.py::TestA::test_sproc[1]", Outcome.FAILED, "sdk.Error: 404 NotFound", "405"),
            result("test_a.py::TestA::test_read", Outcome.FAILED),
            result("test_b.py::test_query", Outcome.PASSED),
            result("test_b.py::test_later", Outcome.SKIPPED),
        ],
        [KNOWN],
    )

    assert ["test_a.py::TestA::test_read"] == [wrong.test for wrong in verdict.wrong]
    assert {Kind.DOCUMENTED: 1} == verdict.accepted
    assert ["test_b.py::*"] == verdict.mended

    assert (1, 1) == (verdict.passed, verdict.skipped)


def test_an_entry_that_fails_sometimes_is_never_mended():
    luck = replace(KNOWN, sometimes=True)
    verdict = judge([result("test_b.py::test_query", Outcome.PASSED)], [luck])

    assert ([], 1) == (verdict.mended, verdict.passed)


def test_a_known_failure_that_fails_in_another_way_is_wrong():
    verdict = judge(
        [
            result("test_a.py::TestA::test_sproc[1]", Outcome.FAILED, "sdk.Error: 500 InternalServerError"),
            result("test_a.py::TestA::test_sproc[2]", Outcome.FAILED, "404 NotFound", "teardown: 500"),
        ],
        [KNOWN],
    )

    assert ["fails otherwise than by 'no sprocs': sdk.Error: 500 InternalServerError"] == [
        wrong.why for wrong in verdict.wrong[:1]
    ]
    assert (2, {}) == (len(verdict.wrong), verdict.accepted)


def test_a_release_without_the_line_to_edit_is_refused(tmp_path: Path):
    (tmp_path / "sdk-1/tests").mkdir(parents=True)
    (tmp_path / "sdk-1/tests/test_config.py").write_text("host = 'azure'\n")
    archive = tmp_path / "sdk.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "sdk-1", "sdk-1")
    edits = (Edit(file="test_config.py", old="local_host", new="host"),)
    suite = Suite(name="none", distribution="sdk", environment=lambda addresses: {}, edits=edits)

    with pytest.raises(ValueError, match="sdk has no 'local_host'"):
        unpack(suite, archive, tmp_path / "work")


@pytest.mark.parametrize("name", SUITES)
def test_the_tests_run_on_the_sdk_that_everything_else_is_tested_with(name: str):
    requirement = pin(SUITES[name].distribution)

    assert requirement in (ROOT / "requirements/vendor.txt").read_text(encoding="utf-8")
    assert "--hash=sha256:" in requirement


def test_the_sdk_does_not_read_a_decimal_that_it_wrote_by_the_standard():
    """What tools/vendor_tests/servicebus.toml says of `test_message_property`: no service is needed to fail it."""
    written = bytearray()
    encode_decimal128(written, Decimal("1.2345"), with_constructor=False)

    assert ((6176 - 4) << 113 | 12345).to_bytes(16, "big") == written
    with pytest.raises(ValueError, match="Invalid AMQP decimal128"):
        _decode_decimal128(memoryview(written))


TRX = """<TestRun xmlns="http://microsoft.com/schemas/VisualStudio/TeamTest/2010"><Results>
<UnitTestResult testId="1" testName="Reads (True)" outcome="Failed"><Output><ErrorInfo>
<Message>400: no sprocs</Message><StackTrace>at Reads</StackTrace></ErrorInfo></Output></UnitTestResult>
<UnitTestResult testId="1" testName="Case with a name." outcome="Passed"/>
<UnitTestResult testId="1" testName="Reads (False)" outcome="NotExecuted"/>
</Results><TestDefinitions><UnitTest id="1"><TestMethod className="Cosmos.ItemTests" name="Reads"/></UnitTest></TestDefinitions></TestRun>"""


def test_a_report_of_dotnet_names_each_case_of_a_test(tmp_path: Path):
    (tmp_path / "a.trx").write_text(TRX)

    failed, passed, skipped = dotnet.read_report(tmp_path / "a.trx")

    assert ("ItemTests::Reads (True)", Outcome.FAILED) == (failed.test, failed.outcome)
    assert "no sprocs" in failed.failures[0]
    assert ("ItemTests::Reads Case with a name.", Outcome.PASSED) == (passed.test, passed.outcome)
    assert ("ItemTests::Reads (False)", Outcome.SKIPPED) == (skipped.test, skipped.outcome)


def test_where_dotnet_or_its_tests_are_missing_one_line_says_so(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (0, "dotnet is not in PATH") == (
        main(["dotnet", "--folder", str(tmp_path / "w")]),
        dotnet.missing(),
    )
    assert "dotnet: NOT RUN, dotnet is not in PATH" in capsys.readouterr().out

    (tmp_path / "dotnet").touch(mode=0o755)
    monkeypatch.delenv(dotnet.FOLDER, raising=False)
    assert "names no folder" in str(dotnet.missing())
    monkeypatch.setenv(dotnet.FOLDER, str(tmp_path))
    assert "has no Microsoft.Azure.Cosmos.EmulatorTests.dll" in str(dotnet.missing())


def test_a_new_failure_and_an_entry_that_is_mended_fail_the_run():
    new = Verdict(wrong=[result("test_a.py::test_read", Outcome.FAILED)])
    verdicts = (new, Verdict(mended=["test_b.py::*"]), Verdict(passed=1, skipped=1))

    assert [1, 1, 0] == [status(report("none", verdict)) for verdict in verdicts]


@pytest.mark.parametrize("name", NAMES)
def test_the_list_of_a_suite_can_be_read(name: str):
    assert read_expected(HERE / f"{name}.toml")
