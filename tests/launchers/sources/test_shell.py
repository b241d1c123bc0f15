"""Shell scripts: the words of a command are those that the shell would start it with."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bfpp.launchers.sources.shell import read_script
from bfpp.launchers.sources.shell_arithmetic import OPERATORS, calculated
from bfpp.launchers.sources.shell_parts import Command
from bfpp.launchers.sources.shell_words import expand, tokens
from bfpp.schedules import InvalidConfiguration, InvalidInput

BASH = shutil.which("bash")

PRINTS = "import json, sys; print(json.dumps(sys.argv[1:]))"
SHOWS = f'show() {{ {sys.executable} -S -c "{PRINTS}" "$@"; }}'


def shown(script: str) -> list[list[str]]:
    """The words that a shell calls `show` with."""
    ran = subprocess.run(
        [BASH or "bash", "-c", f"{SHOWS}\n{script}"], capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


def read(script: str) -> list[list[str]]:
    commands = read_script("job.sh", script).commands
    return [list(each.words[1:]) for each in commands if each.words[0] == "show"]


SCRIPTS = {
    "variables": 'A=1\nB="two words"\nshow $A ${B} "$B" \'$B\' pre$A-"$B"post',
    "defaults": 'A=5\nshow ${A:-6} ${NONE:-7} ${NONE:-"a b"} "${NONE:-a b}" ${NONE-$A}',
    "arrays": 'A=(--x 1\n  --y "two words" # why\n  --z)\nshow ${A[@]}\nshow "${A[@]}" end',
    "in one word": 'A=(1 "2 3")\nshow "x ${A[*]}"',
    "appended": 'A=(1)\nA+=(2 "3 4")\nB=ab\nB+=cd\nshow "${A[@]}" $B',
    "continued": "show --a 1 \\\n  --b 2 \\\n  --c",
    "comments that do not continue": (
        "A=(--a 1 # --b 2 \\\n  --c 3)\n# A=4 \\\nB=5\nshow ${A[@]} $B \\\n  --d"
    ),
    "continued within": "A=\"--a \\\n --b 1\\\n2\"\nshow $A x\\\ny 'a\\\nb' \\\n  z\\\n  end",
    "arithmetic": "N=4\nM=$((N * 2 + 1))\nshow $M $((M / 2 - -1)) $(($N*(2+3)%7))",
    "conditions": (
        'K=fp8\nif [ "$K" = "fp8" ]; then\n  show one\nelif [ -n "$K" ]; then\n  show two\n'
        'else\n  show three\nfi\n'
        'if [[ $K == bf16 ]] || [ 3 -gt 4 ]; then show no; else show yes; fi'
    ),
    "nested": (
        "A=\nif [ -z \"$A\" ]; then\n if [ 1 -eq 2 ]; then\n  show no\n else\n  show inner\n fi\n"
        "show outer\nfi\nshow after"
    ),
    "joined": "A=1 && show $A; show second; cd . && show third",
    "redirected": "show a b > /dev/null 2>&1\nshow c 2>&1 | cat",
    "own variables": "A=1\nA=2 B=3 show $A",
    "exported": "export A=4 B='5 6'\nlocal_=7\nshow $A \"$B\" $local_",
    "documents": "cat <<EOF >/dev/null\nshow $A not\nEOF\nshow it",
    "words within": 'A="--x 1 --y 2"\nshow $A\nshow "$A" pre${A}post',
    "escapes": 'show a\\ b "c\\"d" \\$A "\\$B" \\\\',
    "no arguments": 'show "$@" --x "a $@" $@ end',
    "empty": 'A=""\nshow $A "$A" end',
    "answers": (
        "N=4\nshow $(( ($N > 1) ? 1 : 0 )) $((N<2?5:7%4)) $((!2+5 == 5 && N || 0))\n"
        "show $((-7/2)) $((-7%3)) $((+2-!0))"
    ),
    "without quotes": (
        'A=\nif [ -n $A ]; then show 1; fi; if [ -n "$A" ]; then show 2; fi\n'
        "if [[ -n $A ]]; then show 3; fi; [ $A = x ] && show 4 || show 5; [ x != $A ] && show 6\n"
        '[ "$A" != x ] && show 7; [ $A ] || show 8; [ x ] && show 9; [[ $A != x ]] && show 10'
    ),
    "not set": (
        'if [ -z ${UNSET_A} ]; then\n  A="--a 1"\nelse\n  A="--b $UNSET_A"; C=1\nfi\n'
        '[ -n "$UNSET_A" ] && B=2 || B=3\n[[ -z "$UNSET_B" ]] && UNSET_B=5\n'
        "if [ -z ${UNSET_C+x} ] && [ -n $UNSET_C ]; then show $A $B $UNSET_B $C; fi\n"
        'if [ -n "$UNSET_C" ]; then show no; elif [ $B = 3 ]; then show yes; else show no; fi'
    ),
    "not reached": (
        'N=1\nif [ $N -gt 1 ]; then\n  A="--a $N"; L=(1 2)\nelif [ $N -eq 0 ]; then\n'
        '  export B=1\nelse\n  C=--c\nfi\nshow $A x $B $C "${L[@]}" y'
    ),
}  # fmt: skip


LEFT = {
    "exit": "show 1\nexit 0\nshow 2",
    "exit in a branch": "if [ 1 -eq 1 ]; then\n  show 1; exit\nelse\n  show 2\nfi\nshow 3",
    "exit in another branch": "if [ 1 -eq 2 ]; then\n  exit\nfi\ncase x in y) exit;; esac\nshow 1",
    "exit in a case": "case x in\n  x) show 1; exit ;;\n  *) show 2 ;;\nesac\nshow 3",
    "exit in a function": "stop() {\n  show 2\n  exit\n}\nshow 1",
    "exit in a subshell": (
        "(show 1; exit 1; show 2)\nshow 3\n( if [ a = a ]; then exit; fi\nshow 4 )\nshow 5"
    ),
    "exit of a text": "bash -c 'exit 0; true 2'\neval 'A=1; exit'\nshow 3",
    "exit of files": (
        "echo 'A=1; return; A=2' > a.sh; echo 'B=1; exit 0' > b.sh\n. ./a.sh\nshow $A\n"
        "bash b.sh\nshow 1\nsource ./b.sh\nshow 2"
    ),
    "exit if": (
        'A=\n[ -n "$A" ] && exit 1\n[ -z "$A" ] || exit 1\nshow 1\ntest -z "$A" && exit\nshow 2'
    ),
    "exit unless": "cd . || exit 1\ntrue && show 1 || { show 2; exit 1; }\nfalse || exit 0\nshow 3",
    "groups": (
        "A=1\n[ $A -eq 2 ] && { A=3\n show 1; exit; } || show 2\n"
        "{ show 3; A=4; } > /dev/null\nshow $A\n"
        "[ $A = 4 ] && { if [ $A = 4 ]; then show 5; fi; } && show 6\n"
        "[ $A = 4 ] || { show 7; { exit; }; }\n{ show 8; exit; }; show 9"
    ),
    "joined by results": (
        "[ 1 = 2 ] && A=1 || A=2\nshow $A; [ 1 = 1 ] || A=3 && show 4 $A\nfalse && show 5; show 6"
    ),
    "arithmetic": "A=1\n(( A == 2 )) && exit 0\nshow $A",
    "replaced": "show 1\nexec true\nshow 2",
}


@pytest.mark.skipif(BASH is None, reason="compares with bash")
@pytest.mark.parametrize("name", LEFT)
def test_what_follows_an_exit_does_not_run(tmp_path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    expected = shown(LEFT[name].replace(" > /dev/null", ""))
    assert read(LEFT[name]) == expected


def test_an_exit_that_depends_on_what_runs_is_not_taken() -> None:
    for line in ("[ -f x ] || exit", "grep -q x y && exit", "$CHECK && exit 1\n[ $A = b ] && exit",
                 "[ -f x ] || { show 0; exit; }", "[ -f x ] && . ./leaves.sh",
                 '[ -n "$A" ] || exit',
                 'if [ -z "$A" ]; then\n  echo set it; exit 1\nfi'):  # fmt: skip
        assert read(f"{line}\nshow 1")[-1] == ["1"]


def test_variables_that_are_taken_not_to_be_set_are_listed_once() -> None:
    script = read_script(
        "job.sh",
        'if [ -z ${A} ]; then\n B=1\nfi\n[ -z "$A" ] && [[ -n $C ]] && B=2\n[ -z $SLURM_NODEID ]\n'
        '[ -z "$1" ] || B=$1\nshow $A',
    )
    assert [(line, name) for line, _, [name] in script.unset] == [(1, "A"), (4, "C")]
    assert script.variables["B"] == "1"
    assert [each.words for each in script.commands][-1] == ("show", "$A")


NUMBERS = st.integers(0, 12).map(str)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([*OPERATORS]), inner).map(" ".join),
        st.tuples(inner, inner, inner).map(lambda of: "{} ? {} : {}".format(*of)),
        st.tuples(st.sampled_from(["- ", "! ", "+ "]), inner).map("".join),
        inner.map(lambda of: f"({of})"),
    ),
    max_leaves=8,
)


@pytest.mark.skipif(BASH is None, reason="compares with bash")
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(sums=st.lists(SUMS, min_size=20, max_size=20))
def test_drawn_arithmetic_is_that_of_the_shell(sums: list[str]) -> None:
    script = "\n".join(f'(echo "$(({each}))")' for each in sums)
    ran = subprocess.run(
        [BASH or "bash", "-c", script + "\ntrue"], capture_output=True, text=True, check=True
    )
    found = [value for each in sums if (value := calculated(each)) is not None]
    assert found == ran.stdout.split()


@pytest.mark.skipif(BASH is None, reason="compares with bash")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_the_shell(name: str) -> None:
    assert read(SCRIPTS[name]) == [
        each for each in shown(SCRIPTS[name].replace(" > /dev/null", "")) if each
    ]


WORDS = st.text("ab1 -_.", min_size=0, max_size=6)
PIECES = st.one_of(
    WORDS.map(lambda text: f'"{text}"'),
    WORDS.map(lambda text: f"'{text}'"),
    st.sampled_from(
        ["$A", "${A}", '"$A"', '"${B[@]}"', "${B[@]}", "${NONE:-c d}", "x", "$((N+1))"]
    ),
)


@pytest.mark.skipif(BASH is None, reason="compares with bash")
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    value=WORDS,
    elements=st.lists(WORDS, max_size=3),
    commands=st.lists(st.lists(st.lists(PIECES, min_size=1, max_size=3), max_size=3), max_size=4),
)
def test_drawn_words_are_those_of_the_shell(
    value: str, elements: list[str], commands: list[list[list[str]]]
) -> None:
    array = " ".join(f"'{each}'" for each in elements)
    lines = [f"A='{value}'", f"B=({array})", "N=3"]
    lines += ["show x " + " ".join(map("".join, command)) for command in commands]
    assert read("\n".join(lines)) == shown("\n".join(lines))


WITH_ARGUMENTS = {
    "words as tests": (
        "A=true\nB=false\nif $A; then show 1; fi\nif $B; then show 2; else show 3; fi"
    ),
    "each": 'show "$1" "${2}" "$3" ${4:-none} $#',
    "all": 'show "$@" ; show $@ ; show ${@:2} ; show "${@:3}"',
    "shifted": 'A=$1\nshift\nshow $A "$@" $# ${@:2}\nshift 2\nshow $# "$1"',
    "tested": "if [ $# -ge 2 ] && [[ $1 == 70b ]]; then\n  show large\nelse\n  show small\nfi",
    "cases": (
        'case $1 in\n  8b|7b)\n    show small\n    ;;\n  "70b" | 7?b ) show large; show again ;;\n'
        '  *)\n    show other\nesac\ncase "$2" in a*) show a;; *) if [ $1 = 70b ]; then\n'
        "show nested\nfi;; esac\nshow after"
    ),
    "a case in a case": (
        "case $2 in\n*) case $1 in 8b) show no;; *) show yes;; esac\n show out;;\nq) show q;; esac"
    ),
    "passed on": "cat > inner.sh <<'EOF'\nshow inner \"$@\"\nEOF\n. ./inner.sh new $1\nshow $1",
}


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_a_script_with_arguments_runs_what_the_shell_runs(tmp_path, monkeypatch, name) -> None:
    monkeypatch.chdir(tmp_path)
    script, arguments = WITH_ARGUMENTS[name], ("70b", "two words", "x")
    (tmp_path / "inner.sh").write_text('show inner "$@"\n')
    ran = subprocess.run(
        [BASH or "bash", "-c", f"{SHOWS}\n{script}", "job.sh", *arguments],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    commands = read_script("job.sh", script, arguments).commands
    read = [list(each.words[1:]) for each in commands if each.words[0] == "show"]
    assert read == [json.loads(line) for line in ran.stdout.splitlines()]


def test_what_decides_is_named_where_no_argument_is_given() -> None:
    script = read_script(
        "job.sh",
        'SIZE=$1\nif [ "$SIZE" = 70b ]; then\n  A=1\nfi\ncase $MODE in\n a) A=2;;\nesac\n'
        "if [ 1 -eq 2 ]; then\n  A=3\nelif [ $2 -eq 1 ]; then\n  A=4\nfi\n",
    )
    assert [each.unknown for each in script.left_out] == [("1",), ("MODE",), ("2",)]
    assert [each.line for each in script.left_out] == [2, 5, 10]


def test_what_depends_on_a_run_is_left_out_and_listed() -> None:
    script = read_script(
        "job.sh",
        "N=$(nproc)\nif [ -f x ]; then\n  N=9\nfi\nfor i in 1 2; do\n  show $i\ndone\n"
        "go() {\n  show $1\n}\nshow $N $1 `date`\n",
    )
    assert script.commands == (Command(11, ("show", "$(nproc)", "$1", "`date`"), {}),)
    assert [each.text for each in script.left_out] == ["if [ -f x ]", "for i in 1 2", "go ( ) {"]


def test_lines_are_those_of_the_file() -> None:
    """Also after continued lines, arrays, quotes and here-documents of several lines."""
    script = read_script(
        "job.sh",
        "A=(1 \\\n  2\n  3)\nB='x\ny'\ncat <<EOF\n1\n2\nEOF\ncat <<EOF\nEOF\n"
        "show 1 \\\n  2\nif [ -f x ]; then\n  no\nfi\nshow 3\n",
    )
    shows = [each.line for each in script.commands if each.words[0] == "show"]
    assert shows == [12, 17]
    assert [each.line for each in script.left_out] == [14]


def test_what_only_a_run_tells_is_one_word() -> None:
    text = (
        "N=$(nvidia-smi --list-gpus | wc -l)\nM=`nproc --all`\nNAME=run_$(date -u)_$M\n"
        "L=(${X:-$(cat a b)})\nshow $N $M $NAME ${L[@]} 'don`t'\nA='don`t be'\nshow $A\n"
    )
    first, second = read(text)
    assert first[:2] == ["$(nvidia-smi --list-gpus | wc -l)", "`nproc --all`"]
    assert first[2:] == ["run_$(date -u)_`nproc --all`", "$(cat a b)", "don`t"]
    assert second == ["don`t", "be"]


def test_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read_script("job.sh", "A=$(touch made)\n`touch made`\ntouch made\necho $(touch made) > made\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['A="1', "A='1", "A=(1", "A=${B", "A=$(x", 'echo "${A'])
def test_scripts_that_end_within_quotes_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"job.sh is not a shell script: .* not closed"):
        read_script("job.sh", text)


def test_variables_that_double_are_bounded() -> None:
    lines = ["A=xxxxxxxxxxxxxxxx"] + ["A=$A$A"] * 40
    with pytest.raises(InvalidConfiguration, match="a word of more than"):
        read_script("job.sh", "\n".join(lines))
    lists = ["A=(1 2)"] + ['A=("${A[@]}" "${A[@]}")'] * 40
    with pytest.raises(InvalidConfiguration, match="of more than"):
        read_script("job.sh", "\n".join(lists))


@given(st.text("ab\n'\"$(){}[]=;&|<>#\\ ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        words = [token.text for token in tokens(text) if token.is_word]
        for word in words:
            expand(word, {"a": "1", "b": ["2", "3"]})
    except InvalidInput:
        return
    read_script("job.sh", text)


def test_files_that_are_sourced_and_texts_that_a_shell_runs_are_read(tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text("MODEL=(--num-layers 4\n)\nshow sourced\n")
    (tmp_path / "step.sh").write_text(
        '#SBATCH --ntasks-per-node=8\nsrun -l bash -x -c "show ${MODEL[*]}"\n'
    )
    script = (
        ". `pwd`/model.sh\n"
        'source "$(dirname "$0")/nowhere.sh"\n'
        'CMD="cd here; show ${MODEL[@]} --x"\n'
        'srun -N 2 sh -c "${CMD}" | tee log\n'
        "eval $CMD\n"
        "sbatch --nodes=4 step.sh\n"
        "sbatch <<EOF\n#SBATCH --gres=gpu:4\nshow ${MODEL[@]} \\$SLURM_JOB_ID\nEOF\nshow last\n"
    )
    found = read_script(str(tmp_path / "job.sh"), script)
    shows = [each.words for each in found.commands if "show" in each.words]
    assert shows == [
        ("show", "sourced"),
        ("srun", "-N", "2", "show", "--num-layers", "4", "--x"),
        ("show", "--num-layers", "4", "--x"),
        ("srun", "-l", "show", "--num-layers", "4"),
        ("show", "--num-layers", "4", "$SLURM_JOB_ID"),
        ("show", "last"),
    ]
    assert [each.words[0] for each in found.commands if "nowhere.sh" in each.words[-1]] == [
        "source"
    ]
    job = {name: text for name, text in found.variables.items() if name.startswith("SLURM")}
    assert job == {
        "SLURM_GPUS_PER_NODE": "4",
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_NTASKS_PER_NODE": "8",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NUM_NODES": "4",
    }
    assert [each.line for each in found.commands if "show" in each.words][:2] == [1, 4]


def test_a_script_that_sources_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("source job.sh\n" * 9 + "show\n")
    assert len(read_script(str(path), path.read_text()).commands) < 1000
