"""Which way to train a model on some GPUs: the best of all, and why it is."""

import bfpp

found = bfpp.search("bert-6.6b", "dgx1-v100", gpus=8, batch=8, schedules=["1f1b", "breadth-first"])
best = found[0]
print(f"{len(found)} configurations fit; the best is {best.schedule} on {best.pp} ranks")

explained = bfpp.explain(best.experiment)
print(f"step time {explained.step_time:.3f} s")
for each in explained.sensitivities[:3]:
    print(f"  1 % more {each.parameter}: {1e3 * each.seconds_per_percent:+.1f} ms")
