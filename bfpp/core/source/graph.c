/* What is asked of every task graph; the reference is `bfpp/schedules/graph/task_columns.py`. */
#include "graph.h"

#include <stdlib.h>

/* For each task, the last one before it on each of its two lanes, or -1; false if malformed.
 *
 * `first[task + 1]` counts how many come next to a task.
 */
static bool find_lane_neighbours(
    int64_t tasks, int64_t lanes, const int32_t *lane, const int32_t *peer_lane, int32_t *last,
    int32_t *ahead, int64_t *first)
{
    for (int64_t each = 0; each < lanes; each++)
        last[each] = -1;
    for (int64_t task = 0; task < tasks; task++) {
        if (lane[task] < 0 || lane[task] >= lanes || peer_lane[task] >= lanes)
            return false;
        for (int side = 0; side < 2; side++) {
            int32_t queue = side ? peer_lane[task] : lane[task];
            int32_t before = queue >= 0 ? last[queue] : -1;
            ahead[2 * task + side] = before;
            if (queue >= 0)
                last[queue] = (int32_t)task;
            if (before >= 0)
                first[before + 1]++;
        }
    }
    return true;
}

/* Count the dependents of each task in `first[task + 1]`; false if malformed. */
static bool count_dependents(
    int64_t tasks, int64_t dependencies, const int64_t *start, const int32_t *dependency,
    int64_t *first)
{
    if (start[0] != 0 || start[tasks] != dependencies)
        return false;
    for (int64_t task = 0; task < tasks; task++)
        if (start[task] > start[task + 1])
            return false;
    for (int64_t at = 0; at < dependencies; at++) {
        if (dependency[at] < 0 || dependency[at] >= tasks)
            return false;
        first[dependency[at] + 1]++;
    }
    return true;
}

/* For each task those that wait for it: its dependents, and then the next on its lanes.
 *
 * Returns how many `follower` lists; those of a task begin at `first[task]`.
 * `TaskColumns.followers`.
 */
int64_t bfpp_followers(
    int64_t tasks, int64_t lanes, int64_t dependencies, const int32_t *lane,
    const int32_t *peer_lane, const int64_t *dependency_start, const int32_t *dependency,
    int64_t *first, int32_t *follower)
{
    int32_t *last = malloc((size_t)(lanes + 2 * tasks + 1) * sizeof *last);
    int64_t *place = malloc((size_t)(tasks + 1) * sizeof *place);
    int64_t result = OUT_OF_MEMORY;
    if (!last || !place)
        goto done;
    result = MALFORMED;
    int32_t *ahead = last + lanes;
    for (int64_t task = 0; task <= tasks; task++)
        first[task] = 0;
    if (!find_lane_neighbours(tasks, lanes, lane, peer_lane, last, ahead, first) ||
        !count_dependents(tasks, dependencies, dependency_start, dependency, first))
        goto done;
    for (int64_t task = 0; task < tasks; task++) {
        first[task + 1] += first[task];
        place[task] = first[task];
    }
    for (int64_t task = 0; task < tasks; task++)
        for (int64_t at = dependency_start[task]; at < dependency_start[task + 1]; at++)
            follower[place[dependency[at]]++] = (int32_t)task;
    for (int64_t end = 0; end < 2 * tasks; end++)
        if (ahead[end] >= 0)
            follower[place[ahead[end]]++] = (int32_t)(end / 2);
    result = first[tasks];
done:
    free(last);
    free(place);
    return result;
}

/* Kinds so far: lists in the order of their codes, one for each operation and unit, or for
 * each operation and rank where tasks are of no unit.
 */
struct kinds {
    int64_t count;
    int64_t *code, *head, *following, *task;
};

/* The kind of that code in the list of that number; made of a `task` if it is new. */
static int64_t find_kind(struct kinds *kinds, int64_t list, int64_t code, int64_t task)
{
    int64_t before = -1, kind = kinds->head[list];
    while (kind >= 0 && kinds->code[kind] < code) {
        before = kind;
        kind = kinds->following[kind];
    }
    if (kind >= 0 && kinds->code[kind] == code)
        return kind;
    int64_t made = kinds->count++;
    kinds->code[made] = code;
    kinds->task[made] = task;
    kinds->following[made] = kind;
    if (before < 0)
        kinds->head[list] = made;
    else
        kinds->following[before] = made;
    return made;
}

/* The codes of the kinds of tasks in order, the first task of each, and the kind of each task.
 *
 * Tasks of one kind differ in neither operation, unit, rank nor peer. `place` is that of each
 * operation in the order of codes. Returns the number of kinds. `TaskGraph.kinds`.
 */
int64_t bfpp_kinds(
    int64_t tasks, int64_t operations, int64_t units, int64_t ranks, const int8_t *operation,
    const int32_t *unit, const int32_t *rank, const int32_t *peer, const int32_t *place,
    int64_t *code, int32_t *first, int32_t *kind_of_task)
{
    int64_t result = MALFORMED, width = units + ranks, lists = operations * width;
    if (units < 0 || ranks < 1 ||
        (double)operations * ((double)units + 1) * (double)ranks * ((double)ranks + 1) > 9e18)
        return MALFORMED; /* codes would not fit 64 bits */
    int64_t *scratch = malloc((size_t)(lists + 3 * tasks + 1) * sizeof *scratch);
    if (!scratch)
        return OUT_OF_MEMORY;
    int64_t *head = scratch, *following = head + lists, *task_of = following + tasks;
    int64_t *numbers = task_of + tasks;
    struct kinds kinds = {0, numbers, head, following, task_of};
    for (int64_t list = 0; list < lists; list++)
        head[list] = -1;
    for (int64_t task = 0; task < tasks; task++) {
        if (operation[task] < 0 || operation[task] >= operations || unit[task] < -1 ||
            unit[task] >= units || rank[task] < 0 || rank[task] >= ranks || peer[task] < -1 ||
            peer[task] >= ranks)
            goto done;
        int64_t own = place[operation[task]];
        if (own < 0 || own >= operations)
            goto done;
        int64_t list = own * width + (unit[task] < 0 ? rank[task] : ranks + unit[task]);
        int64_t number = own * (units + 1) + unit[task] + 1;
        number = (number * ranks + rank[task]) * (ranks + 1) + peer[task] + 1;
        kind_of_task[task] = (int32_t)find_kind(&kinds, list, number, task);
    }
    result = 0;
    for (int64_t list = 0; list < lists; list++)
        for (int64_t kind = head[list], next; kind >= 0; kind = next) {
            next = following[kind];
            code[result] = numbers[kind];
            first[result] = (int32_t)task_of[kind];
            following[kind] = result++; /* from now on, its place */
        }
    for (int64_t task = 0; task < tasks; task++)
        kind_of_task[task] = (int32_t)following[kind_of_task[task]];
done:
    free(scratch);
    return result;
}

/* Which tasks are compute steps, and which are part of passes; returns whether any is backward.
 *
 * By the operations that compute, and those that do so backward. `TaskColumns.is_compute`.
 */
int64_t bfpp_flags(
    int64_t tasks, int64_t operations, const int8_t *operation, const int32_t *piece,
    const bool *computes, const bool *backward, bool *is_compute, bool *is_pass)
{
    bool trains = false;
    for (int64_t task = 0; task < tasks; task++) {
        if (operation[task] < 0 || operation[task] >= operations)
            return MALFORMED;
        is_compute[task] = computes[operation[task]];
        is_pass[task] = is_compute[task] || piece[task] >= 0;
        trains = trains || backward[operation[task]];
    }
    return trains;
}
