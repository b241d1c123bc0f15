/* From the table of steps to the columns of a graph: the theory is at the head of
 * `bfpp/schedules/lowering/__init__.py`, the reference is the object lowering of the benchmarks.
 */
#include <stdlib.h>

#include "../graph.h"
#include "../lanes.h"
#include "draft.h"

/* The lanes of tasks, which are those of their kinds; returns how many lanes there are. */
static int64_t lanes_of_kinds(
    int64_t tasks, int64_t kinds, int64_t ranks, int64_t streams, int64_t operations,
    const int8_t *operation, const int32_t *first, const int32_t *stream_of,
    const int32_t *arrives_on, const bool *by_peer, int32_t *columns, int32_t *lanes)
{
    int32_t *of_kinds = malloc((size_t)(5 * kinds + 1) * sizeof *of_kinds);
    if (!of_kinds)
        return OUT_OF_MEMORY;
    int32_t *rank = of_kinds, *peer = rank + kinds, *lane = peer + kinds;
    int32_t *peer_lane = lane + kinds;
    int8_t *codes = (int8_t *)(peer_lane + kinds);
    for (int64_t kind = 0; kind < kinds; kind++) {
        codes[kind] = operation[first[kind]];
        rank[kind] = columns[first[kind]];
        peer[kind] = columns[PEER_COLUMN * tasks + first[kind]];
    }
    int64_t count = bfpp_find_lanes(
        kinds, ranks, streams, operations, 2 * kinds, codes, rank, peer, stream_of, arrives_on,
        by_peer, lane, peer_lane, lanes);
    for (int64_t task = 0; count >= 0 && task < tasks; task++) {
        int32_t kind = columns[KIND_COLUMN * tasks + task];
        columns[LANE_COLUMN * tasks + task] = lane[kind];
        columns[PEER_LANE_COLUMN * tasks + task] = peer_lane[kind];
    }
    free(of_kinds);
    return count;
}

/* Make the tasks of a step: their columns, what each waits for and what waits for it, kinds, lanes
 * and flags, as `graph.h` and `lanes.h` have them. Returns why it cannot be, or DRAFTED; tasks that
 * begin no earlier than a step are listed with it in `begins`. */
int64_t bfpp_lower(
    int64_t ranks, int64_t units, int64_t microbatches, int64_t steps, int64_t copies,
    int64_t most_tasks, int64_t most_edges, int64_t operations, int64_t phases, int64_t n_made,
    int64_t n_waits, int64_t streams, const int32_t *operation, const int32_t *rank,
    const int32_t *unit, const int32_t *microbatch, const int32_t *before_step,
    const int32_t *block, const int32_t *round_of, const int64_t *bounds,
    const int32_t *rank_of_unit, const int32_t *unit_on_rank, const int32_t *peer_of_rank,
    const int32_t ends[2], const int64_t rules[10], const int32_t made_by[10],
    const int32_t *phase, const int32_t *made, const int32_t *scope, const int32_t *after,
    const int32_t *before, const int64_t *wait_bounds, const int32_t *waits, const bool *all,
    const int32_t *place, const int32_t *stream_of, const int32_t *arrives_on,
    const bool *by_peer, const bool *computes, const bool *backward, int8_t *operation_of,
    int32_t *columns, int64_t *dependency_start, int32_t *dependency, int64_t *follower_start,
    int32_t *follower, bool *is_compute, bool *is_pass, int64_t *code, int32_t *first,
    int32_t *lanes, int32_t *begins, int64_t counts[8])
{
    struct draft draft = {
        .ranks = ranks, .units = units, .microbatches = microbatches, .steps = steps,
        .copies = copies, .operations = operations, .phases = phases, .operation = operation,
        .rank = rank, .unit = unit, .microbatch = microbatch, .before_step = before_step,
        .block = block, .round_of = round_of, .bounds = bounds, .rank_of_unit = rank_of_unit,
        .unit_on_rank = unit_on_rank, .peer_of_rank = peer_of_rank, .ends = ends, .rules = rules,
        .made_by = made_by, .most_tasks = most_tasks, .most_edges = most_edges, .begins = begins,
    };
    struct made tables = {n_made, made, scope, after, before, wait_bounds, waits, all};
    struct numbered numbered = {operation_of, columns, dependency, dependency_start};
    draft.key = malloc(
        (size_t)(most_tasks + 1) * sizeof *draft.key +
        (size_t)(most_tasks * DRAFT_COLUMNS) * sizeof *draft.rows +
        (size_t)(2 * most_edges) * sizeof *draft.edges);
    if (!draft.key)
        return OUT_OF_MEMORY;
    draft.rows = (int32_t *)(draft.key + most_tasks);
    draft.edges = (uint32_t *)(draft.rows + most_tasks * DRAFT_COLUMNS);
    counts[OF_UNIT] = NONE;
    int64_t result = draft_tasks(&draft, &tables, n_waits, &counts[OF_UNIT]);
    if (result != DRAFTED)
        goto done;
    int64_t tasks = draft.tasks;
    const int32_t *ranks_of = columns, *peers = columns + PEER_COLUMN * tasks;
    const int32_t *units_of = columns + UNIT_COLUMN * tasks;
    int32_t *kinds = columns + KIND_COLUMN * tasks;
    counts[OF_TASKS] = tasks;
    counts[OF_BEGINS] = draft.bounded;
    result = counts[OF_WAITS] = number_tasks(&draft, phase, &numbered);
    if (result >= 0)
        result = counts[OF_KINDS] = bfpp_kinds(
            tasks, operations, units, ranks, operation_of, units_of, ranks_of, peers, place, code,
            first, kinds);
    if (result >= 0)
        result = counts[OF_LANES] = lanes_of_kinds(
            tasks, counts[OF_KINDS], ranks, streams, operations, operation_of, first, stream_of,
            arrives_on, by_peer, columns, lanes);
    if (result >= 0)
        result = counts[OF_FOLLOWERS] = bfpp_followers(
            tasks, counts[OF_LANES], counts[OF_WAITS], columns + LANE_COLUMN * tasks,
            columns + PEER_LANE_COLUMN * tasks, dependency_start, dependency, follower_start,
            follower);
    if (result >= 0)
        result = counts[OF_TRAINS] = bfpp_flags(
            tasks, operations, operation_of, columns + PIECE_COLUMN * tasks, computes, backward,
            is_compute, is_pass);
    if (result >= 0)
        result = DRAFTED;
done:
    free(draft.key);
    return result;
}
