"""Add up the pytest reports under build/ and print one line, ``N passed, N failed, N skipped``.

What failed is run again alone, into ``again-*.xml``; then the second verdict counts. Exits 1 when a
test failed or when there was none.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def failures(report: Path) -> int:
    """Count failures and errors of one report."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    return sum(int(suite.get("failures", 0)) + int(suite.get("errors", 0)) for suite in suites)


def main() -> None:
    """Count over all reports; each interpreter's run counts for itself."""
    tests = failed = skipped = 0
    for report in sorted(Path("build").glob("test-*.xml")):
        again = report.with_name(report.name.replace("test-", "again-", 1))
        for suite in ET.parse(report).getroot().iter("testsuite"):
            tests += int(suite.get("tests", 0))
            skipped += int(suite.get("skipped", 0))
        failed += failures(again if again.exists() else report)
    passed = tests - failed - skipped
    sys.stdout.write(f"{passed} passed, {failed} failed, {skipped} skipped\n")
    sys.exit(1 if failed or not passed else 0)


main()
