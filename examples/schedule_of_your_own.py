"""Your own schedule: checked, simulated, compared with the known ones, drawn."""

from pathlib import Path

import bfpp


class InPairs(bfpp.Schedule):
    """Two forward passes, then two backward passes, in turn."""

    name = "in-pairs"
    summary = "non-looped; two forward and two backward passes in turn"

    def steps(self, layout, rank):
        """Warm up as 1F1B does, but by pairs."""
        ahead = 2 * min(layout.pp - rank, -(-layout.microbatches // 2))
        done = min(ahead, layout.microbatches)
        for microbatch in range(done):
            yield bfpp.forward(rank, microbatch)
        for first in range(0, layout.microbatches, 2):
            pair = range(first, min(first + 2, layout.microbatches))
            for microbatch in pair:
                yield bfpp.backward(rank, microbatch)
            for microbatch in range(done, min(done + 2, layout.microbatches)):
                yield bfpp.forward(rank, microbatch)
            done = min(done + 2, layout.microbatches)


mine = bfpp.Experiment(InPairs(), pp=4, microbatches=12, transfer=0.1)
assert bfpp.violations(mine.graph()) == []
for schedule in (InPairs(), "1f1b", "gpipe"):
    prediction = bfpp.predict(mine.changed(schedule=schedule))
    peak = max(rank.peak_microbatches for rank in prediction.ranks)
    print(f"{prediction.name:9} {prediction.timeline.step_time:6.2f} s, {peak:.0f} in flight")

Path("out").mkdir(exist_ok=True)
bfpp.write_svg([bfpp.Panel("Pairs", bfpp.predict(mine).timeline)], "out/in-pairs.svg")
