"""One run of your own narrows the intervals of its cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bfpp.command_line import main
from bfpp.sim.experiment.residuals import residuals_of
from bfpp.sim.measurements.measured_tables import read_measurements
from bfpp.sim.measurements.sites import fit_sites
from bfpp.sim.measurements.validation import case_of

HEADER = (
    "table,model,cluster,implementation,schedule,pp,tp,dp,microbatch_size,microbatches,step_seconds"
)


@pytest.fixture
def rows(tmp_path):
    """Runs on `dgx-h100` that took a fifth longer than predicted."""
    path = tmp_path / "runs.csv"
    line = "own,llama3-8b,dgx-h100,current,1f1b,4,2,8,1,{},{}"
    counts = (16, 32, 64)
    path.write_text("\n".join([HEADER, *(line.format(each, 1.0) for each in counts)]))
    cases = [case_of(row) for row in read_measurements(path)]
    taken = [1.2 * case.physical().step_time(case.graph) for case in cases]
    lines = [line.format(*each) for each in zip(counts, taken, strict=True)]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_one_run_says_something_of_its_site_and_more_say_more(rows):
    table = read_measurements(rows)
    case = case_of(table[0])
    unseen = residuals_of(case.physical(), case.graph.layout)
    one, three = (fit_sites(table[:count])[0] for count in (1, 3))
    assert 1 < one.site.factor < three.site.factor < 1.25
    assert three.site.deviation < one.site.deviation < one.before
    assert one.before**2 == pytest.approx(unseen.machine**2 + unseen.site**2)
    precision = 1 / one.before**2 + 1 / unseen.run**2
    assert one.site.deviation**-2 == pytest.approx(precision)


def test_the_fit_is_written_and_every_command_takes_it(rows, tmp_path, capsys):
    out = tmp_path / "own.toml"
    assert main(["fit", str(rows), "--json", "--out", str(out)]) == 0
    [site] = json.loads(capsys.readouterr().out)["sites"]
    assert site["runs"] == 3
    assert main(["fit", str(rows)]) == 0
    assert "factor" in capsys.readouterr().out
    step = ["simulate", "1f1b", "--model", "llama3-8b", "--cluster", "dgx-h100", "--pp", "4"]
    step += ["--tp", "2", "--dp", "8", "--microbatches", "16", "--json"]
    widths, times = [], []
    for constants in ([], ["--constants", str(out)]):
        assert main([*step, *constants]) == 0
        record = json.loads(capsys.readouterr().out)
        widths.append(record["step_time_high"] / record["step_time_low"])
        times.append(record["step_time"])
    assert widths[1] < widths[0]
    assert times[1] == pytest.approx(site["factor"] * times[0], rel=0.02)


def test_a_run_as_predicted_changes_no_prediction(rows):
    table = read_measurements(rows)
    case = case_of(table[0])
    seconds = case.physical().step_time(case.graph)
    [found] = fit_sites([replace(table[0], measured={"step_seconds": seconds})])
    assert found.site.factor == pytest.approx(1)
