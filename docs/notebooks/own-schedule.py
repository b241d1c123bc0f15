# %% [markdown]
# # Your own schedule
#
# The [tutorial](../tutorials/schedule.md) found that waves of micro-batches pay for their memory
# with a bubble at each end. Here: how large must a wave be, and does the answer change with slow
# transfers? ([This notebook](own-schedule.ipynb), as it ran.)

# %%
import bfpp


class Waves(bfpp.Schedule):
    """Breadth-first on waves of micro-batches, one wave after the other."""

    name = "waves"
    looped = True
    size: int = 4

    def steps(self, layout, rank):
        for first in range(0, layout.microbatches, self.size):
            wave = range(first, min(first + self.size, layout.microbatches))
            for stage in layout.stages_of(rank):
                for microbatch in wave:
                    yield bfpp.forward(stage, microbatch)
            for stage in reversed(layout.stages_of(rank)):
                for microbatch in wave:
                    yield bfpp.backward(stage, microbatch)


base = bfpp.Experiment(Waves(), pp=4, loops=2, microbatches=16)
bfpp.predict(base)

# %% [markdown]
# A prediction shows itself, and so does its timeline:

# %%
bfpp.predict(base).timeline

# %% [markdown]
# `figure()` makes a plotly figure of it, to zoom into and to add to.

# %%
bfpp.predict(base).timeline.figure()

# %% [markdown]
# Twelve experiments: sizes against transfer times.

# %%
print(" size   peak   " + "   ".join(f"transfer {seconds}" for seconds in (0, 0.5, 1)))
for size in (2, 4, 8, 16):
    found = [
        bfpp.predict(base.changed(schedule=Waves(size), transfer=seconds))
        for seconds in (0, 0.5, 1)
    ]
    peak = max(rank.peak_microbatches for rank in found[0].ranks)
    bubbles = "   ".join(f"{bfpp.bubble(each.timeline):>12.1%}" for each in found)
    print(f"{size:5}{peak:7.1f}   {bubbles}")

# %% [markdown]
# Small waves pay the pipeline's length again and again. A wave as large as the batch *is*
# breadth-first, which the graphs confirm task by task:

# %%
wide, known = (
    base.changed(schedule=Waves(16)).graph(),
    base.changed(schedule="breadth-first").graph(),
)
assert (wide.operation == known.operation).all()
assert (wide.microbatch == known.microbatch).all()
len(wide)

# %% [markdown]
# How far from the best possible is it? The synthesis searches all orders in the memory of waves
# of 4, backward passes in halves among them, and proves a lower bound:

# %%
best = bfpp.synthesize(base.changed(microbatches=8), memory_limit=4, placement="looped", seconds=2)
waves = bfpp.predict(base.changed(microbatches=8)).timeline.step_time
print(f"waves {waves:g} s, found {best.step_time:g} s, bound {best.bound.seconds:g} s")
