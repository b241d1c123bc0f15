/* Runs, and which of them use which buffer.
 *
 * Buffers are given out before any task is made: who had a buffer before decides when the next
 * gather into it may be queued, and so its key. A sequence is the runs that take turns in some
 * buffers, in the order in which they begin: of a rank; where its forward and its backward runs are
 * under way at once, of each of the two, as turns of one would wait for the other's; and, where two
 * ranks have copies of a stage, of both ranks together, which gather and reduce as one.
 *
 * Copies may run a unit in different turns: the n-th run of the one meets the n-th of the other,
 * which is the only pairing in which neither waits for a run that waits for it.
 */
#include "draft.h"

#include <stdlib.h>
#include <string.h>

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
bool find_runs(struct draft *draft, struct runs *runs)
{
    size_t current = 2 * (size_t)draft->ranks * sizeof(int32_t);
    if (!allocate_runs(draft, runs))
        return false;
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
