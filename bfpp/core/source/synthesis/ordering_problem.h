/* The problem of ordering passes, which annealing, dispatches and building blocks share.
 *
 * A pass is a number, its code: kind * stages + stage, of kinds forward (0), backward or its input
 * half (1), and weight half (2, where backward passes are split). A rank's word holds the codes of
 * its passes in order. The micro-batches of each pass are first come, first served, so that a word
 * says all of an order.
 *
 * What ranks send one another in one direction is sent one after the other, on a channel. How long
 * words take is until no rank is busy any more; or, of `spans`, the longest time of a rank from when
 * it can receive for its first pass.
 */
#ifndef BFPP_ORDERING_PROBLEM_H
#define BFPP_ORDERING_PROBLEM_H

#include "../core.h"

struct Problem {
    int64_t stages, ranks, kinds, microbatches;
    bool spans;
    const int32_t *rank;    /* of each pass */
    const double *seconds;  /* of each pass */
    const double *transfer; /* by pass but weight halves: seconds of sending its output */
    const int32_t *channel; /* by the same: where it is sent, or -1 */
    const double *size;     /* by stage: kept of a micro-batch until its last backward pass ends */
    const double *limit;    /* by rank: the most that it may keep */
    const double *rest;     /* by rank: seconds that it is busy after its last pass */
    const int32_t *stage;   /* the stages of rank r are those from first[r] to first[r + 1] */
    const int32_t *first;
};

/* A problem as functions take it. `library.py` reads it, too: what ends with _PARAMETERS stands for
 * parameters. */
#define PROBLEM_PARAMETERS \
    int64_t stages, int64_t ranks, int64_t kinds, int64_t microbatches, bool spans, \
    const int32_t rank[kinds * stages], const double seconds[kinds * stages], \
    const double transfer[2 * stages], const int32_t channel[2 * stages], \
    const double size[stages], const double limit[ranks], const double rest[ranks], \
    const int32_t stage[stages], const int32_t first[ranks + 1]

#define PROBLEM_GIVEN \
    { \
        stages, ranks, kinds, microbatches, spans, rank, seconds, transfer, channel, size, limit, \
            rest, stage, first \
    }

/* Whether all indices are within bounds. */
bool is_valid(const struct Problem *problem);

/* Number of different passes. */
static inline int64_t codes_of(const struct Problem *problem)
{
    return problem->kinds * problem->stages;
}

/* Channels have numbers below this. */
static inline int64_t channels_of(const struct Problem *problem) { return 2 * problem->stages; }

/* The pass that takes the output of this one, or -1. */
static inline int64_t next_pass(const struct Problem *problem, int64_t code)
{
    int64_t stages = problem->stages;
    if (code < stages)
        return code + 1 < stages ? code + 1 : code + stages;
    return code > stages && code < 2 * stages ? code - 1 : -1;
}

static inline double larger(double one, double other) { return other > one ? other : one; }

/* When the output of a pass, which is no weight half, has arrived; `sent` says, by channel, when
 * what was sent before has, and is brought up to date. */
static inline double arrival_of(
    const struct Problem *problem, int64_t code, double end, double *sent)
{
    int32_t channel = problem->channel[code];
    if (channel < 0)
        return end;
    return sent[channel] = larger(sent[channel], end) + problem->transfer[code];
}

/* How long a rank takes whose first pass, a forward one, starts then, and whose last ends then. */
static inline double time_of_rank(
    const struct Problem *problem, int64_t rank, int64_t code, double start, double end)
{
    end += problem->rest[rank];
    if (!problem->spans)
        return end;
    return end - (code ? start - problem->transfer[code - 1] : start);
}

#endif
