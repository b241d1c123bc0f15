/* The lowering: its theory is at the head of `bfpp/schedules/lowering/__init__.py`, and the
 * reference is the object lowering of the benchmarks.
 *
 * A drafted task has a provisional number and a key (round, phase); tasks are numbered by their
 * keys, those of one key as they were drafted. Nothing here knows an operation but the four passes:
 * tables say which one is made when, after what, and before what. */
#include "lowering.h"
#include "orders.h"

#include <stdlib.h>
#include <string.h>

#define NONE (-1)
#define BEFORE (-1) /* the round before the first compute step */
#define GRADIENT_BUFFERS 2

/* Tasks of one operation that have one copy each: gathers, or reductions.
 * `of_run` is the task of each run, `lead` the run of the first copy (or the second's, where that
 * one has more runs), `following` the task that used the buffer before. */
struct turns {
    int64_t tasks;
    int32_t *of_run, *lead, *following, *buffer;
};

/* Runs of all ranks, in the order of their first steps: maximal segments of one unit among a rank's
 * forward steps, or its backward steps, or as many steps of it as a run may have. */
struct runs {
    int64_t count;
    int32_t *of_step, *first, *last, *length, *weight_buffer, *gradient_buffer;
    bool *overlaps; /* of each rank: a run begins before another has ended, or in a block with it */
    struct turns gathers, reductions;
    void *memory;
};

struct draft {
    int64_t ranks, units, microbatches, steps, copies, operations, phases;
    const int32_t *operation, *rank, *unit, *microbatch, *before_step, *block, *round_of;
    const int64_t *bounds;
    const int32_t *rank_of_unit, *unit_on_rank, *peer_of_rank, *ends;
    const int64_t *rules;
    const int32_t *made_by;
    int64_t most_tasks, most_edges, tasks, waits, bounded;
    int32_t *rows, *begins;
    int64_t *key;
    uint32_t *edges;
    int32_t *first_task, *end_task; /* of each operation that is made at one time */
    bool full, is_malformed;
};

static int64_t add_task(
    struct draft *draft, int64_t operation, int64_t rank, int64_t peer, int64_t unit, int64_t round)
{
    if (draft->tasks == draft->most_tasks) {
        draft->full = true;
        return 0;
    }
    int32_t *row = draft->rows + draft->tasks * DRAFT_COLUMNS;
    row[DRAFT_OPERATION] = (int32_t)operation;
    row[DRAFT_RANK] = (int32_t)rank;
    row[DRAFT_PEER] = (int32_t)peer;
    row[DRAFT_UNIT] = (int32_t)unit;
    row[DRAFT_MICROBATCH] = NONE;
    row[DRAFT_WEIGHT_BUFFER] = row[DRAFT_GRADIENT_BUFFER] = row[DRAFT_BLOCK] = NONE;
    draft->key[draft->tasks] = round;
    return draft->tasks++;
}

static int32_t *row_of(const struct draft *draft, int64_t task)
{
    return draft->rows + task * DRAFT_COLUMNS;
}

/* A task of a compute step's cell, in the round of a step. */
static int64_t add_of_cell(struct draft *draft, int64_t operation, int64_t step, int64_t when)
{
    int64_t task = add_task(
        draft, operation, draft->rank[step], NONE, draft->unit[step], draft->round_of[when]);
    row_of(draft, task)[DRAFT_MICROBATCH] = draft->microbatch[step];
    return task;
}

/* Let a task start only after another one has ended. */
static void depend(struct draft *draft, int64_t task, int64_t on)
{
    if (draft->waits == draft->most_edges) {
        draft->full = true;
        return;
    }
    draft->edges[2 * draft->waits] = (uint32_t)task;
    draft->edges[2 * draft->waits + 1] = (uint32_t)on;
    draft->waits++;
}

static bool is_forward(const struct draft *draft, int64_t step)
{
    return draft->operation[step] == FORWARD;
}

static bool adds_gradients(const struct draft *draft, int64_t step)
{
    return draft->operation[step] == BACKWARD || draft->operation[step] == BACKWARD_WEIGHT;
}

static int64_t cell_of(const struct draft *draft, int64_t step)
{
    return draft->unit[step] * draft->microbatches + draft->microbatch[step];
}

/* The last step of the block that a step is in, or the step. */
static int64_t end_of(const struct draft *draft, int64_t step)
{
    return draft->block[step] < 0 ? step : draft->block[step] + 1;
}

/* Runs */

static bool allocate_runs(struct draft *draft, struct runs *runs)
{
    size_t steps = (size_t)draft->steps + 1, size = 14 * steps * sizeof(int32_t);
    runs->memory = malloc(size + (size_t)draft->ranks);
    if (!runs->memory)
        return false;
    int32_t *next = runs->memory;
    int32_t **columns[] = {
        &runs->of_step, &runs->first, &runs->last, &runs->length,
        &runs->weight_buffer, &runs->gradient_buffer,
        &runs->gathers.of_run, &runs->gathers.lead, &runs->gathers.following, &runs->gathers.buffer,
        &runs->reductions.of_run, &runs->reductions.lead, &runs->reductions.following,
        &runs->reductions.buffer,
    };
    for (size_t each = 0; each < sizeof columns / sizeof *columns; each++, next += steps)
        *columns[each] = next;
    runs->overlaps = (bool *)next;
    memset(runs->overlaps, 0, (size_t)draft->ranks);
    return true;
}

/* The run of each step, and each run's first and last step. `current` is of each rank, by pass. */
static void find_segments(const struct draft *draft, struct runs *runs, int32_t *current)
{
    int64_t most = draft->rules[RULE_RUN_LENGTH];
    runs->count = 0;
    memset(current, -1, 2 * (size_t)draft->ranks * sizeof *current);
    for (int64_t step = 0; step < draft->steps; step++) {
        int32_t *run = &current[2 * draft->rank[step] + !is_forward(draft, step)];
        if (*run < 0 || draft->unit[runs->first[*run]] != draft->unit[step] ||
            runs->length[*run] == most) {
            *run = (int32_t)runs->count++;
            runs->first[*run] = (int32_t)step;
            runs->length[*run] = 0;
        }
        runs->last[*run] = (int32_t)step;
        runs->length[*run]++;
        runs->of_step[step] = *run;
        if (draft->block[step] >= 0)
            runs->overlaps[draft->rank[step]] = true;
    }
    for (int64_t run = 0; run + 1 < runs->count; run++)
        if (runs->first[run + 1] < runs->last[run])
            runs->overlaps[draft->rank[runs->first[run]]] = true;
    for (int64_t rank = 0; rank < draft->ranks; rank++) {
        int32_t peer = draft->peer_of_rank[rank];
        if (peer >= 0 && runs->overlaps[peer])
            runs->overlaps[rank] = true;
    }
}

/* Mark, in `of_run`, the runs before which weights are gathered; -1 is for those without. */
static void choose_gathered(const struct draft *draft, struct runs *runs, bool *seen)
{
    memset(runs->gathers.of_run, -1, (size_t)runs->count * sizeof(int32_t));
    if (!draft->rules[RULE_GATHERS])
        return;
    memset(seen, 0, (size_t)(draft->ranks * draft->units));
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t first = runs->first[run];
        bool *own = &seen[draft->rank[first] * draft->units + draft->unit[first]];
        if (draft->rules[RULE_GATHERS_RUNS] || !*own)
            runs->gathers.of_run[run] = 0;
        *own = true;
    }
}

/* Mark the runs after which gradients are reduced. */
static void choose_reduced(const struct draft *draft, struct runs *runs, bool *seen)
{
    memset(runs->reductions.of_run, -1, (size_t)runs->count * sizeof(int32_t));
    if (draft->rules[RULE_REDUCES_RUNS]) {
        for (int64_t step = 0; step < draft->steps; step++)
            if (adds_gradients(draft, step))
                runs->reductions.of_run[runs->of_step[step]] = 0;
        return;
    }
    memset(seen, 0, (size_t)(draft->ranks * draft->units));
    for (int64_t run = runs->count - 1; run >= 0; run--) {
        int32_t first = runs->first[run];
        bool *own = &seen[draft->rank[first] * draft->units + draft->unit[first]];
        if (!is_forward(draft, first) && !*own) {
            runs->reductions.of_run[run] = 0;
            *own = true;
        }
    }
}

/* A task for each of the chosen runs, and one for those that both copies run as their n-th; as many
 * as one copy has more are gathered and reduced with it, too. */
static bool number_turns(const struct draft *draft, const struct runs *runs, struct turns *turns)
{
    turns->tasks = 0;
    if (!draft->copies) {
        for (int64_t run = 0; run < runs->count; run++)
            if (turns->of_run[run] >= 0) {
                turns->of_run[run] = (int32_t)turns->tasks;
                turns->lead[turns->tasks++] = (int32_t)run;
            }
        return true;
    }
    /* Each run's turn among those of its pass on its copy; of each pass, where its pairs begin. */
    int64_t passes = 2 * draft->units;
    int32_t *turn = malloc((size_t)(2 * runs->count + 3 * passes + 1) * sizeof *turn);
    if (!turn)
        return false;
    int32_t *lead = turn + runs->count, *count = lead + runs->count, *begin = count + 2 * passes;
    memset(count, 0, 2 * (size_t)passes * sizeof *count);
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t first = runs->first[run], unit = draft->unit[first];
        bool is_second = draft->rank[first] != draft->rank_of_unit[unit];
        int64_t pass = 2 * unit + !is_forward(draft, first);
        if (turns->of_run[run] >= 0)
            turn[run] = count[is_second * passes + pass]++;
    }
    begin[0] = 0;
    for (int64_t pass = 0; pass < passes; pass++) {
        int32_t one = count[pass], other = count[passes + pass];
        begin[pass + 1] = begin[pass] + (one > other ? one : other);
    }
    memset(lead, -1, (size_t)runs->count * sizeof *lead);
    for (int of_first = 1; of_first >= 0; of_first--)
        for (int64_t run = 0; run < runs->count; run++) {
            int32_t first = runs->first[run], unit = draft->unit[first];
            if (turns->of_run[run] < 0)
                continue;
            if ((draft->rank[first] == draft->rank_of_unit[unit]) == of_first) {
                int32_t *of_pair = &lead[begin[2 * unit + !is_forward(draft, first)] + turn[run]];
                if (*of_pair < 0)
                    *of_pair = (int32_t)run;
            }
        }
    /* Tasks in the order of their leads, of which each leads one pair: until turns are taken,
     * `following` has the pair of each run that leads one, and `buffer` the task of each pair. */
    int64_t pairs = begin[passes];
    for (int64_t run = 0; run < runs->count; run++)
        turns->following[run] = NONE;
    for (int64_t pair = 0; pair < pairs; pair++)
        turns->following[lead[pair]] = (int32_t)pair;
    for (int64_t run = 0; run < runs->count; run++)
        if (turns->following[run] >= 0) {
            turns->buffer[turns->following[run]] = (int32_t)turns->tasks;
            turns->lead[turns->tasks++] = (int32_t)run;
        }
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t first = runs->first[run];
        int64_t pass = 2 * draft->unit[first] + !is_forward(draft, first);
        if (turns->of_run[run] >= 0)
            turns->of_run[run] = turns->buffer[begin[pass] + turn[run]];
    }
    free(turn);
    return true;
}

/* The rank of the pair that shares stages with a rank which has the smaller number. */
static int64_t first_of_pair(const struct draft *draft, int64_t rank)
{
    int32_t peer = draft->peer_of_rank[rank];
    return peer >= 0 && peer < rank ? peer : rank;
}

/* Which task used each one's buffer before it, and its buffer: in turns, in each sequence in the
 * order in which the first of a task's runs begins. `apart` sequences are of a rank. */
static bool take_turns(
    const struct draft *draft, const struct runs *runs, struct turns *turns, int64_t apart,
    int64_t buffers)
{
    int64_t sequences = draft->ranks * apart, rounds = 1;
    for (int64_t step = 0; step < draft->steps; step++)
        if (draft->round_of[step] + 2 > rounds)
            rounds = draft->round_of[step] + 2;
    size_t size = (size_t)(2 * turns->tasks + sequences * (buffers + 1) + rounds + 1);
    int32_t *soonest = malloc(size * sizeof *soonest);
    if (!soonest)
        return false;
    int32_t *in_order = soonest + turns->tasks, *turn = in_order + turns->tasks;
    int32_t *holders = turn + sequences, *place = holders + sequences * buffers;
    memset(turn, 0, (size_t)sequences * sizeof *turn);
    memset(place, 0, (size_t)rounds * sizeof *place);
    for (int64_t task = 0; task < turns->tasks; task++)
        soonest[task] = draft->round_of[runs->first[turns->lead[task]]];
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t task = turns->of_run[run], begins = draft->round_of[runs->first[run]];
        if (task >= 0 && begins < soonest[task])
            soonest[task] = begins;
    }
    for (int64_t task = 0; task < turns->tasks; task++)
        place[soonest[task] + 1]++;
    for (int64_t round = 1; round < rounds; round++)
        place[round] += place[round - 1];
    for (int64_t task = 0; task < turns->tasks; task++)
        in_order[place[soonest[task]]++] = (int32_t)task;
    for (int64_t at = 0; at < turns->tasks; at++) {
        int32_t task = in_order[at], first = runs->first[turns->lead[task]];
        int64_t rank = draft->rank[first], sequence = first_of_pair(draft, rank) * apart;
        if (apart > 1 && !is_forward(draft, first) && runs->overlaps[rank])
            sequence++;
        int32_t buffer = turn[sequence] % (int32_t)buffers;
        int32_t *holder = &holders[sequence * buffers + buffer];
        turns->buffer[task] = buffer;
        turns->following[task] = turn[sequence]++ >= buffers ? *holder : NONE;
        *holder = task;
    }
    free(soonest);
    return true;
}

/* Who gathers, reduces, and uses which buffer. What is gathered, or reduced, once a step has
 * buffers of its own for each unit; else runs take turns in few. */
static bool find_runs(struct draft *draft, struct runs *runs)
{
    size_t current = 2 * (size_t)draft->ranks * sizeof(int32_t);
    void *scratch = malloc(current + (size_t)(draft->ranks * draft->units));
    if (!scratch)
        return false;
    find_segments(draft, runs, scratch);
    choose_gathered(draft, runs, (bool *)scratch + current);
    choose_reduced(draft, runs, (bool *)scratch + current);
    free(scratch);
    struct turns *gathers = &runs->gathers, *reductions = &runs->reductions;
    int64_t buffers = draft->rules[RULE_WEIGHT_BUFFERS];
    bool in_turn = draft->rules[RULE_GATHERS_RUNS], by_run = draft->rules[RULE_REDUCES_RUNS];
    if (!number_turns(draft, runs, gathers) || !number_turns(draft, runs, reductions))
        return false;
    if (in_turn && !take_turns(draft, runs, gathers, 2, buffers))
        return false;
    if (by_run && !take_turns(draft, runs, reductions, 1, GRADIENT_BUFFERS))
        return false;
    for (int64_t run = 0; run < runs->count; run++) {
        int32_t first = runs->first[run], own = draft->unit_on_rank[draft->unit[first]];
        int32_t gather = gathers->of_run[run], reduction = reductions->of_run[run];
        bool apart = !is_forward(draft, first) && runs->overlaps[draft->rank[first]];
        runs->weight_buffer[run] =
            in_turn ? gathers->buffer[gather] + (apart ? (int32_t)buffers : 0) : own;
        runs->gradient_buffer[run] = own;
        if (by_run)
            runs->gradient_buffer[run] = reduction < 0 ? NONE : reductions->buffer[reduction];
    }
    for (int64_t task = 0; !in_turn && task < gathers->tasks; task++)
        gathers->following[task] = NONE;
    for (int64_t task = 0; !by_run && task < reductions->tasks; task++)
        reductions->following[task] = NONE;
    return true;
}

/* Tasks */

/* The compute steps; provisional numbers are their places in the table. */
static void add_compute(struct draft *draft, const struct runs *runs)
{
    for (int64_t step = 0; step < draft->steps; step++) {
        int64_t task = add_of_cell(draft, draft->operation[step], step, step);
        int32_t *row = row_of(draft, task), run = runs->of_step[step];
        row[DRAFT_WEIGHT_BUFFER] = runs->weight_buffer[run];
        if (adds_gradients(draft, step))
            row[DRAFT_GRADIENT_BUFFER] = runs->gradient_buffer[run];
        row[DRAFT_BLOCK] = draft->block[step];
        if (draft->full)
            return;
    }
}

/* Transfers of inputs from other ranks; inputs of the same rank are dependencies. */
static bool add_transfers(struct draft *draft)
{
    int32_t *consumer = malloc((size_t)(draft->steps + 1) * sizeof *consumer);
    if (!consumer)
        return false;
    memset(consumer, -1, (size_t)draft->steps * sizeof *consumer);
    for (int64_t step = 0; step < draft->steps; step++) {
        int32_t before = draft->before_step[step];
        if (before < 0)
            continue;
        if (draft->rank[before] == draft->rank[step])
            depend(draft, step, before);
        else
            consumer[before] = (int32_t)step;
    }
    for (int64_t step = 0; step < draft->steps; step++) {
        if (consumer[step] < 0)
            continue;
        int made = is_forward(draft, step) ? MADE_SENDING_OUTPUT : MADE_SENDING_GRADIENT;
        int64_t transfer = add_of_cell(draft, draft->made_by[made], step, step);
        row_of(draft, transfer)[DRAFT_PEER] = draft->rank[consumer[step]];
        depend(draft, transfer, step);
        depend(draft, consumer[step], transfer);
    }
    free(consumer);
    return true;
}

/* What offloading works out: for each forward step that is offloaded, its backward pass, the step
 * with which its reload may begin, and its copy to the host; the backward passes, rank by rank; and
 * for each step the copy that it waits for. */
struct offloads {
    int64_t passes;
    int32_t *backward, *reload, *copy, *waits_for, *pass, *forward_of;
};

/* With `ahead` of n, a reload begins with the backward pass n before the one that needs it. For the
 * first ones of a rank, the passes before the first backward pass count instead. */
static void choose_offloaded(const struct draft *draft, struct offloads *offloads)
{
    int64_t least = draft->rules[RULE_OFFLOAD], ahead = draft->rules[RULE_OFFLOAD_AHEAD];
    int64_t first = 0;
    for (int64_t step = 0; step < draft->steps; step++)
        if (is_forward(draft, step))
            offloads->forward_of[cell_of(draft, step)] = (int32_t)step;
    for (int64_t step = 0; step < draft->steps; step++) {
        if (is_forward(draft, step) || draft->operation[step] == BACKWARD_WEIGHT)
            continue;
        int64_t number = offloads->passes++;
        if (number > 0 && draft->rank[offloads->pass[number - 1]] != draft->rank[step])
            first = number;
        offloads->pass[number] = (int32_t)step;
        int64_t turn = number - first, back = ahead < turn ? ahead : turn;
        int64_t begin = offloads->pass[number - back] - (ahead - back);
        if (begin >= 0 && draft->block[begin] >= 0)
            begin = draft->block[begin];
        int32_t forward = offloads->forward_of[cell_of(draft, step)];
        if (forward >= 0 && step - forward > least && begin > end_of(draft, forward) + 1) {
            offloads->backward[forward] = (int32_t)step;
            offloads->reload[forward] = (int32_t)begin;
        }
    }
}

/* A pass waits until no more than `ahead` offloads before it are unfinished, and so does a reload
 * that begins with it. `left` lists the steps that are offloaded. */
static void add_copies_to_host(struct draft *draft, struct offloads *offloads, int32_t *left)
{
    int64_t ahead = draft->rules[RULE_OFFLOAD_AHEAD], count = 0;
    for (int64_t step = 0; step < draft->steps; step++) {
        if (offloads->backward[step] < 0)
            continue;
        int64_t copy = add_of_cell(draft, draft->made_by[MADE_OFFLOADING], step, step);
        depend(draft, copy, step);
        offloads->copy[step] = (int32_t)copy;
        left[count++] = (int32_t)step;
    }
    for (int64_t at = ahead; at < count; at++) {
        int32_t before = left[at - ahead], step = left[at];
        if (draft->rank[before] != draft->rank[step])
            continue;
        int64_t after = end_of(draft, step) + 1;
        if (after >= draft->steps) {
            draft->is_malformed = true;
            return;
        }
        depend(draft, after, offloads->copy[before]);
        offloads->waits_for[after] = offloads->copy[before];
    }
}

static void add_copies_from_host(struct draft *draft, const struct offloads *offloads)
{
    for (int64_t at = 0; at < offloads->passes; at++) {
        int32_t step = offloads->pass[at], forward = offloads->forward_of[cell_of(draft, step)];
        if (forward < 0 || offloads->backward[forward] < 0)
            continue;
        int32_t begin = offloads->reload[forward], own = offloads->copy[forward];
        int64_t reload = add_of_cell(draft, draft->made_by[MADE_RELOADING], step, begin - 1);
        depend(draft, reload, own);
        depend(draft, reload, begin - 1);
        int32_t other = offloads->waits_for[begin];
        if (other >= 0 && other != own)
            depend(draft, reload, other);
        depend(draft, step, reload);
    }
}

/* Copies of activations to the host after a forward pass, back before its backward pass; for passes
 * with enough others in between, one of them while the activations are not resident. */
static bool add_offloads(struct draft *draft)
{
    size_t steps = (size_t)draft->steps + 1, cells = (size_t)(draft->units * draft->microbatches);
    int32_t *memory = malloc((6 * steps + cells) * sizeof *memory);
    if (!memory)
        return false;
    memset(memory, -1, (6 * steps + cells) * sizeof *memory);
    struct offloads offloads = {
        0, memory, memory + steps, memory + 2 * steps, memory + 3 * steps, memory + 4 * steps,
        memory + 6 * steps,
    };
    choose_offloaded(draft, &offloads);
    add_copies_to_host(draft, &offloads, memory + 5 * steps);
    if (!draft->is_malformed)
        add_copies_from_host(draft, &offloads);
    free(memory);
    return true;
}

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
static int64_t add_gathers(struct draft *draft, const struct runs *runs, int64_t *late_unit)
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
static int64_t add_reductions(struct draft *draft, const struct runs *runs, int64_t *late_unit)
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

/* Tasks that tables declare */

struct made {
    int64_t count;
    const int32_t *operation, *scope, *after, *before;
    const int64_t *wait_bounds;
    const int32_t *waits;
    const bool *all;
};

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

static bool add_made(struct draft *draft, const struct made *made)
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
    return draft->rules[RULE_WEIGHT_BUFFERS] < 1 || draft->rules[RULE_RUNS_AHEAD] < 0 ||
           (draft->rules[RULE_GATHERS_RUNS] && !draft->rules[RULE_GATHERS]) ||
           (draft->rules[RULE_OFFLOAD] && draft->rules[RULE_OFFLOAD_AHEAD] < 1);
}

/* Make the tasks of a step, and what each waits for, by provisional number. Returns why it cannot
 * be, or DRAFTED; `counts` are of tasks, of waits, of tasks that begin no earlier than a step
 * (listed with it in `begins`), and the unit that is gathered or reduced too late. */
int64_t bfpp_draft(
    int64_t ranks, int64_t units, int64_t microbatches, int64_t steps, int64_t copies,
    int64_t most_tasks, int64_t most_edges, int64_t operations, int64_t phases, int64_t n_made,
    int64_t n_waits, const int32_t *operation, const int32_t *rank, const int32_t *unit,
    const int32_t *microbatch, const int32_t *before_step, const int32_t *block,
    const int32_t *round_of, const int64_t *bounds, const int32_t *rank_of_unit,
    const int32_t *unit_on_rank, const int32_t *peer_of_rank, const int32_t ends[2],
    const int64_t rules[10], const int32_t made_by[10], const int32_t *phase, const int32_t *made,
    const int32_t *scope, const int32_t *after, const int32_t *before, const int64_t *wait_bounds,
    const int32_t *waits, const bool *all, int32_t *rows, int64_t *key, uint32_t *edges,
    int32_t *begins, int64_t counts[4])
{
    struct draft draft = {
        .ranks = ranks, .units = units, .microbatches = microbatches, .steps = steps,
        .copies = copies, .operations = operations, .phases = phases, .operation = operation,
        .rank = rank, .unit = unit, .microbatch = microbatch, .before_step = before_step,
        .block = block, .round_of = round_of, .bounds = bounds, .rank_of_unit = rank_of_unit,
        .unit_on_rank = unit_on_rank, .peer_of_rank = peer_of_rank, .ends = ends, .rules = rules,
        .made_by = made_by, .most_tasks = most_tasks, .most_edges = most_edges, .rows = rows,
        .begins = begins, .key = key, .edges = edges,
    };
    struct made tables = {n_made, made, scope, after, before, wait_bounds, waits, all};
    struct runs runs = {0};
    int64_t result = OUT_OF_MEMORY, late_unit = NONE;
    if (ranks < 1 || units < 1 || microbatches < 1 || steps > most_tasks || steps > INT32_MAX / 8 ||
        has_wrong_steps(&draft) || has_wrong_layout(&draft) ||
        has_wrong_tables(&draft, &tables, n_waits))
        return MALFORMED;
    draft.first_task = calloc(2 * (size_t)operations, sizeof *draft.first_task);
    draft.end_task = draft.first_task ? draft.first_task + operations : NULL;
    if (!draft.first_task || !allocate_runs(&draft, &runs) || !find_runs(&draft, &runs))
        goto done;
    add_compute(&draft, &runs);
    if (!add_transfers(&draft) || (rules[RULE_OFFLOAD] && !add_offloads(&draft)))
        goto done;
    result = add_gathers(&draft, &runs, &late_unit);
    if (result == DRAFTED)
        result = add_reductions(&draft, &runs, &late_unit);
    if (result == DRAFTED && !draft.full && !add_made(&draft, &tables))
        result = OUT_OF_MEMORY;
    if (draft.full || draft.is_malformed)
        result = MALFORMED;
    for (int64_t task = 0; task < draft.tasks; task++)
        key[task] = key[task] * phases + phase[rows[task * DRAFT_COLUMNS + DRAFT_OPERATION]];
    counts[0] = draft.tasks;
    counts[1] = draft.waits;
    counts[2] = draft.bounded;
    counts[3] = late_unit;
done:
    free(draft.first_task);
    free(runs.memory);
    return result;
}

/* Numbering */

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
        if (key[task] < BEFORE * phases || key[task] > (int64_t)INT32_MAX * 2)
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
