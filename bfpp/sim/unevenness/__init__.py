"""Unevenness: sources that make replicas, ranks and micro-batches differ, and what they cost.

Theory of operation

1. *Sources* (`sources`, `work`) say what each task of each replica takes, as a factor of an even
   step's or in seconds more: devices and links that are slow, jitter and pauses; documents of
   unequal length, images, routing to experts. Those with chance in them draw anew for each step.
2. *Costs* (`uneven_costs`): the even step's, with all effects. What a data-parallel group does
   together is as slow as its slowest member. Replicas that are alike in all are one.
3. *Steps* (`uneven_steps`): a number of sampled steps, each replayed as it is; evenly; and with
   each source alone, or without it. Even means that the same work is divided evenly over replicas
   and micro-batches, and that nothing is slow.
"""
