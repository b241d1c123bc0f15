/* The numbers of drafted tasks, and the columns of the graph. */
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

/* Number the tasks by their keys, those of one key as they are: `old` and `new` of each other. */
static int64_t sort_by_key(
    int64_t tasks, int64_t phases, const int64_t *key, uint32_t *old, uint32_t *new)
{
    int64_t most = 0;
    for (int64_t task = 0; task < tasks; task++) {
        if (key[task] < BEFORE * phases || key[task] > (tasks + 1) * phases)
            return MALFORMED;
        most = key[task] > most ? key[task] : most;
    }
    int64_t *place = calloc((size_t)(most + phases + 2), sizeof *place);
    if (!place)
        return OUT_OF_MEMORY;
    for (int64_t task = 0; task < tasks; task++)
        place[key[task] + phases + 1]++;
    for (int64_t at = 1; at < most + phases + 2; at++)
        place[at] += place[at - 1];
    for (int64_t task = 0; task < tasks; task++) {
        int64_t at = place[key[task] + phases]++;
        old[at] = (uint32_t)task;
        new[task] = (uint32_t)at;
    }
    free(place);
    return 0;
}

/* Lay out the columns of a draft in the order of the keys, and what each task waits for; returns
 * how many waits there are. A block waits with its first task for all that its tasks wait for, and
 * what waits for one of them waits for its last: its tasks begin and end as one. */
int64_t bfpp_number(
    int64_t tasks, int64_t waits, int64_t n_begins, int64_t phases, const int32_t *rows,
    const int64_t *key, const uint32_t *edges, int32_t *begins, int8_t *operation,
    int32_t *columns, int64_t *dependency_start, int32_t *dependency)
{
    int64_t result = OUT_OF_MEMORY, *place = NULL;
    bool has_blocks = false;
    uint32_t *old = malloc((size_t)(2 * tasks + 1) * sizeof *old), *new = old + tasks;
    if (!old)
        return OUT_OF_MEMORY;
    result = sort_by_key(tasks, phases, key, old, new);
    if (result < 0)
        goto done;
    for (int64_t task = 0; task < tasks; task++) {
        const int32_t *row = rows + (int64_t)old[task] * DRAFT_COLUMNS;
        operation[task] = (int8_t)row[DRAFT_OPERATION];
        for (int64_t at = DRAFT_RANK; at < DRAFT_BLOCK; at++)
            columns[(at - DRAFT_RANK) * tasks + task] = row[at];
        int64_t block = row[DRAFT_BLOCK];
        if (block + 1 >= tasks) {
            result = MALFORMED;
            goto done;
        }
        columns[6 * tasks + task] = NONE;
        columns[7 * tasks + task] = block < 0 ? NONE : (int32_t)new[block];
        has_blocks = has_blocks || block >= 0;
    }
    result = OUT_OF_MEMORY;
    place = malloc((size_t)(tasks + 1) * sizeof *place);
    if (!place)
        goto done;
    result = MALFORMED;
    memset(dependency_start, 0, (size_t)(tasks + 1) * sizeof *dependency_start);
    for (int64_t at = 0; at < waits; at++) {
        if (edges[2 * at] >= tasks || edges[2 * at + 1] >= tasks)
            goto done;
        int32_t block = rows[(int64_t)edges[2 * at] * DRAFT_COLUMNS + DRAFT_BLOCK];
        dependency_start[(block < 0 ? new[edges[2 * at]] : new[block]) + 1]++;
    }
    for (int64_t task = 0; task < tasks; task++) {
        dependency_start[task + 1] += dependency_start[task];
        place[task] = dependency_start[task];
    }
    for (int64_t at = 0; at < waits; at++) {
        int32_t block = rows[(int64_t)edges[2 * at] * DRAFT_COLUMNS + DRAFT_BLOCK];
        int32_t other = rows[(int64_t)edges[2 * at + 1] * DRAFT_COLUMNS + DRAFT_BLOCK];
        uint32_t task = block < 0 ? new[edges[2 * at]] : new[block];
        dependency[place[task]++] =
            (int32_t)(other < 0 ? new[edges[2 * at + 1]] : new[other + 1]);
    }
    for (int64_t at = 0; at < 2 * n_begins; at++) {
        if (begins[at] < 0 || begins[at] >= tasks)
            goto done;
        begins[at] = (int32_t)new[begins[at]];
    }
    /* Two tasks of a block may wait for the same. */
    result = has_blocks ? without_repeats(tasks, dependency_start, dependency) : waits;
done:
    free(place);
    free(old);
    return result;
}
