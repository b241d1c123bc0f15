/* Orders by a rule in numbers: ranks take the next pass by its keys, which are varied.
 *
 * A dispatch is a simulation in the order of time: of all ranks, the one that may start first runs
 * the pass that it has chosen. A choice holds until something of its rank has changed, so that a
 * pass costs two choices, and not one of each rank. Orders that a rule makes can run, since they
 * have run, and keep to the limits; a rule by which ranks wait for room for ever has no time.
 *
 * The reference is `tests/helpers/reference_dispatch.py`.
 */
#include "dispatching.h"

#include <math.h>
#include <string.h>

#include "random_draws.h"
#include "../scratch.h"

/* Of a rule: the key of each pass; the patience of each rank; what each stage's forward pass leaves
 * free of its rank's limit; and how long after one forward pass of the first stage the next may
 * start, and how long after its rank last had more room. */
struct Rule {
    double *keys, *patience, *room, *pace;
};

/* What a rank does next: the code of a pass, or -1, and when. */
struct Choice {
    int64_t code;
    double start;
    bool stale;
};

/* A dispatch as it goes. */
struct Dispatch {
    const struct Problem *problem;
    int64_t width;
    int32_t *words;
    struct Rule rule;
    int32_t *done, *came;   /* by pass: micro-batches that have run, and that have what they need */
    double *arrived;        /* by pass and micro-batch: when it has what it needs */
    double *sent;           /* by channel */
    double *free_at, *kept; /* by rank */
    double *begun;          /* by rank: when its first pass starts */
    int64_t *placed;        /* by rank: passes of its word */
    struct Choice *choice;  /* by rank */
    double paced;           /* the first stage waits until then */
};

static int64_t numbers_of_rule(const struct Problem *problem)
{
    return codes_of(problem) + problem->ranks + problem->stages + 2;
}

static struct Rule parts_of(const struct Problem *problem, double *rule)
{
    double *patience = rule + codes_of(problem), *room = patience + problem->ranks;
    return (struct Rule){rule, patience, room, room + problem->stages};
}

static struct Dispatch new_dispatch(
    const struct Problem *problem, int64_t width, struct Scratch *scratch)
{
    struct Dispatch dispatch = {.problem = problem, .width = width};
    int64_t codes = codes_of(problem), ranks = problem->ranks;
    int64_t passes = codes * problem->microbatches;
    dispatch.words = scratch_take(scratch, ranks * width, sizeof *dispatch.words);
    dispatch.done = scratch_take(scratch, codes, sizeof *dispatch.done);
    dispatch.came = scratch_take(scratch, codes, sizeof *dispatch.came);
    dispatch.arrived = scratch_take(scratch, passes, sizeof *dispatch.arrived);
    dispatch.sent = scratch_take(scratch, channels_of(problem), sizeof *dispatch.sent);
    dispatch.free_at = scratch_take(scratch, ranks, sizeof *dispatch.free_at);
    dispatch.kept = scratch_take(scratch, ranks, sizeof *dispatch.kept);
    dispatch.begun = scratch_take(scratch, ranks, sizeof *dispatch.begun);
    dispatch.placed = scratch_take(scratch, ranks, sizeof *dispatch.placed);
    dispatch.choice = scratch_take(scratch, ranks, sizeof *dispatch.choice);
    return dispatch;
}

static void begin(struct Dispatch *dispatch)
{
    const struct Problem *problem = dispatch->problem;
    size_t codes = (size_t)codes_of(problem), ranks = (size_t)problem->ranks;
    memset(dispatch->done, 0, codes * sizeof *dispatch->done);
    memset(dispatch->came, 0, codes * sizeof *dispatch->came);
    memset(dispatch->sent, 0, (size_t)channels_of(problem) * sizeof *dispatch->sent);
    memset(dispatch->free_at, 0, ranks * sizeof *dispatch->free_at);
    memset(dispatch->kept, 0, ranks * sizeof *dispatch->kept);
    memset(dispatch->placed, 0, ranks * sizeof *dispatch->placed);
    for (size_t rank = 0; rank < ranks; rank++)
        dispatch->choice[rank] = (struct Choice){-1, INFINITY, true};
    dispatch->paced = 0.0;
}

/* When the next micro-batch of a pass may start, infinite where that is not known yet. The first
 * stage waits until it is paced; a forward pass leaves its room of the limit free. */
static double ready_of(const struct Dispatch *dispatch, int64_t code)
{
    const struct Problem *problem = dispatch->problem;
    int64_t stages = problem->stages, microbatch = dispatch->done[code];
    if (microbatch == problem->microbatches)
        return INFINITY;
    if (code < stages) {
        int32_t rank = problem->rank[code];
        double more = problem->size[code] + dispatch->rule.room[code];
        if (dispatch->kept[rank] + more > problem->limit[rank])
            return INFINITY;
        if (!code)
            return dispatch->paced;
    } else if (microbatch >= dispatch->done[code - stages]) {
        return INFINITY;
    }
    if (code >= 2 * stages)
        return 0.0;
    if (dispatch->came[code] <= microbatch)
        return INFINITY;
    return dispatch->arrived[code * problem->microbatches + microbatch];
}

/* The pass of the least start, times the rank's patience, less its key. */
static struct Choice choose(const struct Dispatch *dispatch, int64_t rank)
{
    const struct Problem *problem = dispatch->problem;
    const struct Rule *rule = &dispatch->rule;
    double best = INFINITY;
    struct Choice choice = {-1, INFINITY, false};
    for (int32_t at = problem->first[rank]; at < problem->first[rank + 1]; at++)
        for (int64_t code = problem->stage[at]; code < codes_of(problem); code += problem->stages) {
            double ready = ready_of(dispatch, code);
            if (ready == INFINITY)
                continue;
            double start = larger(dispatch->free_at[rank], ready);
            double value = start * rule->patience[rank] - rule->keys[code];
            if (value < best) {
                best = value;
                choice.code = code;
                choice.start = start;
            }
        }
    return choice;
}

/* Brings the ranks' choices up to date; returns the rank that starts first. */
static int64_t first_to_start(struct Dispatch *dispatch)
{
    struct Choice *choice = dispatch->choice;
    int64_t first = 0;
    for (int64_t rank = 0; rank < dispatch->problem->ranks; rank++) {
        if (choice[rank].stale)
            choice[rank] = choose(dispatch, rank);
        if (choice[rank].start < choice[first].start)
            first = rank;
    }
    return first;
}

/* Run the pass that a rank has chosen. */
static void run(struct Dispatch *dispatch, int64_t rank)
{
    const struct Problem *problem = dispatch->problem;
    int64_t stages = problem->stages, last = codes_of(problem) - stages;
    int64_t code = dispatch->choice[rank].code, after = next_pass(problem, code);
    double start = dispatch->choice[rank].start, end = start + problem->seconds[code];
    dispatch->free_at[rank] = end;
    if (!dispatch->placed[rank])
        dispatch->begun[rank] = start;
    dispatch->words[rank * dispatch->width + dispatch->placed[rank]++] = (int32_t)code;
    int32_t microbatch = dispatch->done[code]++;
    if (code < stages) {
        dispatch->kept[rank] += problem->size[code];
        if (code == 0)
            dispatch->paced = larger(dispatch->paced, start + dispatch->rule.pace[0]);
    } else if (code >= last) {
        dispatch->kept[rank] -= problem->size[code - last];
        if (rank == problem->rank[0])
            dispatch->paced = larger(dispatch->paced, end + dispatch->rule.pace[1]);
    }
    dispatch->choice[rank].stale = true;
    if (after < 0)
        return;
    double arrived = arrival_of(problem, code, end, dispatch->sent);
    dispatch->arrived[after * problem->microbatches + microbatch] = arrived;
    dispatch->came[after]++;
    dispatch->choice[problem->rank[after]].stale = true;
}

/* Fill the words: the rank that may start first runs a pass, again and again. Returns how long they
 * take, infinite where passes wait for room for ever. */
static double dispatch_by(struct Dispatch *dispatch, struct Rule rule)
{
    const struct Problem *problem = dispatch->problem;
    dispatch->rule = rule;
    begin(dispatch);
    for (int64_t left = codes_of(problem) * problem->microbatches; left > 0; left--) {
        int64_t rank = first_to_start(dispatch);
        if (dispatch->choice[rank].code < 0)
            return INFINITY;
        run(dispatch, rank);
    }
    double longest = 0.0;
    for (int64_t rank = 0; rank < problem->ranks; rank++) {
        int32_t code = dispatch->words[rank * dispatch->width];
        double begun = dispatch->begun[rank], end = dispatch->free_at[rank];
        longest = larger(longest, time_of_rank(problem, rank, code, begun, end));
    }
    return longest;
}

static void vary_key(
    const struct Problem *problem, struct Rule rule, double step, struct Draws *draws)
{
    rule.keys[draw_below(draws, codes_of(problem))] += step;
}

/* One kind along all stages: more at one end than at the other, or alike. */
static void vary_kind(
    const struct Problem *problem, struct Rule rule, double step, struct Draws *draws)
{
    double *keys = rule.keys + draw_below(draws, problem->kinds) * problem->stages;
    double slope = step * (double)draw_below(draws, 2) / (double)problem->stages;
    for (int64_t stage = 0; stage < problem->stages; stage++)
        keys[stage] += step - slope * (double)stage;
}

/* Of one rank, or of all: with equal chances. */
static void vary_patience(
    const struct Problem *problem, struct Rule rule, double step, struct Draws *draws)
{
    (void)step;
    double factor = exp(0.5 * draw_normal(draws));
    int64_t one = draw_below(draws, 2 * problem->ranks);
    for (int64_t rank = 0; rank < problem->ranks; rank++)
        if (one == rank || one >= problem->ranks)
            rule.patience[rank] *= factor;
}

/* By the size of a stage, for it alone or from it to another one. */
static void vary_room(
    const struct Problem *problem, struct Rule rule, double step, struct Draws *draws)
{
    (void)step;
    int64_t stage = draw_below(draws, problem->stages);
    double change = problem->size[stage] * (double)(draw_below(draws, 3) - 1);
    int64_t other = draw_uniform(draws) < 0.5 ? draw_below(draws, problem->stages) : stage;
    int64_t from = stage < other ? stage : other, to = stage < other ? other : stage;
    for (int64_t each = from; each <= to; each++)
        rule.room[each] = larger(0.0, rule.room[each] + change);
}

static void vary_pace(
    const struct Problem *problem, struct Rule rule, double step, struct Draws *draws)
{
    (void)problem;
    double *pace = rule.pace + draw_below(draws, 2);
    *pace = larger(0.0, *pace + step);
}

typedef void Variation(const struct Problem *, struct Rule, double step, struct Draws *);

/* The chance of each kind of change, and of those before it. */
static const struct {
    double chance;
    Variation *vary;
} VARIATIONS[] = {
    {0.35, vary_key},
    {0.6, vary_kind},
    {0.75, vary_patience},
    {0.9, vary_room},
    {1.0, vary_pace},
};

/* Change a few numbers of a rule; `scale` is a typical time of a pass. */
static void vary(
    const struct Problem *problem, struct Rule rule, double scale, struct Draws *draws)
{
    for (int64_t left = 1 + draw_below(draws, 3); left > 0; left--) {
        double drawn = draw_uniform(draws);
        double step = draw_normal(draws) * scale;
        step *= exp2(2.0 * draw_uniform(draws) - 2.0); /* a quarter of it, to all */
        int kind = 0;
        while (drawn >= VARIATIONS[kind].chance)
            kind++;
        VARIATIONS[kind].vary(problem, rule, step, draws);
    }
}

/* Whether the words of every rank have room for all its passes, and it has one. */
static bool has_room(const struct Problem *problem, int64_t width)
{
    int64_t most = problem->kinds * problem->microbatches;
    for (int64_t rank = 0; rank < problem->ranks; rank++) {
        int64_t stages = problem->first[rank + 1] - problem->first[rank];
        if (!stages || stages * most > width)
            return false;
    }
    return true;
}

/* Vary the numbers of the rule so many times, and dispatch by them: each rank in turn runs the pass
 * of the least start, times its patience, less the pass's key.
 *
 * Leaves the best numbers and the words by them there, and fills how long these take: infinite
 * where by no rule tried the passes can run within the limits. Returns 0.
 */
int64_t bfpp_dispatch(
    PROBLEM_PARAMETERS, int64_t tries, double scale, int64_t seed, int64_t width, double *rule,
    int32_t *words, double taken[1])
{
    const struct Problem problem = PROBLEM_GIVEN;
    if (!is_valid(&problem) || !has_room(&problem, width))
        return MALFORMED;
    size_t numbers = (size_t)numbers_of_rule(&problem);
    struct Scratch scratch = {0};
    struct Draws draws;
    int64_t result = OUT_OF_MEMORY;
    struct Dispatch dispatch = new_dispatch(&problem, width, &scratch);
    double *trial = scratch_take(&scratch, (int64_t)numbers, sizeof *trial);
    if (scratch.failed)
        goto done;
    draws_begin(&draws, (uint32_t)seed);
    *taken = INFINITY;
    for (int64_t nth = 0; nth <= tries; nth++) {
        memcpy(trial, rule, numbers * sizeof *rule);
        if (nth)
            vary(&problem, parts_of(&problem, trial), scale, &draws);
        double step_time = dispatch_by(&dispatch, parts_of(&problem, trial));
        if (step_time < *taken)
            memcpy(words, dispatch.words, (size_t)(ranks * width) * sizeof *words);
        /* Of equal ones the last: rules drift over plains, and so come to where it is better. */
        if (step_time <= *taken) {
            *taken = step_time;
            memcpy(rule, trial, numbers * sizeof *rule);
        }
    }
    result = 0;
done:
    scratch_give_back(&scratch);
    return result;
}
