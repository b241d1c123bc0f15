"""Remedies for unevenness in an experiment, each with what it would save.

Theory of operation

1. *Case* (`uneven_case`): an experiment whose replicas, ranks or micro-batches differ, and its
   sampled steps. A remedy is another case, or other effects of the same draws.
2. *Rows* (`remedies`): each yields what changes, in words, and the steps that follow; those of
   sources and of micro-batches stand in modules of their own. All are simulated alike.
3. *Gain*: the share of the mean step that is saved for as much work, and that of single steps
   (`bfpp.traces.stragglers.gains`), as of measured jobs.
"""
