import subprocess
import sys


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "server", "bench", *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )


def test_help_names_every_option() -> None:
    said = bench("--help")
    assert said.returncode == 0
    for option in ("--json", "--quick", "--check", "--seed"):
        assert option in said.stdout


def test_a_wrong_seed_is_a_wrong_command_line() -> None:
    said = bench("--seed", "-1")
    assert said.returncode == 2
    assert "--seed" in said.stderr
