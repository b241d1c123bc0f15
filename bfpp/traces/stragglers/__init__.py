"""Stragglers: the cost of unevenness to a job, from its operations in many steps.

Theory of operation, after "Understanding Stragglers in Large Model Training Using What-if Analysis"
(Lin et al., OSDI 2025), whose definitions these are:

1. *Typical step* (`typical_step`). Steps and replicas with as many micro-batches should have the
   same operations: those that most of them have. One that is missing is known to have run, and
   counts as not measured.
2. *Waits* (`waits`). Which operation waits for which follows from what they are, and from their
   order in the step that was recorded most completely; all steps are one graph of replicas x ranks.
3. *Own time* (`joint_steps`). A pass takes as long as it ran. A transfer or a collective takes from
   when the last of those who take part has begun until its end: waiting is not its own.
4. *Replays* (`slowdowns`). With own times, a step without the gaps between operations. Even: with
   the mean of each kind of compute, the median of each kind of communication, over all workers and
   steps. Slowdown S = mean replayed step / mean even step. That of a stage, replica, worker or
   operation: the mean step with all but its own operations made even, over the mean even step.
5. *Patterns* (`patterns`). Which steps differ from the rest, and whether slowness is persistent,
   periodic or random.
"""
