/* Gathers of weights before runs, and reductions of gradients after them.
 *
 * A key must not be earlier than those of what the task waits for, nor later than those of what
 * waits for it. Of a gather that leaves a range of rounds: it takes the first in which its buffer
 * is free and the run ahead has begun, since lanes are in order, and one that is queued late holds
 * up those behind it. If the range is empty, which happens only where copies of a stage run it at
 * different times, the graph is refused.
 */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

/* The run that a run's gather may begin with: `ahead` before it on its rank, or NONE. Where the two
 * begin in one block, it is the run before that one. */
static int64_t run_ahead(const struct draft *draft, const struct runs *runs, int64_t run)
{
    int64_t ahead = run - draft->rules[RULE_RUNS_AHEAD];
    int32_t block = draft->block[runs->first[run]];
    if (ahead >= 0 && block >= 0 && draft->block[runs->first[ahead]] == block)
        ahead--;
    if (ahead < 0 || draft->rank[runs->first[ahead]] != draft->rank[runs->first[run]])
        return NONE;
    return ahead;
}

/* The task that uses a task's buffer after it. */
static int32_t *followers_of(const struct turns *turns)
{
    int32_t *follower = malloc((size_t)(turns->tasks + 1) * sizeof *follower);
    if (!follower)
        return NULL;
    memset(follower, -1, (size_t)(turns->tasks + 1) * sizeof *follower);
    for (int64_t task = 0; task < turns->tasks; task++)
        if (turns->following[task] >= 0)
            follower[turns->following[task]] = (int32_t)task;
    return follower;
}

/* The round in which each gather is queued, in `round`: as soon as the buffer is free and the run
 * ahead has begun; a gather once per step comes before everything. Copies of a stage whose runs are
 * too far apart for that gather right before the first of them, unless it was asked for. */
static int64_t find_gather_rounds(
    const struct draft *draft, const struct runs *runs, const int32_t *follower, int32_t *round,
    int32_t *latest, int64_t *late_unit)
{
    const struct turns *gathers = &runs->gathers;
    for (int64_t task = 0; task < gathers->tasks; task++) {
        round[task] = BEFORE;
        latest[task] = draft->round_of[runs->first[gathers->lead[task]]];
    }
    if (!draft->rules[RULE_GATHERS_RUNS])
        return DRAFTED;
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t task = gathers->of_run[run], begins = draft->round_of[runs->first[run]];
        int64_t ahead = run_ahead(draft, runs, run);
        if (ahead >= 0 && draft->round_of[runs->first[ahead]] > round[task])
            round[task] = draft->round_of[runs->first[ahead]];
        if (begins < latest[task])
            latest[task] = begins;
    }
    for (int64_t task = 0; task < gathers->tasks; task++) {
        *late_unit = draft->unit[runs->first[gathers->lead[task]]];
        if (draft->rules[RULE_PREFETCH] > 0 && round[task] >= latest[task])
            return PREFETCH_TOO_LATE;
        if (round[task] > latest[task] - 1)
            round[task] = latest[task] - 1;
    }
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t task = follower[gathers->of_run[run]], ends = draft->round_of[runs->last[run]];
        if (task >= 0 && ends > round[task])
            round[task] = ends;
    }
    for (int64_t task = 0; task < gathers->tasks; task++)
        if (round[task] >= latest[task]) {
            *late_unit = draft->unit[runs->first[gathers->lead[task]]];
            return WEIGHTS_TOO_LATE;
        }
    return DRAFTED;
}

/* All-gathers of weights, before the runs that need them, once a buffer is free. */
int64_t add_gathers(struct draft *draft, const struct runs *runs, int64_t *late_unit)
{
    const struct turns *gathers = &runs->gathers;
    int32_t *round = malloc((size_t)(2 * gathers->tasks + 1) * sizeof *round);
    int32_t *follower = followers_of(gathers);
    int64_t result = OUT_OF_MEMORY, first = draft->tasks;
    if (!round || !follower)
        goto done;
    result = find_gather_rounds(draft, runs, follower, round, round + gathers->tasks, late_unit);
    if (result != DRAFTED)
        goto done;
    for (int64_t task = 0; task < gathers->tasks; task++) {
        int32_t lead = gathers->lead[task], unit = draft->unit[runs->first[lead]];
        int32_t rank = draft->rank_of_unit[unit];
        int64_t gather = add_task(
            draft, draft->made_by[MADE_BEFORE_RUNS], rank, draft->peer_of_rank[rank], unit,
            round[task]);
        row_of(draft, gather)[DRAFT_WEIGHT_BUFFER] = runs->weight_buffer[lead];
    }
    for (int64_t run = 0; run < runs->count; run++)
        if (gathers->of_run[run] >= 0)
            depend(draft, runs->first[run], first + gathers->of_run[run]);
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t task = gathers->of_run[run];
        if (task >= 0 && follower[task] >= 0)
            depend(draft, first + follower[task], runs->last[run]);
        int64_t ahead = run_ahead(draft, runs, run);
        if (draft->rules[RULE_GATHERS_RUNS] && draft->rules[RULE_PREFETCH] >= 0 && ahead >= 0) {
            draft->begins[2 * draft->bounded] = (int32_t)(first + task);
            draft->begins[2 * draft->bounded + 1] = runs->first[ahead];
            draft->bounded++;
        }
    }
done:
    free(round);
    free(follower);
    return result;
}

/* Reductions of gradients, after the runs that complete them, before a buffer's next run. Where
 * reductions block the compute and no buffer waits for them, they come after all of it. */
int64_t add_reductions(struct draft *draft, const struct runs *runs, int64_t *late_unit)
{
    const struct turns *reductions = &runs->reductions;
    int32_t operation = draft->made_by[MADE_AFTER_RUNS];
    int64_t first = draft->tasks;
    for (int64_t task = 0; task < reductions->tasks; task++) {
        int32_t lead = reductions->lead[task], unit = draft->unit[runs->first[lead]];
        int32_t rank = draft->rank_of_unit[unit];
        int64_t reduction =
            add_task(draft, operation, rank, draft->peer_of_rank[rank], unit, BEFORE);
        row_of(draft, reduction)[DRAFT_GRADIENT_BUFFER] = runs->gradient_buffer[lead];
    }
    if (draft->full)
        return DRAFTED;
    draft->first_task[operation] = (int32_t)first;
    draft->end_task[operation] = (int32_t)draft->tasks;
    for (int64_t run = 0; run < runs->count; run++) {
        if (reductions->of_run[run] < 0)
            continue;
        int64_t task = first + reductions->of_run[run], last = runs->last[run];
        if (draft->rules[RULE_REDUCES_LAST])
            last = draft->bounds[draft->rank[last] + 1] - 1;
        if (draft->round_of[last] > draft->key[task])
            draft->key[task] = draft->round_of[last];
        depend(draft, task, runs->last[run]);
    }
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t task = reductions->of_run[run];
        int32_t before = task < 0 ? NONE : reductions->following[task];
        if (before < 0)
            continue;
        *late_unit = draft->unit[runs->first[run]];
        if (draft->key[first + before] >= draft->round_of[runs->first[run]])
            return GRADIENTS_TOO_LATE;
        depend(draft, runs->first[run], first + before);
    }
    return DRAFTED;
}
