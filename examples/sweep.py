"""Bubble and memory over loops and micro-batches: rows of a table."""

import bfpp

base = bfpp.Experiment("breadth-first", pp=4, model="bert-6.6b", cluster="dgx1-v100", tp=2)
rows = bfpp.sweep(base, loops=[1, 2, 4, 8], microbatches=[4, 8, 16])
print("loops  micro-batches  bubble ratio  MFU    peak memory")
for each in rows:
    print(
        f"{each.loops:5}  {each.microbatches:13}  {each.bubble:12.1%}  {each.mfu:.1%}  "
        f"{each.memory_largest_gb:.1f} GiB"
    )
fitting = [each for each in rows if each.fits]
print(f"fastest of those that fit: {min(fitting, key=lambda each: each.step_time).loops} loops")
