/* Tasks that tables declare: after passes, and at the end of a step once data are complete. */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

/* One task for each of the passes that an operation is made after, and before which others of the
 * cell wait for it. `task_of_cell` is scratch. */
static void add_after_passes(
    struct draft *draft, const struct made *made, int64_t each, int32_t *task_of_cell)
{
    int32_t operation = made->operation[each];
    size_t cells = (size_t)(draft->units * draft->microbatches);
    memset(task_of_cell, -1, cells * sizeof *task_of_cell);
    draft->first_task[operation] = (int32_t)draft->tasks;
    for (int64_t step = 0; step < draft->steps; step++)
        if (made->after[each] >> draft->operation[step] & 1) {
            int64_t task = add_of_cell(draft, operation, step, step);
            depend(draft, task, step);
            task_of_cell[cell_of(draft, step)] = (int32_t)task;
        }
    draft->end_task[operation] = (int32_t)draft->tasks;
    for (int64_t step = 0; step < draft->steps; step++)
        if (made->before[each] >> draft->operation[step] & 1) {
            int32_t task = task_of_cell[cell_of(draft, step)];
            if (task >= 0)
                depend(draft, step, task);
        }
}

/* The tasks among which those of an operation are: compute steps are mixed. */
static void range_of(const struct draft *draft, int32_t operation, int64_t *first, int64_t *end)
{
    *first = operation < PASSES ? 0 : draft->first_task[operation];
    *end = operation < PASSES ? draft->steps : draft->end_task[operation];
}

static bool is_later(const struct draft *draft, int64_t task, int32_t than)
{
    return than < 0 || draft->key[task] >= draft->key[than];
}

/* For each unit, or rank, the last task of an operation, by its round and then its number. */
static void find_last(
    const struct draft *draft, int32_t operation, bool by_rank, int32_t *last)
{
    int64_t first, end, count = by_rank ? draft->ranks : draft->units;
    memset(last, -1, (size_t)count * sizeof *last);
    range_of(draft, operation, &first, &end);
    for (int64_t task = first; task < end; task++) {
        const int32_t *row = row_of(draft, task);
        if (row[DRAFT_OPERATION] != operation)
            continue;
        int32_t own = by_rank ? row[DRAFT_RANK] : row[DRAFT_UNIT];
        if (own >= 0 && is_later(draft, task, last[own]))
            last[own] = (int32_t)task;
        int32_t peer = by_rank ? row[DRAFT_PEER] : NONE;
        if (peer >= 0 && is_later(draft, task, last[peer]))
            last[peer] = (int32_t)task;
    }
}

/* Let a task wait for another one, if there is one, in a round no earlier than its. */
static void follow(struct draft *draft, int64_t task, int32_t on)
{
    if (on < 0)
        return;
    if (draft->key[on] > draft->key[task])
        draft->key[task] = draft->key[on];
    depend(draft, task, on);
}

/* One task of each unit, after the last tasks of the operations that it waits for: in the order of
 * the first of these. */
static void add_of_units(
    struct draft *draft, const struct made *made, int64_t each, int32_t *last)
{
    int64_t begin = made->wait_bounds[each], waits = made->wait_bounds[each + 1] - begin;
    int64_t first, end;
    for (int64_t nth = 0; nth < waits; nth++)
        find_last(draft, made->waits[begin + nth], false, last + nth * draft->units);
    range_of(draft, made->waits[begin], &first, &end);
    /* Tasks of one key keep this order: that in which the ranks' data are complete. */
    for (int64_t on = first; on < end; on++) {
        int32_t rank = row_of(draft, on)[DRAFT_RANK], peer = row_of(draft, on)[DRAFT_PEER];
        int32_t unit = row_of(draft, on)[DRAFT_UNIT];
        if (unit < 0 || last[unit] != on)
            continue;
        int64_t task = add_task(draft, made->operation[each], rank, peer, unit, BEFORE);
        for (int64_t nth = 0; nth < waits; nth++)
            follow(draft, task, last[nth * draft->units + unit]);
    }
}

/* One task of the ranks of the first and the last unit, after the last tasks of these. */
static void add_of_ends(
    struct draft *draft, const struct made *made, int64_t each, int32_t *last)
{
    int64_t begin = made->wait_bounds[each], waits = made->wait_bounds[each + 1] - begin;
    if (draft->ends[0] < 0)
        return;
    int64_t task =
        add_task(draft, made->operation[each], draft->ends[0], draft->ends[1], 0, BEFORE);
    for (int64_t nth = 0; nth < waits; nth++) {
        find_last(draft, made->waits[begin + nth], false, last);
        follow(draft, task, last[0]);
        if (draft->units > 1)
            follow(draft, task, last[draft->units - 1]);
    }
}

/* One task of each rank, of no unit, no earlier than its last compute step. */
static void add_of_ranks(
    struct draft *draft, const struct made *made, int64_t each, int32_t *last)
{
    int64_t begin = made->wait_bounds[each], waits = made->wait_bounds[each + 1] - begin;
    for (int64_t nth = 0; nth < waits; nth++)
        find_last(draft, made->waits[begin + nth], true, last + nth * draft->ranks);
    for (int64_t rank = 0; rank < draft->ranks; rank++) {
        int64_t step = draft->bounds[rank + 1] - 1;
        int64_t task =
            add_task(draft, made->operation[each], rank, NONE, NONE, draft->round_of[step]);
        if (waits == 0)
            depend(draft, task, step);
        for (int64_t nth = 0; nth < waits; nth++) {
            if (!made->all[begin + nth]) {
                follow(draft, task, last[nth * draft->ranks + rank]);
                continue;
            }
            int64_t first, end;
            range_of(draft, made->waits[begin + nth], &first, &end);
            for (int64_t on = first; on < end; on++)
                if (row_of(draft, on)[DRAFT_OPERATION] == made->waits[begin + nth])
                    follow(draft, task, (int32_t)on);
        }
    }
}

/* True if some of what an operation waits for is there. */
static bool has_waits(const struct draft *draft, const struct made *made, int64_t each)
{
    int64_t begin = made->wait_bounds[each], end = made->wait_bounds[each + 1];
    for (int64_t at = begin; at < end; at++) {
        int64_t first, last;
        range_of(draft, made->waits[at], &first, &last);
        for (int64_t task = first; task < last; task++)
            if (row_of(draft, task)[DRAFT_OPERATION] == made->waits[at])
                return true;
    }
    return begin == end;
}

bool add_made(struct draft *draft, const struct made *made)
{
    int64_t extent = draft->ranks > draft->units ? draft->ranks : draft->units, most = 1;
    for (int64_t each = 0; each < made->count; each++) {
        int64_t waits = made->wait_bounds[each + 1] - made->wait_bounds[each];
        most = waits > most ? waits : most;
    }
    int64_t cells = draft->units * draft->microbatches;
    int64_t size = extent * most > cells ? extent * most : cells;
    int32_t *scratch = malloc((size_t)(size + 1) * sizeof *scratch);
    if (!scratch)
        return false;
    bool trains = false; /* an evaluation reduces and updates nothing */
    for (int64_t step = 0; step < draft->steps; step++)
        trains = trains || !is_forward(draft, step);
    for (int64_t each = 0; each < made->count && !draft->full; each++) {
        int32_t operation = made->operation[each];
        if (made->after[each]) {
            add_after_passes(draft, made, each, scratch);
            continue;
        }
        if (!trains || !has_waits(draft, made, each))
            continue;
        draft->first_task[operation] = (int32_t)draft->tasks;
        if (made->scope[each] == SCOPE_UNIT)
            add_of_units(draft, made, each, scratch);
        else if (made->scope[each] == SCOPE_ENDS)
            add_of_ends(draft, made, each, scratch);
        else
            add_of_ranks(draft, made, each, scratch);
        draft->end_task[operation] = (int32_t)draft->tasks;
    }
    free(scratch);
    return true;
}
