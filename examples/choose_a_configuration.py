"""Which way to train a model on some GPUs: the best of all, and why it is."""

import bfpp

found = bfpp.search("bert-6.6b", "dgx1-v100", gpus=8, batch=8, schedules=["1f1b", "breadth-first"])
best = found[0]
print(f"{len(found)} configurations fit; the best is {best['schedule']} on {best['pp']} ranks")

experiment = bfpp.Experiment(
    best["schedule"],
    model="bert-6.6b",
    cluster="dgx1-v100",
    **{
        name: best[name]
        for name in ("pp", "tp", "dp", "microbatches", "microbatch_size", "sharding")
    },
    loops=best["loops"] if best["schedule"] == "breadth-first" else None,
)
explained = bfpp.explain(experiment)
print(f"step time {explained.step_time:.3f} s")
for each in explained.sensitivities[:3]:
    print(f"  1 % more {each.parameter}: {1e3 * each.seconds_per_percent:+.1f} ms")
