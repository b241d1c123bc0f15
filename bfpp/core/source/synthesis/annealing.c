/* How long words of passes take, and shorter ones by simulated annealing.
 *
 * Only moves of passes on the critical path are drawn: no other can shorten it (van Laarhoven,
 * Aarts and Lenstra, Job shop scheduling by simulated annealing, 1992). A move changes one word
 * from some place on. All that starts before the pass at that place could is as it was, and is
 * copied; the rest is replayed. So a move late in the step costs little, and the times are those
 * of a whole replay, to the last bit.
 *
 * The reference of a replay is the engine, `bfpp/sim/engines/simpy_engine.py`; that of annealing is
 * `tests/helpers/reference_annealing.py`, which replays all passes after every move.
 */
#include "annealing.h"

#include <math.h>
#include <string.h>

#include "random_draws.h"
#include "../scratch.h"

/* What a pass starts after: the one before it on its rank, or what it needs. */
enum { RANK, DATA };

/* Words as they run: by rank and place, when passes start, after what, of which micro-batch. By
 * pass and micro-batch: its place in its rank's word, and when it has what it needs. */
struct Run {
    double *start;
    int8_t *bound;
    int32_t *turn;
    int32_t *place;
    double *arrived;
};

/* Words, and how far a replay of them is. */
struct Replay {
    const struct Problem *problem;
    int64_t width;
    int32_t *words;
    const int64_t *lengths;
    int32_t *done, *came; /* by pass: micro-batches that have run, and that have what they need */
    int64_t *at;          /* by rank: passes that have run */
    bool *waiting;        /* by rank: it may have a pass that can run */
    double *free_at;      /* by rank */
    double *sent;         /* by channel */
};

static struct Run new_run(const struct Replay *replay, struct Scratch *scratch)
{
    const struct Problem *problem = replay->problem;
    int64_t places = problem->ranks * replay->width;
    int64_t passes = codes_of(problem) * problem->microbatches;
    struct Run run = {
        .start = scratch_take(scratch, places, sizeof *run.start),
        .bound = scratch_take(scratch, places, sizeof *run.bound),
        .turn = scratch_take(scratch, places, sizeof *run.turn),
        .place = scratch_take(scratch, passes, sizeof *run.place),
        .arrived = scratch_take(scratch, passes, sizeof *run.arrived),
    };
    return run;
}

static struct Replay new_replay(
    const struct Problem *problem, int64_t width, int32_t *words, const int64_t *lengths,
    struct Scratch *scratch)
{
    struct Replay replay = {
        .problem = problem, .width = width, .words = words, .lengths = lengths};
    int64_t codes = codes_of(problem), ranks = problem->ranks;
    replay.done = scratch_take(scratch, codes, sizeof *replay.done);
    replay.came = scratch_take(scratch, codes, sizeof *replay.came);
    replay.at = scratch_take(scratch, ranks, sizeof *replay.at);
    replay.waiting = scratch_take(scratch, ranks, sizeof *replay.waiting);
    replay.free_at = scratch_take(scratch, ranks, sizeof *replay.free_at);
    replay.sent = scratch_take(scratch, channels_of(problem), sizeof *replay.sent);
    return replay;
}

/* Whether words hold passes of their ranks, each no more often than there are micro-batches; counts
 * them in the replay's `done`. */
static bool are_words(const struct Replay *replay)
{
    const struct Problem *problem = replay->problem;
    for (int64_t rank = 0; rank < problem->ranks; rank++) {
        int64_t length = replay->lengths[rank];
        if (length < 1 || length > replay->width)
            return false;
        for (int64_t at = 0; at < length; at++) {
            int32_t code = replay->words[rank * replay->width + at];
            if (code < 0 || code >= codes_of(problem) || problem->rank[code] != rank)
                return false;
            if (replay->done[code]++ == problem->microbatches)
                return false;
        }
    }
    return true;
}

static void begin(struct Replay *replay)
{
    const struct Problem *problem = replay->problem;
    size_t codes = (size_t)codes_of(problem), ranks = (size_t)problem->ranks;
    memset(replay->done, 0, codes * sizeof *replay->done);
    memset(replay->came, 0, codes * sizeof *replay->came);
    memset(replay->at, 0, ranks * sizeof *replay->at);
    memset(replay->waiting, true, ranks * sizeof *replay->waiting);
    memset(replay->free_at, 0, ranks * sizeof *replay->free_at);
    memset(replay->sent, 0, (size_t)channels_of(problem) * sizeof *replay->sent);
}

/* Take over from an old run what a change of one rank's word, from a place on, leaves as it was:
 * the passes before it, and those of other ranks that start before it could. */
static void keep(
    struct Replay *replay, int64_t changed, int64_t first, const struct Run *old, struct Run *run)
{
    const struct Problem *problem = replay->problem;
    double since = 0.0;
    if (first) {
        int64_t before = changed * replay->width + first - 1;
        since = old->start[before] + problem->seconds[replay->words[before]];
    }
    for (int64_t rank = 0; rank < problem->ranks; rank++) {
        int64_t base = rank * replay->width, place = 0;
        int64_t most = rank == changed ? first : replay->lengths[rank];
        for (; place < most; place++) {
            double start = old->start[base + place];
            if (rank != changed && start >= since)
                break;
            int64_t code = replay->words[base + place], after = next_pass(problem, code);
            int32_t microbatch = replay->done[code]++;
            run->start[base + place] = start;
            run->bound[base + place] = old->bound[base + place];
            run->turn[base + place] = microbatch;
            run->place[code * problem->microbatches + microbatch] = (int32_t)place;
            replay->free_at[rank] = start + problem->seconds[code];
            if (after < 0)
                continue;
            int64_t there = after * problem->microbatches + microbatch;
            run->arrived[there] = old->arrived[there];
            replay->came[after]++;
            int32_t channel = problem->channel[code];
            if (channel >= 0)
                replay->sent[channel] = larger(replay->sent[channel], old->arrived[there]);
        }
        replay->at[rank] = place;
    }
}

/* Run the passes of a rank's word that can run. Returns their number, or -1 where one never can: a
 * backward pass before its forward pass, or a weight half before its input half. */
static int64_t advance(struct Replay *replay, int64_t rank, struct Run *run)
{
    const struct Problem *problem = replay->problem;
    int64_t stages = problem->stages, base = rank * replay->width;
    int64_t from = replay->at[rank], place = from;
    for (; place < replay->lengths[rank]; place++) {
        int64_t code = replay->words[base + place], after = next_pass(problem, code);
        int32_t microbatch = replay->done[code];
        int64_t pass = code * problem->microbatches + microbatch;
        if (code >= stages && microbatch >= replay->done[code - stages])
            return -1;
        double start = replay->free_at[rank];
        run->bound[base + place] = RANK;
        if (0 < code && code < 2 * stages) {
            if (replay->came[code] <= microbatch)
                break;
            if (run->arrived[pass] > start) {
                start = run->arrived[pass];
                run->bound[base + place] = DATA;
            }
        }
        run->start[base + place] = start;
        run->turn[base + place] = microbatch;
        run->place[pass] = (int32_t)place;
        replay->free_at[rank] = start + problem->seconds[code];
        replay->done[code]++;
        if (after < 0)
            continue;
        double arrived = arrival_of(problem, code, replay->free_at[rank], replay->sent);
        run->arrived[after * problem->microbatches + microbatch] = arrived;
        replay->came[after]++;
        replay->waiting[problem->rank[after]] = true;
    }
    replay->at[rank] = place;
    return place - from;
}

static double time_at_end(
    const struct Replay *replay, int64_t rank, const struct Run *run, double end)
{
    int64_t base = rank * replay->width;
    return time_of_rank(replay->problem, rank, replay->words[base], run->start[base], end);
}

/* Fill a run of words that differ from those of the `old` run, if there is one, in the word of one
 * rank, from its place `first` on. Returns how long they take, infinite where they cannot run. */
static double run_words(
    struct Replay *replay, int64_t changed, int64_t first, const struct Run *old, struct Run *run)
{
    int64_t ranks = replay->problem->ranks;
    begin(replay);
    if (old)
        keep(replay, changed, first, old, run);
    bool moved;
    do {
        moved = false;
        for (int64_t rank = 0; rank < ranks; rank++) {
            if (!replay->waiting[rank])
                continue;
            replay->waiting[rank] = false;
            int64_t count = advance(replay, rank, run);
            if (count < 0)
                return INFINITY;
            moved |= count > 0;
        }
    } while (moved);
    double longest = 0.0;
    for (int64_t rank = 0; rank < ranks; rank++) {
        if (replay->at[rank] < replay->lengths[rank])
            return INFINITY;
        longest = larger(longest, time_at_end(replay, rank, run, replay->free_at[rank]));
    }
    return longest;
}

/* Fill the start of each pass of the words, and how long they take, infinite where they cannot
 * run. Returns 0. */
int64_t bfpp_replay_words(
    PROBLEM_PARAMETERS, int64_t width, const int32_t *words, const int64_t *lengths,
    double *start, double taken[1])
{
    const struct Problem problem = PROBLEM_GIVEN;
    if (!is_valid(&problem))
        return MALFORMED;
    struct Scratch scratch = {0};
    int64_t result = OUT_OF_MEMORY;
    struct Replay replay = new_replay(&problem, width, (int32_t *)words, lengths, &scratch);
    struct Run run = new_run(&replay, &scratch);
    if (scratch.failed)
        goto done;
    result = MALFORMED;
    if (!are_words(&replay))
        goto done;
    run.start = start;
    *taken = run_words(&replay, 0, 0, NULL, &run);
    result = 0;
done:
    scratch_give_back(&scratch);
    return result;
}

/* The rank that is busy last, or whose span is the longest. */
static int64_t last_rank(const struct Replay *replay, const struct Run *run)
{
    double latest = -1.0;
    int64_t busy_last = 0;
    for (int64_t rank = 0; rank < replay->problem->ranks; rank++) {
        int64_t last = rank * replay->width + replay->lengths[rank] - 1;
        double end = run->start[last] + replay->problem->seconds[replay->words[last]];
        double taken = time_at_end(replay, rank, run, end);
        if (taken > latest) {
            latest = taken;
            busy_last = rank;
        }
    }
    return busy_last;
}

/* The pass whose output this one waits for. */
static int64_t pass_before(const struct Problem *problem, int64_t code)
{
    int64_t stages = problem->stages;
    if (code < stages)
        return code - 1;
    return code + 1 < 2 * stages ? code + 1 : code - stages;
}

/* Fill the passes of the critical path, from its end, that wait for their own rank: where they
 * stand among the words. Returns how many there are. A path passes no pass twice, unless seconds
 * are negative. */
static int64_t critical(const struct Replay *replay, const struct Run *run, int64_t *path)
{
    const struct Problem *problem = replay->problem;
    int64_t rank = last_rank(replay, run), count = 0;
    int64_t at = replay->lengths[rank] - 1;
    for (int64_t hop = problem->ranks * replay->width; hop > 0 && at >= 0; hop--) {
        int64_t here = rank * replay->width + at;
        if (run->bound[here] == RANK) {
            path[count++] = here;
            at--;
            continue;
        }
        int64_t code = pass_before(problem, replay->words[here]);
        rank = problem->rank[code];
        at = run->place[code * problem->microbatches + run->turn[here]];
    }
    return count;
}

/* Whether a rank's word keeps to its limit. */
static bool is_within(const struct Replay *replay, int64_t rank)
{
    const struct Problem *problem = replay->problem;
    const int32_t *word = replay->words + rank * replay->width;
    int64_t stages = problem->stages, last = codes_of(problem) - stages;
    double kept = 0.0;
    for (int64_t at = 0; at < replay->lengths[rank]; at++) {
        int64_t code = word[at];
        if (code < stages) {
            kept += problem->size[code];
            if (kept > problem->limit[rank])
                return false;
        } else if (code >= last) {
            kept -= problem->size[code - last];
        }
    }
    return true;
}

/* Take the pass at one place of a word to another. */
static void move(int32_t *word, int64_t at, int64_t to)
{
    int32_t code = word[at];
    int64_t step = to > at ? 1 : -1;
    for (int64_t each = at; each != to; each += step)
        word[each] = word[each + step];
    word[to] = code;
}

/* A pass of a rank, and the place that it may move to. */
struct Move {
    int64_t rank, at, to;
};

/* A pass of the critical path goes ahead, or what runs just before it goes behind it, or further. */
static struct Move draw_move(
    const struct Replay *replay, const int64_t *path, int64_t count, struct Draws *draws)
{
    int64_t here = path[draw_below(draws, count)];
    struct Move drawn = {here / replay->width, here % replay->width, 0};
    /* Mostly by a few places, as most moves by many cannot run; 3 is the mean of what is added. */
    int64_t far = 1 + (int64_t)draw_exponential(draws, 3.0);
    if (draw_uniform(draws) < 0.5) {
        drawn.to = drawn.at - far;
    } else {
        drawn.at -= 1;
        drawn.to = drawn.at + far;
    }
    return drawn;
}

static bool changes(const struct Replay *replay, struct Move move)
{
    const int32_t *word = replay->words + move.rank * replay->width;
    return move.at >= 0 && move.to >= 0 && move.to < replay->lengths[move.rank]
        && word[move.at] != word[move.to];
}

/* Whether to stay with words that take so long: slower ones with a chance by the heat. */
static bool is_kept(double after, double now, double heat, struct Draws *draws)
{
    if (after <= now)
        return true;
    return after < INFINITY && draw_uniform(draws) < exp((now - after) / heat);
}

/* Move passes, from `now` on, in so many steps; fills the best words, and returns how long they
 * take. `path` has room for all passes. */
static double anneal(
    struct Replay *replay, struct Run now, struct Run other, double seconds, int64_t steps,
    double hot, double cold, uint32_t seed, int64_t *path, int32_t *best_words)
{
    size_t bytes = (size_t)(replay->problem->ranks * replay->width) * sizeof *best_words;
    double best = seconds;
    int64_t count = -1; /* of the path, negative where it is not known */
    struct Draws draws;
    draws_begin(&draws, seed);
    memcpy(best_words, replay->words, bytes);
    for (int64_t step = 0; step < steps; step++) {
        if (count < 0)
            count = critical(replay, &now, path);
        if (count == 0)
            break;
        struct Move drawn = draw_move(replay, path, count, &draws);
        if (!changes(replay, drawn))
            continue;
        int32_t *word = replay->words + drawn.rank * replay->width;
        int64_t first = drawn.at < drawn.to ? drawn.at : drawn.to;
        move(word, drawn.at, drawn.to);
        /* Memory first: it takes one word, and a replay takes all. */
        double after = INFINITY;
        if (is_within(replay, drawn.rank))
            after = run_words(replay, drawn.rank, first, &now, &other);
        double heat = hot * pow(cold / hot, (double)step / (double)steps);
        if (!is_kept(after, seconds, heat, &draws)) {
            move(word, drawn.to, drawn.at);
            continue;
        }
        struct Run before = now;
        now = other;
        other = before;
        seconds = after;
        count = -1;
        if (seconds < best) {
            best = seconds;
            memcpy(best_words, replay->words, bytes);
        }
    }
    return best;
}

/* Move passes of the critical path along their ranks' words, in so many steps. What is slower is
 * kept with a chance that falls with the temperature, in seconds, from `hot` to `cold`.
 *
 * Leaves the best words there, and fills how long they take, infinite where the words that are
 * given cannot run: they are left. Returns 0.
 */
int64_t bfpp_anneal(
    PROBLEM_PARAMETERS, int64_t width, int32_t *words, const int64_t *lengths, int64_t steps,
    double hot, double cold, int64_t seed, double taken[1])
{
    const struct Problem problem = PROBLEM_GIVEN;
    if (!is_valid(&problem))
        return MALFORMED;
    struct Scratch scratch = {0};
    int64_t result = OUT_OF_MEMORY, places = ranks * width;
    struct Replay replay = new_replay(&problem, width, words, lengths, &scratch);
    struct Run now = new_run(&replay, &scratch), other = new_run(&replay, &scratch);
    int64_t *path = scratch_take(&scratch, places, sizeof *path);
    int32_t *best_words = scratch_take(&scratch, places, sizeof *best_words);
    if (scratch.failed)
        goto done;
    result = MALFORMED;
    if (!are_words(&replay))
        goto done;
    *taken = run_words(&replay, 0, 0, NULL, &now);
    result = 0;
    if (*taken == INFINITY)
        goto done;
    *taken = anneal(
        &replay, now, other, *taken, steps, hot, cold, (uint32_t)seed, path, best_words);
    memcpy(words, best_words, (size_t)places * sizeof *words);
done:
    scratch_give_back(&scratch);
    return result;
}
