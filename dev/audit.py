"""`make audit`: looks for known vulnerabilities of the packages in requirements-cpu.lock, with pip-audit.

pip-audit asks PyPI. It also succeeds with an index that has no vulnerability data, as most mirrors do. Here that is a
failure: the exit code is 0 only if every package was looked up, 1 if one is vulnerable, 2 if some were not looked up.
"""

import json
import subprocess
import sys
from typing import Any

from dev.lock import LOCK, ROOT

SECONDS = 600


def verdict(output: str, errors: str) -> tuple[int, list[str]]:
    """The exit code and the lines to print for what pip-audit wrote to its two streams."""
    try:
        packages: list[dict[str, Any]] = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        reason = (errors.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return 2, [f"NOT AUDITED: {reason:.300}"]
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    flaws = [
        f"{package['name']} {package['version']}: {flaw['id']}, fixed in "
        f"{', '.join(flaw['fix_versions']) or 'no version yet'}"
        for package in packages
        for flaw in package.get("vulns", [])
    ]
    looked_up = len(packages) - len(skipped)
    lines = [*flaws, f"{looked_up} of {len(packages)} packages looked up, {len(flaws)} known vulnerabilities"]
    if skipped or not packages:
        some = ", ".join(skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        lines.append(
            f"NOT AUDITED: {some or 'nothing'}: the index in reach does not know vulnerabilities; "
            "run `make audit` where https://pypi.org answers itself"
        )
    return (1 if flaws else 2 if skipped or not packages else 0), lines


def main() -> int:
    """Runs pip-audit of this Python and returns the exit status."""
    options = ["--require-hashes", "--disable-pip", "--progress-spinner=off", "--format=json"]
    command = [sys.executable, "-m", "pip_audit", *options, f"--requirement={LOCK}"]
    try:
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        print(f"NOT AUDITED: pip-audit had no answer within {SECONDS} s")
        return 2
    status, lines = verdict(done.stdout, done.stderr)
    print("\n".join(lines))
    return status


if __name__ == "__main__":
    sys.exit(main())
