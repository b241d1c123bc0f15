# %% [markdown]
# # From measurement to prediction
#
# A cluster's file has constants that are in no data sheet: the share of the peak that GEMMs
# reach, waits, what rings reach of the network. Measured runs give them. Here the paper's own: 69
# configurations on 64 V100, which come with bfpp. ([This notebook](measured.ipynb), as it ran.)

# %%
import csv
import json
from collections import defaultdict
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import bfpp
from bfpp.command_line import main


def answer(*words):
    """Run a command with --json, and parse its answer."""
    printed = StringIO()
    with redirect_stdout(printed):
        assert main([*words, "--json"]) == 0
    return json.loads(printed.getvalue())


answer("paper", "measurements")
rows = list(csv.DictReader(Path("out/paper/measurements.csv").read_text().splitlines()))
print(len(rows), "runs;", ", ".join(rows[0]))

# %% [markdown]
# How well does the package's own fit predict them?

# %%
found = answer("validate", "out/paper/measurements.csv")
print(
    f"throughput: mean error {found['throughput_mape']:.1f} %, memory: {found['memory_mape']:.1f} %"
)
by_schedule = defaultdict(list)
for row in found["rows"]:
    by_schedule[row["schedule"]].append(abs(row["error_step_time"]))
for schedule, errors in by_schedule.items():
    print(f"{schedule:14} {len(errors):2} runs, mean error {sum(errors) / len(errors):.1f} %")

# %% [markdown]
# That fit has seen these rows. The honest question is what a fit says of runs that it has *not*
# seen. So take every third row, fit to these alone, and predict the others:


# %%
def write(path, some):
    with Path(path).open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0].keys())
        table.writeheader()
        table.writerows(some)


write("seen.csv", rows[::3])
write("unseen.csv", [row for at, row in enumerate(rows) if at % 3])
fitted = answer("fit", "seen.csv", "--no-cross-validation", "--out", "constants.toml")
for name in ("seen.csv", "unseen.csv"):
    error = answer("validate", name, "--constants", "constants.toml")["throughput_mape"]
    print(f"{name}: mean error {error:.1f} %")

# %% [markdown]
# Now a prediction of a run that is not in the table, with its interval:

# %%
experiment = bfpp.Experiment(
    "breadth-first",
    model="bert-52b",
    cluster="dgx1-v100",
    constants="constants.toml",
    pp=8,
    tp=8,
    loops=8,
    microbatches=12,
)
record = bfpp.predict(experiment).record
ends = f"{record['step_time_low']:.2f} to {record['step_time_high']:.2f}"
print(f"{record['step_time']:.2f} s a step ({ends})")

# %% [markdown]
# With a table of your own runs instead, this is all there is to it: [the
# columns](../reference/files.md#measured-table), [the accuracy on others' runs](../accuracy.md).
