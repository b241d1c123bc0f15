/* From the table of steps to the columns of a graph: the theory is at the head of
 * `bfpp/schedules/lowering/__init__.py`, the reference is the object lowering of the benchmarks.
 *
 * Nothing here knows an operation but the four passes: tables say which one is made when, after
 * what, and before what.
 */
#include <stdlib.h>
#include <string.h>

#include "../graph.h"
#include "../lanes.h"
#include "draft.h"

/* What is given */

static bool is_in(int64_t value, int64_t least, int64_t end) { return value >= least && value < end; }

static bool has_wrong_steps(const struct draft *draft)
{
    for (int64_t rank = 0; rank < draft->ranks; rank++) {
        if (draft->bounds[rank] >= draft->bounds[rank + 1] || draft->bounds[rank] < 0 ||
            draft->bounds[rank + 1] > draft->steps)
            return true;
        for (int64_t step = draft->bounds[rank]; step < draft->bounds[rank + 1]; step++)
            if (draft->rank[step] != rank)
                return true;
    }
    if (draft->bounds[0] != 0 || draft->bounds[draft->ranks] != draft->steps)
        return true;
    for (int64_t step = 0; step < draft->steps; step++) {
        int64_t block = draft->block[step];
        if (!is_in(draft->operation[step], 0, PASSES) ||
            !is_in(draft->unit[step], 0, draft->units) ||
            !is_in(draft->microbatch[step], 0, draft->microbatches) ||
            !is_in(draft->before_step[step], NONE, draft->steps) ||
            !is_in(draft->round_of[step], 0, INT32_MAX - 2))
            return true;
        if (block != NONE &&
            (!is_in(step - block, 0, 2) || block < 0 || block + 1 >= draft->steps ||
             draft->block[block] != block || draft->block[block + 1] != block))
            return true;
    }
    return false;
}

static bool has_wrong_layout(const struct draft *draft)
{
    for (int64_t unit = 0; unit < draft->units; unit++)
        if (!is_in(draft->rank_of_unit[unit], 0, draft->ranks))
            return true;
    for (int64_t rank = 0; rank < draft->ranks; rank++)
        if (!is_in(draft->peer_of_rank[rank], NONE, draft->ranks))
            return true;
    return !is_in(draft->ends[0], NONE, draft->ranks) || !is_in(draft->ends[1], NONE, draft->ranks);
}

static bool is_wrong(const struct draft *draft)
{
    return draft->ranks < 1 || draft->units < 1 || draft->microbatches < 1 ||
           draft->steps > INT32_MAX / 8 || draft->rules[RULE_WEIGHT_BUFFERS] < 1 ||
           draft->rules[RULE_RUNS_AHEAD] < 0 ||
           (draft->rules[RULE_GATHERS_RUNS] && !draft->rules[RULE_GATHERS]) ||
           has_wrong_steps(draft) || has_wrong_layout(draft);
}

static bool has_wrong_tables(const struct draft *draft, const struct made *made, int64_t n_waits)
{
    for (int64_t kind = MADE_SENDING_OUTPUT; kind <= MADE_AFTER_RUNS; kind++)
        if (!is_in(draft->made_by[kind], PASSES, draft->operations))
            return true;
    if (made->wait_bounds[0] != 0 || made->wait_bounds[made->count] != n_waits)
        return true;
    for (int64_t each = 0; each < made->count; each++) {
        int64_t begin = made->wait_bounds[each], end = made->wait_bounds[each + 1];
        if (!is_in(made->operation[each], PASSES, draft->operations) || begin > end ||
            (made->scope[each] == SCOPE_UNIT && !made->after[each] && begin == end))
            return true;
    }
    for (int64_t at = 0; at < n_waits; at++)
        if (!is_in(made->waits[at], 0, draft->operations))
            return true;
    return draft->rules[RULE_OFFLOAD] && draft->rules[RULE_OFFLOAD_AHEAD] < 1;
}

/* Tasks */

/* Make the tasks of a step, and what each waits for, by provisional number. Returns why it cannot
 * be, with the unit that is gathered or reduced too late, or DRAFTED. */
static int64_t draft_tasks(
    struct draft *draft, const struct made *made, int64_t n_waits, int64_t *late_unit)
{
    struct runs runs = {0};
    int64_t result = OUT_OF_MEMORY;
    if (draft->steps > draft->most_tasks || is_wrong(draft) ||
        has_wrong_tables(draft, made, n_waits))
        return MALFORMED;
    draft->first_task = calloc(2 * (size_t)draft->operations, sizeof *draft->first_task);
    draft->end_task = draft->first_task ? draft->first_task + draft->operations : NULL;
    if (!draft->first_task || !find_runs(draft, &runs))
        goto done;
    add_compute(draft, &runs);
    if (!add_transfers(draft) || (draft->rules[RULE_OFFLOAD] && !add_offloads(draft)))
        goto done;
    result = add_gathers(draft, &runs, late_unit);
    if (result == DRAFTED)
        result = add_reductions(draft, &runs, late_unit);
    if (result == DRAFTED && !draft->full && !add_made(draft, made))
        result = OUT_OF_MEMORY;
    if (draft->full || draft->is_malformed)
        result = MALFORMED;
done:
    free(draft->first_task);
    free(runs.memory);
    return result;
}

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

/* Count the tasks that gather and reduce each unit, without making them; returns 0. Where two ranks
 * have copies of a unit, a task is of both. */
int64_t bfpp_count_exchanges(
    int64_t ranks, int64_t units, int64_t microbatches, int64_t steps, int64_t copies,
    const int32_t *operation, const int32_t *rank, const int32_t *unit, const int32_t *microbatch,
    const int32_t *before_step, const int32_t *block, const int32_t *round_of,
    const int64_t *bounds, const int32_t *rank_of_unit, const int32_t *unit_on_rank,
    const int32_t *peer_of_rank, const int32_t ends[2], const int64_t rules[10],
    int64_t *gathers, int64_t *reductions)
{
    struct draft draft = {
        .ranks = ranks, .units = units, .microbatches = microbatches, .steps = steps,
        .copies = copies, .operation = operation, .rank = rank, .unit = unit,
        .microbatch = microbatch, .before_step = before_step, .block = block,
        .round_of = round_of, .bounds = bounds, .rank_of_unit = rank_of_unit,
        .unit_on_rank = unit_on_rank, .peer_of_rank = peer_of_rank, .ends = ends, .rules = rules,
    };
    struct runs runs = {0};
    if (is_wrong(&draft))
        return MALFORMED;
    bool known = find_runs(&draft, &runs);
    const struct turns *turns[] = {&runs.gathers, &runs.reductions};
    int64_t *counts[] = {gathers, reductions};
    for (int of = 0; of < 2 && known; of++) {
        memset(counts[of], 0, (size_t)units * sizeof *counts[of]);
        for (int64_t task = 0; task < turns[of]->tasks; task++)
            counts[of][unit[runs.first[turns[of]->lead[task]]]]++;
    }
    free(runs.memory);
    return known ? 0 : OUT_OF_MEMORY;
}
