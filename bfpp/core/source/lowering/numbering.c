/* The numbers of drafted tasks, and the columns of the graph.
 *
 * Keys are dense, rounds times phases, so that counting sorts them in linear time. It is stable:
 * tasks of one key keep the order in which they were drafted, which is part of what a graph is, as
 * lanes run in it.
 */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

/* What each task waits for, in order, each once; how many waits are kept. */
static int64_t without_repeats(int64_t tasks, int64_t *start, int32_t *member)
{
    int64_t kept = 0;
    for (int64_t task = 0; task < tasks; task++) {
        int64_t begin = start[task], end = start[task + 1];
        start[task] = kept;
        for (int64_t at = begin; at < end; at++) {
            int32_t each = member[at];
            int64_t place = kept;
            while (place > start[task] && member[place - 1] > each)
                place--;
            if (place > start[task] && member[place - 1] == each)
                continue;
            memmove(member + place + 1, member + place, (size_t)(kept - place) * sizeof *member);
            member[place] = each;
            kept++;
        }
    }
    start[tasks] = kept;
    return kept;
}

/* Number the tasks by round and phase, those of one key as they are: `old` and `new` of each other.
 */
static int64_t sort_by_key(
    const struct draft *draft, const int32_t *phase, uint32_t *old, uint32_t *new)
{
    int64_t tasks = draft->tasks, phases = draft->phases, most = 0;
    /* No round is later than there are tasks: `place` is no larger than the draft. */
    for (int64_t task = 0; task < tasks; task++) {
        int64_t round = draft->key[task], own = phase[row_of(draft, task)[DRAFT_OPERATION]];
        if (round < BEFORE || round > tasks || own < 0 || own >= phases)
            return MALFORMED;
        draft->key[task] = (round - BEFORE) * phases + own;
        most = draft->key[task] > most ? draft->key[task] : most;
    }
    uint32_t *place = calloc((size_t)(most + 2), sizeof *place);
    if (!place)
        return OUT_OF_MEMORY;
    for (int64_t task = 0; task < tasks; task++)
        place[draft->key[task] + 1]++;
    for (int64_t at = 1; at < most + 2; at++)
        place[at] += place[at - 1];
    for (int64_t task = 0; task < tasks; task++) {
        uint32_t at = place[draft->key[task]]++;
        old[at] = (uint32_t)task;
        new[task] = at;
    }
    free(place);
    return 0;
}

/* The columns of tasks in the order of their numbers; returns whether some are in blocks. */
static bool fill_columns(
    const struct draft *draft, const uint32_t *old, const uint32_t *new, struct numbered *numbered)
{
    int64_t tasks = draft->tasks;
    bool has_blocks = false;
    for (int64_t task = 0; task < tasks; task++) {
        const int32_t *row = row_of(draft, old[task]);
        numbered->operation[task] = (int8_t)row[DRAFT_OPERATION];
        for (int64_t at = DRAFT_RANK; at < DRAFT_BLOCK; at++)
            numbered->columns[(at - DRAFT_RANK) * tasks + task] = row[at];
        int32_t block = row[DRAFT_BLOCK];
        numbered->columns[PIECE_COLUMN * tasks + task] = NONE;
        numbered->columns[BLOCK_COLUMN * tasks + task] = block < 0 ? NONE : (int32_t)new[block];
        has_blocks = has_blocks || block >= 0;
    }
    return has_blocks;
}

/* Give both ends of waits their numbers. A block waits with its first task for all that its tasks
 * wait for, and what waits for one of them waits for its last: its tasks begin and end as one.
 * False for tasks that there are not. */
static bool number_waits(struct draft *draft, const uint32_t *new, bool has_blocks)
{
    for (int64_t at = 0; at < draft->waits; at++) {
        uint32_t *edge = draft->edges + 2 * at;
        if (edge[0] >= draft->tasks || edge[1] >= draft->tasks)
            return false;
        if (has_blocks) {
            int32_t block = row_of(draft, edge[0])[DRAFT_BLOCK];
            int32_t other = row_of(draft, edge[1])[DRAFT_BLOCK];
            edge[0] = block < 0 ? edge[0] : (uint32_t)block;
            edge[1] = other < 0 ? edge[1] : (uint32_t)other + 1;
        }
        edge[0] = new[edge[0]];
        edge[1] = new[edge[1]];
    }
    for (int64_t at = 0; at < 2 * draft->bounded; at++) {
        if (draft->begins[at] < 0 || draft->begins[at] >= draft->tasks)
            return false;
        draft->begins[at] = (int32_t)new[draft->begins[at]];
    }
    return true;
}

/* What each task waits for, as it was drafted; `old` is scratch from here on. */
static void list_waits(const struct draft *draft, struct numbered *numbered, uint32_t *place)
{
    int64_t tasks = draft->tasks, *start = numbered->dependency_start;
    memset(start, 0, (size_t)(tasks + 1) * sizeof *start);
    for (int64_t at = 0; at < draft->waits; at++)
        start[draft->edges[2 * at] + 1]++;
    for (int64_t task = 0; task < tasks; task++) {
        start[task + 1] += start[task];
        place[task] = (uint32_t)start[task];
    }
    for (int64_t at = 0; at < draft->waits; at++) {
        const uint32_t *edge = draft->edges + 2 * at;
        numbered->dependency[place[edge[0]]++] = (int32_t)edge[1];
    }
}

/* Lay out the columns of a draft in the order of its keys, rounds and phases, and what each task
 * waits for; returns how many waits there are. */
int64_t number_tasks(struct draft *draft, const int32_t *phase, struct numbered *numbered)
{
    int64_t tasks = draft->tasks, waits = draft->waits;
    uint32_t *old = malloc((size_t)(2 * tasks + 1) * sizeof *old), *new = old + tasks;
    if (!old)
        return OUT_OF_MEMORY;
    int64_t result = sort_by_key(draft, phase, old, new);
    if (result == 0) {
        bool has_blocks = fill_columns(draft, old, new, numbered);
        result = MALFORMED;
        if (number_waits(draft, new, has_blocks)) {
            list_waits(draft, numbered, old);
            /* Two tasks of a block may wait for the same. */
            result = waits;
            if (has_blocks)
                result = without_repeats(tasks, numbered->dependency_start, numbered->dependency);
        }
    }
    free(old);
    return result;
}
