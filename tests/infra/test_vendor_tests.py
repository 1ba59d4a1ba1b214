"""
Tests of the program that runs the SDKs' own tests on the emulators, and compares the failures with lists of known
failures.
"""

from __future__ import annotations

import re
import tarfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from azure.servicebus._pyamqp._decode import _decode_decimal128
from azure.servicebus._pyamqp._encode import encode_decimal128

from tools.vendor_tests import dotnet
from tools.vendor_tests.__main__ import NAMES, SUITES, main, report, status
from tools.vendor_tests.expected import Expected, Failure, Kind, Verdict, contains, judge, read_expected
from tools.vendor_tests.running import Outcome, Result
from tools.vendor_tests.source import ROOT, pin, unpack
from tools.vendor_tests.suite import HERE, Edit, Suite

KNOWN = Expected(
    kind=Kind.DOCUMENTED,
    cause="no sprocs",
    failures=(
        Failure(says="404 NotFound", tests=("test_a.py::*::test_sproc[*]", "test_b.py::*")),
        Failure(says="405", tests=("test_a.py::*::test_sproc[*]",)),
    ),
)


def result(test: str, outcome: Outcome, *failures: str) -> Result:
    return Result(test=test, outcome=outcome, why="".join(failures[:1]), failures=failures)


def test_a_failed_sdk_test_counts_as_wrong_if_it_is_not_listed_as_known():
    """A failure without an entry in the list of known failures is wrong, and an entry without a failure is stale."""
    results = [
        result("test_a.py::TestA::test_sproc[1]", Outcome.FAILED, "sdk.Error: 404 NotFound", "405"),
        result("test_a.py::TestA::test_read", Outcome.FAILED),
        result("test_b.py::test_query", Outcome.PASSED),
        result("test_b.py::test_later", Outcome.SKIPPED),
    ]
    verdict = judge(results, [KNOWN], whole=True)

    assert ["test_a.py::TestA::test_read"] == [wrong.test for wrong in verdict.wrong]
    assert {Kind.DOCUMENTED: 1} == verdict.accepted
    assert ["test_b.py::*: 404 NotFound"] == verdict.stale == judge(results, [KNOWN], whole=False).stale
    assert (1, 1) == (verdict.passed, verdict.skipped)


def test_a_known_failure_can_be_stale_only_after_a_run_of_the_whole_suite():
    """After a run of a part of the suite, an unused entry of the list may belong to a test that did not run."""
    results = [result("test_a.py::TestA::test_sproc[1]", Outcome.FAILED, "404 NotFound")]
    unused = ["test_b.py::*: 404 NotFound", "test_a.py::*::test_sproc[*]: 405"]

    assert unused == judge(results, [KNOWN], whole=True).stale
    assert [] == judge(results, [KNOWN], whole=False).stale


def test_a_known_failure_that_is_only_occasional_is_never_stale():
    verdict = judge(
        [result("test_b.py::test_query", Outcome.PASSED)], [replace(KNOWN, sometimes=True)], whole=True
    )

    assert ([], 1) == (verdict.stale, verdict.passed)


def test_a_known_failure_is_not_stale_if_its_test_failed_for_another_cause():
    luck = replace(
        KNOWN, sometimes=True, failures=(Failure(says="timed out", tests=("test_b.py::test_query",)),)
    )
    verdict = judge([result("test_b.py::test_query", Outcome.FAILED, "timed out")], [KNOWN, luck], whole=True)

    assert not any(stale.startswith("test_b.py") for stale in verdict.stale)


def test_a_known_failure_with_an_unlisted_message_is_reported():
    """
    The list of known failures names the message with which each test may fail. Another message is reported, even if another test of
    the list may fail with it.
    """
    failed = {
        "test_a.py::TestA::test_sproc[1]": ("sdk.Error: 500 InternalServerError",),
        "test_a.py::TestA::test_sproc[2]": ("404 NotFound", "teardown: 500"),
        "test_b.py::test_query": ("405",),
    }
    verdict = judge(
        [result(test, Outcome.FAILED, *said) for test, said in failed.items()], [KNOWN], whole=False
    )

    assert "fails otherwise than by 'no sprocs': sdk.Error: 500 InternalServerError" == verdict.wrong[0].why
    assert ([*failed], {}) == ([wrong.test for wrong in verdict.wrong], verdict.accepted)


def test_an_ellipsis_in_the_message_of_a_known_failure_matches_any_text():
    said = "Assert.IsTrue failed.\n   at Deep()\n   at Cosmos.ItemTests.Reads()"

    assert contains(said, "Assert.IsTrue failed.…ItemTests.Reads(")
    assert not contains(said, "ItemTests.Reads(…Assert.IsTrue failed.")
    assert not contains(said, "Assert.Is…True passed")


def test_an_sdk_release_that_lacks_a_line_which_the_run_edits_is_refused(tmp_path: Path):
    (tmp_path / "sdk-1/tests").mkdir(parents=True)
    (tmp_path / "sdk-1/tests/test_config.py").write_text("host = 'azure'\n")
    archive = tmp_path / "sdk.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "sdk-1", "sdk-1")
    edits = (Edit(file="test_config.py", old="local_host", new="host"),)
    suite = Suite(name="none", distribution="sdk", environment=lambda addresses: {}, edits=edits)

    with pytest.raises(ValueError, match="of sdk: it has no 'local_host'"):
        unpack(suite, archive, tmp_path / "work")


@pytest.mark.parametrize("name", SUITES)
def test_the_vendor_tests_run_on_the_pinned_version_of_the_sdk(name: str):
    requirement = pin(SUITES[name].distribution)

    assert requirement in (ROOT / "requirements/vendor.txt").read_text(encoding="utf-8")
    assert "--hash=sha256:" in requirement


def test_the_sdk_cannot_read_a_decimal128_that_it_wrote():
    """`test_message_property` in tools/vendor_tests/servicebus.toml therefore fails on any service."""
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


def test_a_report_of_dotnet_tests_gives_a_result_for_each_case(tmp_path: Path):
    (tmp_path / "a.trx").write_text(TRX)

    failed, passed, skipped = dotnet.read_report(tmp_path / "a.trx")

    assert ("ItemTests::Reads (True)", Outcome.FAILED) == (failed.test, failed.outcome)
    assert "no sprocs" in failed.failures[0]
    assert ("ItemTests::Reads Case with a name.", Outcome.PASSED) == (passed.test, passed.outcome)
    assert ("ItemTests::Reads (False)", Outcome.SKIPPED) == (skipped.test, skipped.outcome)


def test_one_line_says_that_dotnet_or_its_tests_are_missing(tmp_path: Path, monkeypatch, capsys):
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


def test_a_new_failure_or_a_stale_known_failure_fails_the_run():
    new = Verdict(wrong=[result("test_a.py::test_read", Outcome.FAILED)])
    verdicts = (new, Verdict(stale=["test_b.py::*: 404 NotFound"]), Verdict(passed=1, skipped=1))

    assert [1, 1, 0] == [status(report("none", verdict)) for verdict in verdicts]


def test_the_recorded_results_of_a_run_can_be_judged_again(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    logs = tmp_path / "dotnet-logs"
    logs.mkdir()
    for name in ("ItemTests", "Died"):
        (logs / f"{name}.log").touch()
    (logs / "emulators.log").touch()
    (logs / "ItemTests.trx").write_text(TRX)

    assert 1 == main(["dotnet", "--recorded", "--folder", str(tmp_path)])
    said = capsys.readouterr().out
    assert "ItemTests: 1 passed, 1 failed, 1 skipped" in said
    assert "wrong: ItemTests::Reads (True)\n       400: no sprocs" in said
    assert "wrong: Died::process" in said
    says, pattern = next(read_expected(HERE / "dotnet.toml")[0].pairs())
    assert f"stale: no such failure any more, remove it from dotnet.toml: {pattern}: {says}" in said


README = " ".join((ROOT / "emulators/README.md").read_text(encoding="utf-8").split())
# Parts of messages that say nothing about a failure, because many failures have them.
_SAID_BY_ANY = re.compile(
    r"(Assert\.\w+ failed\.?|Expected:<.*>|Actual:<.*>|[\w.]*Exception:?|timed out after|DID NOT RAISE|not raised|\W)*"
)


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_of_the_emulators_quotes_the_cause_of_each_documented_failure(name: str):
    listed = read_expected(HERE / f"{name}.toml")

    assert [] == [one.cause for one in listed if one.kind is Kind.DOCUMENTED and one.readme not in README]


def test_known_failures_of_dotnet_name_a_class_and_a_specific_message():
    pairs = [pair for one in read_expected(HERE / "dotnet.toml") for pair in one.pairs()]

    assert [] == [
        pattern for _, pattern in pairs if "*" in pattern.partition("::")[0] or pattern.endswith("::*")
    ]
    assert [] == [says for says, _ in pairs if len(says) < 20 or _SAID_BY_ANY.fullmatch(says)]


def test_an_incomplete_entry_in_a_list_of_known_failures_is_refused(tmp_path: Path):
    (tmp_path / "list.toml").write_text(
        '[[expected]]\nkind = "documented"\ncause = "none"\nfailures = {"said here" = ["a"]}\n'
    )

    with pytest.raises(ValueError, match="must have cause, failures, kind, readme"):
        read_expected(tmp_path / "list.toml")
