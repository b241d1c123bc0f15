"""Jobs on the command line: a table of operations explained, imported and drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.helpers.straggler_jobs import JOBS, Job, columns_of, parquet_of
from tests.traces.stragglers.jobs import ANSWERS, published_rows

pytest.importorskip("pyarrow")

SLOW = "a slow worker"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Every test runs in a folder of its own, with a published job and one with a slow worker."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    Path("job.parquet").write_bytes(parquet_of(columns_of(published_rows())))
    lost = [row for row in published_rows() if row["stage"] != 2]
    Path("lost.parquet").write_bytes(parquet_of(columns_of(lost)))
    Path("slow.parquet").write_bytes(parquet_of(JOBS[SLOW].columns()))


def test_json_has_the_published_answers(answer):
    found, published = answer("explain job.parquet"), ANSWERS["published job"]
    assert found["slowdown"] == pytest.approx(published["slowdown"], rel=1e-4)
    for kind, slowdowns in published["by"].items():
        assert found["by"][kind] == pytest.approx(slowdowns, rel=1e-4)
    for share in ("worst_workers_share", "last_stage_share"):
        assert found[share] == pytest.approx(published[share], abs=0.01)
    assert {step: each["replayed"] for step, each in found["steps"].items()} == pytest.approx(
        published["replayed"], rel=1e-4
    )
    assert found["culprits"]["stage"]["name"] == "3"
    assert found["culprits"]["stage"]["recurrence"] == "persistent"


def test_the_verdict_names_who_is_slow(bfpp):
    code, out, err = bfpp("explain job.parquet")
    assert (code, err) == (0, "")
    assert "Slowdown S = 1.202: unevenness takes 16.8% of the step." in out
    assert "The last pipeline rank explains it" in out
    assert (
        "The worst 1 worker (replica/pipeline rank 1/2) explains" in bfpp("explain slow.parquet")[1]
    )


def test_a_step_that_was_cut_off_has_null_times_and_is_named(answer, bfpp):
    rows = [row for row in published_rows() if row["step"] != 1048 or row["start_ts"] < 1.0]
    Path("cut.parquet").write_bytes(parquet_of(columns_of(rows)))
    steps = answer("explain cut.parquet")["steps"]
    assert steps["1048"] == {"measured": None, "replayed": None, "even": None}
    assert None not in steps["23"].values()
    assert "Not recorded whole, and left out: 1 step (1048)." in bfpp("explain cut.parquet")[1]


def test_a_page_has_the_workers_and_both_steps(bfpp):
    code, out, _ = bfpp("explain slow.parquet --html page.html")
    text = Path("page.html").read_text()
    assert (code, "Slowdown S" in out, "Slowdown S" in text) == (0, True, True)
    drawings = [
        ElementTree.fromstring(each) for each in re.findall("<svg.*?</svg>", text, re.DOTALL)
    ]
    assert len(drawings) == 2
    written = [[each.text for each in drawn.iter() if each.text] for drawn in drawings]
    assert {"replica", "pipeline rank"} <= {*written[0]}
    assert any(each.startswith("The same, even:") for each in written[1])
    assert "script" not in text.replace("bfpp", "")


def test_foreign_names_are_text_on_the_page(bfpp):
    columns = JOBS[SLOW].columns()
    names = [
        "<script>x</script>" if each == "optimizer-clip-main-grad" else each
        for each in columns["optype"]
    ]
    Path("odd.parquet").write_bytes(parquet_of({**columns, "optype": names}))
    assert bfpp("explain odd.parquet --html page.html")[0] == 0
    text = Path("page.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text


@pytest.fixture
def imported(bfpp):
    """Imports a trace: the JSON that is printed."""

    def run(words: str) -> dict:
        code, out, err = bfpp(f"import {words} --json")
        assert (code, err) == (0, f"wrote {words.split()[-1]}\n")
        return json.loads(out)

    return run


def test_an_imported_job_is_explained_as_its_table(answer, imported):
    record = imported("job.parquet --out job.json.gz")
    assert record["steps"] == [23, 34, 259, 1048]
    assert record["operations"]["gc"] == 4 * 8
    assert answer("explain job.json.gz") == answer("explain job.parquet")


def test_one_step_of_a_replica_is_a_timeline(answer, imported):
    about = imported("job.parquet --step 259 --replica 1 --out step.json")["about"]
    assert (about["step"], about["replica"]) == (259, 1)
    shown = answer("show step.json")
    computed = [
        sum(
            row["duration"]
            for row in published_rows()
            if (row["step"], row["dp_rank"], row["stage"]) == (259, 1, rank)
            and row["optype"] in ("forward-compute", "backward-compute")
        )
        for rank in range(4)
    ]
    assert [rank["compute_time"] for rank in shown["ranks"]] == pytest.approx(computed)


def test_an_interleaved_step_has_its_stages(answer, imported):
    job = Job(pp=2, vpp=2, microbatches=4)
    Path("looped.parquet").write_bytes(parquet_of(job.columns()))
    about = imported("looped.parquet --step 4 --out step.json")["about"]
    assert about["not_measured"] == "4 all-reduce"
    assert {each["stage"] for each in answer("explain step.json")["critical_path"]} >= {0, 1, 2, 3}


REFUSED = {
    "explain lost.parquet": "TRACE: lost.parquet: there is no operation of stage 2",
    "explain missing.parquet": "TRACE: missing.parquet: No such file or directory",
    "explain job.parquet --set forward=2": "--set: is of a configuration or a timeline",
    "explain job.parquet --pp 8": "--pp: a job is as it ran",
    "explain 1f1b --html page.html": "--html: is of jobs and of experiments",
    "import job.parquet slow.parquet --out x.json": "a table has all workers of a job",
    "import job.parquet --step 5 --out x.json": "--step: 5 is not in the table",
    "import job.parquet --replica 2 --out x.json": "--replica: 2 is not in the table",
    "import job.json --replica 2 --out x.json": "--replica: is of a job's operations",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused_in_one_line(bfpp, words):
    code, out, err = bfpp(words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert REFUSED[words] in err


UNEVEN = "explain 1f1b --pp 2 --dp 3 --microbatches 4 --reduce 0.4 --jitter 0.05 --sampled-steps 6"


def test_a_page_of_an_uneven_experiment(bfpp):
    code, out, _ = bfpp(f"{UNEVEN} --slow rank=1,replica=2:1.5 --html uneven.html")
    assert code == 0
    page = Path("uneven.html").read_text()
    assert "6 steps of 3 replicas x 2 pipeline ranks" in page
    for title in ("Workers", "The worst step, and the even one", "Remedies", "By source"):
        assert f"{title}</h2>" in page
    [(worst, seconds)] = {*re.findall(r"Step (\d): ([\d.]+) s", page)}
    steps = re.findall(r"<td[^>]*>([0-5])</td><td[^>]*>([\d.]+) s</td>", page)
    assert len(steps) == 6
    assert (worst, seconds) == max(steps, key=lambda each: float(each[1]))
    [even] = {*re.findall(r"The same, even: ([\d.]+) s", page)}
    assert float(even) < float(seconds)
    values = [float(each) for each in re.findall(r">(\d\.\d\d)</text>", page)]
    assert sum(value > 1.4 for value in values) == 2  # the slow worker, and the end of the scale
    gain = re.search(r"^replace +\S+ +\S+ to \S+", out, re.MULTILINE)
    assert gain
    assert gain[0].split()[1] in page


def test_a_saved_timeline_has_no_page_of_a_job(bfpp):
    assert bfpp("simulate 1f1b --pp 2 --timeline step.json")[0] == 0
    code, out, err = bfpp("explain step.json --html page.html")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--html: is of no timeline" in err
