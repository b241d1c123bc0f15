/* Compute orders. References: `InSequences.steps` and
 * `ZeroBubble.steps` for the rules; the object lowering of the
 * benchmarks for the table of steps.
 *
 * A cell is a micro-batch at a stage, or, in the table, at a unit of it. The round of a step is its
 * turn where each rank runs one step a turn as soon as it can. */
#include "orders.h"

#include <stdlib.h>
#include <string.h>

static int64_t min_of(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t max_of(int64_t one, int64_t other) { return one > other ? one : other; }

/* Where the passes of a rank stand in its order, by their numbers: `passes` of each kind. */
struct places {
    int64_t passes, ahead, late;
};

static int64_t place_of_forward(const struct places *of, int64_t number)
{
    int64_t turn = number - of->ahead;
    if (of->late < 0)
        return number + max_of(turn, 0);
    return turn < 0 ? number : number + turn + 1 + max_of(turn - of->late + 1, 0);
}

static int64_t place_of_backward(const struct places *of, int64_t number)
{
    if (of->late < 0)
        return number + min_of(number + of->ahead + 1, of->passes);
    return number + min_of(number + of->ahead, of->passes) + max_of(number - of->late, 0);
}

static int64_t place_of_weight(const struct places *of, int64_t number)
{
    int64_t turn = number + of->late;
    return number + min_of(turn + 1, of->passes) + min_of(turn + of->ahead, of->passes);
}

/* Fill the orders of all ranks, one after the other: micro-batches in sequences, each of them
 * through all stages of a rank; `ahead` forward passes, then one forward and one backward in turn.
 *
 * With `late`, backward passes are in halves: after the forward passes ahead, an input half, a
 * weight half and a forward pass in turn, but the first `late` turns without a weight half.
 */
int64_t bfpp_in_sequences(
    int64_t ranks, int64_t held, int64_t steps, int64_t microbatches, int64_t sequence,
    const int32_t *stages, const int64_t *stage_start, const int64_t *ahead, const int64_t *late,
    int8_t *operation, int32_t *stage, int32_t *microbatch)
{
    if (sequence < 1 || microbatches < 1)
        return MALFORMED;
    int64_t begin = 0, kinds = late ? 3 : 2;
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t first_stage = stage_start[rank], end_stage = stage_start[rank + 1];
        if (first_stage < 0 || end_stage < first_stage || end_stage > held || ahead[rank] < 0 ||
            ahead[rank] > INT32_MAX || (late && late[rank] < 0))
            return MALFORMED;
        int64_t passes = (end_stage - first_stage) * microbatches, number = 0;
        if (begin + kinds * passes > steps)
            return MALFORMED;
        struct places of = {passes, ahead[rank], late ? min_of(late[rank], passes) : -1};
        for (int64_t first = 0; first < microbatches; first += sequence)
            for (int64_t turn = 0; turn < end_stage - first_stage; turn++)
                for (int64_t each = first; each < min_of(first + sequence, microbatches); each++) {
                    const int64_t at[] = {
                        begin + place_of_forward(&of, number),
                        begin + place_of_backward(&of, number),
                        late ? begin + place_of_weight(&of, number) : 0,
                    };
                    const int8_t code[] = {
                        FORWARD, late ? BACKWARD_INPUT : BACKWARD, BACKWARD_WEIGHT};
                    for (int64_t kind = 0; kind < kinds; kind++) {
                        operation[at[kind]] = code[kind];
                        microbatch[at[kind]] = (int32_t)each;
                        stage[at[kind]] =
                            kind ? stages[end_stage - 1 - turn] : stages[first_stage + turn];
                    }
                    number++;
                }
        begin += kinds * passes;
    }
    return begin;
}

/* What the checks of orders share. */
struct orders {
    int64_t ranks, steps, stages, copies, microbatches, slices;
    const int8_t *operation;
    const int32_t *stage, *microbatch, *placements;
    const bool *fused;
    const int64_t *bounds;
    int64_t *where;
};

static int64_t cell_of(const struct orders *orders, int64_t at)
{
    return orders->stage[at] * orders->microbatches + orders->microbatch[at];
}

static int64_t find_outside(const struct orders *orders)
{
    for (int64_t at = 0; at < orders->steps; at++) {
        int32_t stage = orders->stage[at], microbatch = orders->microbatch[at];
        if (orders->operation[at] < 0 || orders->operation[at] >= PASSES || stage < 0 ||
            stage >= orders->stages || microbatch < 0 || microbatch >= orders->microbatches) {
            orders->where[0] = at;
            return OUTSIDE;
        }
    }
    return RUNS;
}

/* `rank_of_cell` is of each cell, -1 to begin with; `runs_copy` of each copy of each stage. */
static int64_t find_misplaced(const struct orders *orders, int32_t *rank_of_cell, bool *runs_copy)
{
    for (int64_t rank = 0; rank < orders->ranks; rank++)
        for (int64_t at = orders->bounds[rank]; at < orders->bounds[rank + 1]; at++) {
            bool is_here = false;
            for (int64_t copy = 0; copy < orders->copies; copy++) {
                int64_t own = copy * orders->stages + orders->stage[at];
                if (orders->placements[own] == rank)
                    is_here = runs_copy[own] = true;
            }
            if (!is_here) {
                orders->where[0] = at;
                orders->where[1] = rank;
                return MISPLACED;
            }
        }
    for (int64_t rank = 0; rank < orders->ranks; rank++)
        for (int64_t at = orders->bounds[rank]; at < orders->bounds[rank + 1]; at++) {
            int32_t *holder = &rank_of_cell[cell_of(orders, at)];
            if (*holder >= 0 && *holder != rank) {
                orders->where[0] = at;
                orders->where[1] = rank;
                orders->where[2] = *holder;
                return RUN_TWICE;
            }
            *holder = (int32_t)rank;
        }
    for (int64_t own = 0; orders->copies > 1 && own < orders->copies * orders->stages; own++)
        if (!runs_copy[own]) {
            orders->where[0] = orders->placements[own];
            orders->where[1] = own % orders->stages;
            return IDLE_COPY;
        }
    return RUNS;
}

/* `times` counts the steps of each operation, by cell. Orders without any backward pass are whole.
 */
static int64_t find_incomplete(const struct orders *orders, int32_t *times)
{
    int64_t cells = orders->stages * orders->microbatches, backward = 0;
    for (int64_t at = 0; at < orders->steps; at++) {
        times[cell_of(orders, at) * PASSES + orders->operation[at]]++;
        if (orders->operation[at] != FORWARD)
            backward = 1;
    }
    for (int64_t cell = 0; cell < cells; cell++) {
        const int32_t *own = times + cell * PASSES;
        if (own[FORWARD] != 1 || own[BACKWARD] + own[BACKWARD_INPUT] != backward ||
            own[BACKWARD_INPUT] != own[BACKWARD_WEIGHT]) {
            orders->where[0] = cell;
            for (int64_t kind = 0; kind < PASSES; kind++)
                orders->where[1 + kind] = own[kind];
            return INCOMPLETE;
        }
    }
    return RUNS;
}

static int64_t find_wrong_block(const struct orders *orders)
{
    for (int64_t rank = 0; rank < orders->ranks; rank++)
        for (int64_t at = orders->bounds[rank]; at < orders->bounds[rank + 1]; at++) {
            if (!orders->fused[at])
                continue;
            int64_t after = at + 1;
            if (after == orders->bounds[rank + 1] || orders->fused[after] ||
                orders->operation[at] + orders->operation[after] != FORWARD + BACKWARD ||
                cell_of(orders, at) == cell_of(orders, after)) {
                orders->where[0] = at;
                orders->where[1] = rank;
                return WRONG_BLOCK;
            }
        }
    return RUNS;
}

/* Slices of a micro-batch are in turn forward, and in reverse backward. `place` is of each cell. */
static int64_t find_wrong_slices(const struct orders *orders, int32_t *place, bool forward)
{
    for (int64_t at = 0; at < orders->steps; at++)
        if (orders->operation[at] != BACKWARD_WEIGHT && (orders->operation[at] == FORWARD) == forward)
            place[cell_of(orders, at)] = (int32_t)at;
    int64_t cells = orders->stages * orders->microbatches;
    for (int64_t cell = 0; cell < cells; cell++) {
        int64_t microbatch = cell % orders->microbatches;
        if (microbatch % orders->slices == 0 || place[cell] < 0)
            continue;
        bool later = place[cell] > place[cell - 1];
        if (later != forward) {
            orders->where[0] = cell / orders->microbatches;
            orders->where[1] = microbatch / orders->slices;
            return WRONG_SLICES;
        }
    }
    return RUNS;
}

/* Why orders cannot run, or RUNS; the orders of ranks are within `bounds`. */
int64_t bfpp_find_fault(
    int64_t ranks, int64_t steps, int64_t stages, int64_t copies, int64_t microbatches,
    int64_t slices, const int8_t *operation, const int32_t *stage, const int32_t *microbatch,
    const bool *fused, const int64_t *bounds, const int32_t *placements, int64_t where[5])
{
    struct orders orders = {
        ranks, steps, stages, copies, microbatches, slices, operation,
        stage, microbatch, placements, fused, bounds, where,
    };
    if (stages < 1 || microbatches < 1 || slices < 1 || copies < 1)
        return MALFORMED;
    for (int64_t rank = 0; rank <= ranks; rank++)
        if (bounds[rank] < (rank ? bounds[rank - 1] : 0) || bounds[rank] > steps)
            return MALFORMED;
    if (bounds[0] != 0 || bounds[ranks] != steps)
        return MALFORMED;
    int64_t fault = find_outside(&orders);
    if (fault != RUNS)
        return fault;
    size_t cells = (size_t)(stages * microbatches);
    int32_t *of_cells = malloc(cells * (PASSES + 1) * sizeof *of_cells);
    bool *runs_copy = calloc((size_t)(copies * stages), sizeof *runs_copy);
    if (!of_cells || !runs_copy) {
        fault = OUT_OF_MEMORY;
        goto done;
    }
    int32_t *times = of_cells + cells;
    memset(of_cells, -1, cells * sizeof *of_cells);
    memset(times, 0, cells * PASSES * sizeof *times);
    fault = find_misplaced(&orders, of_cells, runs_copy);
    if (fault == RUNS)
        fault = find_incomplete(&orders, times);
    if (fault == RUNS)
        fault = find_wrong_block(&orders);
    for (int forward = 1; fault == RUNS && slices > 1 && forward >= 0; forward--) {
        memset(of_cells, -1, cells * sizeof *of_cells);
        fault = find_wrong_slices(&orders, of_cells, forward);
    }
done:
    free(of_cells);
    free(runs_copy);
    return fault;
}

/* The table of steps that is being made. */
struct table {
    int64_t ranks, units, steps, microbatches;
    int32_t *operation, *rank, *unit, *microbatch, *block, *before, *rounds;
    int64_t *bounds;
};

/* A step for each unit: in turn, backward in reverse. Those of a block are paired one by one, as
 * many as both of its stages have: each pair is a block, and those left over run alone. */
static void expand(
    struct table *table, const struct orders *orders, const int32_t *units_of_stage,
    const int64_t *first_unit)
{
    int64_t step = 0;
    for (int64_t rank = 0; rank < orders->ranks; rank++) {
        table->bounds[rank] = step;
        int64_t at = orders->bounds[rank];
        while (at < orders->bounds[rank + 1]) {
            int64_t together = orders->fused[at] ? 2 : 1, most = 0, least = INT64_MAX;
            for (int64_t each = at; each < at + together; each++) {
                most = max_of(most, units_of_stage[orders->stage[each]]);
                least = min_of(least, units_of_stage[orders->stage[each]]);
            }
            for (int64_t turn = 0; turn < most; turn++) {
                bool paired = together > 1 && turn < least;
                for (int64_t each = at; each < at + together; each++) {
                    int64_t units = units_of_stage[orders->stage[each]];
                    if (turn >= units)
                        continue;
                    bool is_forward = orders->operation[each] == FORWARD;
                    int64_t place = is_forward ? turn : units - 1 - turn;
                    table->operation[step] = orders->operation[each];
                    table->rank[step] = (int32_t)rank;
                    table->unit[step] = (int32_t)(first_unit[orders->stage[each]] + place);
                    table->microbatch[step] = orders->microbatch[each];
                    table->block[step] = paired ? (int32_t)(step - (each - at)) : -1;
                    step++;
                }
            }
            at += together;
        }
    }
    table->bounds[orders->ranks] = step;
}

/* The step whose output each step needs: its input, or the gradient of its output. */
static int find_inputs(struct table *table)
{
    size_t cells = (size_t)(table->units * table->microbatches);
    int32_t *forward_of = malloc(2 * cells * sizeof *forward_of);
    if (!forward_of)
        return OUT_OF_MEMORY;
    int32_t *gradient_of = forward_of + cells;
    memset(forward_of, -1, 2 * cells * sizeof *forward_of);
    for (int64_t step = 0; step < table->steps; step++) {
        int64_t cell = table->unit[step] * table->microbatches + table->microbatch[step];
        if (table->operation[step] == FORWARD)
            forward_of[cell] = (int32_t)step;
        else if (table->operation[step] != BACKWARD_WEIGHT)
            gradient_of[cell] = (int32_t)step;
    }
    for (int64_t step = 0; step < table->steps; step++) {
        int64_t unit = table->unit[step];
        int64_t cell = unit * table->microbatches + table->microbatch[step];
        if (table->operation[step] == FORWARD)
            table->before[step] = unit > 0 ? forward_of[cell - table->microbatches] : -1;
        else if (table->operation[step] == BACKWARD_WEIGHT)
            table->before[step] = gradient_of[cell];
        else if (unit == table->units - 1)
            table->before[step] = forward_of[cell];
        else
            table->before[step] = gradient_of[cell + table->microbatches];
    }
    free(forward_of);
    return 0;
}

/* The round of each step; how many ranks come to their end. `reached` is where each one stops.
 *
 * The steps of a block share the round of the second one, which is when it ends: what the first one
 * waits for is there by then, too. Ranks that wait for a step are a list: its first one by the
 * step, each next one by the rank. */
static int64_t find_rounds(struct table *table, int64_t *reached)
{
    int64_t ranks = table->ranks;
    int32_t *first_waiting = malloc((size_t)(table->steps + 3 * ranks + 1) * sizeof *first_waiting);
    if (!first_waiting)
        return OUT_OF_MEMORY;
    int32_t *next_waiting = first_waiting + table->steps;
    int32_t *clock = next_waiting + ranks, *ready = clock + ranks;
    memset(first_waiting, -1, (size_t)table->steps * sizeof *first_waiting);
    memset(table->rounds, -1, (size_t)table->steps * sizeof *table->rounds);
    int64_t ready_ranks = ranks;
    for (int64_t rank = 0; rank < ranks; rank++) {
        ready[rank] = (int32_t)rank;
        clock[rank] = -1;
        reached[rank] = table->bounds[rank];
    }
    while (ready_ranks > 0) {
        int32_t rank = ready[--ready_ranks], now = clock[rank];
        int64_t step = reached[rank];
        for (; step < table->bounds[rank + 1]; step++) {
            int64_t needed = table->before[step];
            if (needed >= 0) {
                if (table->block[needed] >= 0)
                    needed = table->block[needed] + 1;
                if (table->rounds[needed] < 0) {
                    next_waiting[rank] = first_waiting[needed];
                    first_waiting[needed] = rank;
                    break;
                }
                if (table->rounds[needed] > now)
                    now = table->rounds[needed];
            }
            table->rounds[step] = ++now;
            while (first_waiting[step] >= 0) {
                ready[ready_ranks] = first_waiting[step];
                first_waiting[step] = next_waiting[ready[ready_ranks]];
                ready_ranks++;
            }
        }
        reached[rank] = step;
        clock[rank] = now;
    }
    for (int64_t step = 0; step < table->steps; step++)
        if (table->block[step] >= 0)
            table->rounds[step] = table->rounds[table->block[step] + 1];
    int64_t ended = 0;
    for (int64_t rank = 0; rank < ranks; rank++)
        ended += reached[rank] == table->bounds[rank + 1];
    free(first_waiting);
    return ended;
}

/* Join orders that `bfpp_find_fault` finds no fault in to one table of steps; how many ranks come
 * to their end, and where each one stops. */
int64_t bfpp_join_orders(
    int64_t ranks, int64_t steps, int64_t stages, int64_t joined, int64_t microbatches,
    const int8_t *operation, const int32_t *stage, const int32_t *microbatch, const bool *fused,
    const int64_t *bounds, const int32_t *units_of_stage, int32_t *operation_of, int32_t *rank_of,
    int32_t *unit_of, int32_t *microbatch_of, int32_t *before, int32_t *block_of, int32_t *rounds,
    int64_t *joined_bounds, int64_t *reached)
{
    int64_t where[5], total = 0, units = 0, result = 0;
    struct orders orders = {
        ranks, steps, stages, 1, microbatches, 1, operation,
        stage, microbatch, NULL, fused, bounds, where,
    };
    if (microbatches < 1 || bounds[0] != 0 || bounds[ranks] != steps)
        return MALFORMED;
    for (int64_t rank = 0; rank < ranks; rank++)
        if (bounds[rank] > bounds[rank + 1])
            return MALFORMED;
    for (int64_t own = 0; own < stages; own++)
        if (units_of_stage[own] < 1)
            return MALFORMED;
    if (find_outside(&orders) != RUNS || find_wrong_block(&orders) != RUNS)
        return MALFORMED;
    for (int64_t at = 0; at < steps; at++)
        total += units_of_stage[stage[at]];
    if (total != joined || joined > INT32_MAX)
        return MALFORMED;
    int64_t *first_unit = malloc((size_t)(stages + 1) * sizeof *first_unit);
    if (!first_unit)
        return OUT_OF_MEMORY;
    for (int64_t own = 0; own < stages; own++) {
        first_unit[own] = units;
        units += units_of_stage[own];
    }
    struct table table = {
        ranks, units, joined, microbatches, operation_of, rank_of,
        unit_of, microbatch_of, block_of, before, rounds, joined_bounds,
    };
    expand(&table, &orders, units_of_stage, first_unit);
    free(first_unit);
    result = find_inputs(&table);
    return result < 0 ? result : find_rounds(&table, reached);
}
