"""Files that a shell script writes: they are what the shell makes of them, or not known."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bfpp.launchers.sources.shell import read_script

BASH = shutil.which("bash")

SCRIPTS = {
    "expanded": 'N=2\ncat <<EOT > made\n{"a" : $N, "b": ["${N}x", $((N + 1))], \'c\': \\$N}\nEOT\n',
    "as it stands": "N=2\ncat > made <<'EOT'\n{\"a\": $N \\ `no`}\nEOT\n",
    "two documents": "cat <<A > made && cat <<B >> made\n1\nA\n2\nB\n",
    "named": "NAME=$PWD/x\nNAME=made\ncat << EOT > ${NAME}\n 1\n\nEOT\n",
    "template": (
        "GBS=64\nsed \"s/GBSIZE/${GBS}/\" template | sed 's#PATH#a/b#g' \\\n"
        "  | sed 's/ZERO/1/' > made\n"
    ),
    "several edits": "sed -e s/GBSIZE/8/ -e 's/ZERO/2/;s/PATH/x/' template > made",
    "echoed": 'echo \'{"a": 1}\' > made\necho "b  c" d >> made',
    "copied": "cat template template > made; cat made > other",
    "by tee": "echo 1 | tee made > /dev/null",
    "in a branch": (
        "if [ 1 = 1 ]; then\ncat <<EOT > made\n1\nEOT\nelse\ncat <<EOT > made\n2\nEOT\nfi"
    ),
    "written again": "echo 1 > made\nN=3\necho $N > made",
}
TEMPLATE = '{"train": GBSIZE,\n "zero": ZERO, "again": ZERO ZERO,\n "path": "PATH PATH"}\n'


@pytest.mark.skipif(BASH is None, reason="compares with bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_files_are_those_of_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("template").write_text(TEMPLATE)
    read = read_script("job.sh", SCRIPTS[name]).files
    assert [path.name for path in tmp_path.iterdir()] == ["template"]
    subprocess.run([BASH or "bash", "-c", SCRIPTS[name]], check=True)
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {**read, "template": TEMPLATE} | {"/dev/null": ""} == written | {"/dev/null": ""}


@pytest.mark.parametrize(
    "script",
    [
        "python make.py > made", "cat nowhere > made", "sed 's/[A-Z]*/1/' template > made",
        "sed -n 's/ZERO/1/' template > made", "echo 1 > made; date > made",
        "if [ -f x ]; then echo 1 > made; fi", "sed 's/ZERO/&1/' template > made",
        "exit\necho 1 > made",
    ],
)  # fmt: skip
def test_what_only_a_run_writes_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("template").write_text(TEMPLATE)
    assert read_script("job.sh", script).files == {}
