/* Peaks of memory; the reference is `bfpp/sim/memory/memory_over_time.py`, which has every moment.
 *
 * One pass over the tasks in order, with the sums of each rank as they are at that moment: of what
 * is saved (`alive`), of what halves keep for their second ones (`pending`), and of what the step
 * before needed for itself (`needed`), which stays if the two are one block. No moment is kept.
 */
#include "memory.h"

#include <math.h>
#include <stdlib.h>

/* What `of_operation` says of each operation: one row each. */
enum { COMPUTES, SAVES, ENDS_SAVED, HALVES, ENDS_HALVED, OFFLOADS, RELOADS, FLAGS };

/* A pass, of a micro-batch in a unit; none if the unit is negative. */
struct pass {
    int32_t unit, microbatch;
};

static const struct pass NO_PASS = {-1, -1};

static bool same(struct pass one, struct pass other)
{
    return one.unit == other.unit && one.microbatch == other.microbatch;
}

/* Bytes of each unit by each of some costs, those of a unit next to each other. */
struct sizes {
    int64_t costs;
    const double *saved, *halved, *restored_layer, *transient, *gradients, *offloaded;
};

/* What a rank keeps by one of the costs, and when that was most. */
struct kept {
    double alive, pending, needed, most, most_saved, most_transient;
};

/* A rank in the course of its compute.
 *
 * `leaving` are the last few offloads, in a ring; `gone` is the one whose memory is free from the
 * next compute step on.
 */
struct rank {
    int64_t turn;
    struct pass gone, *leaving;
    struct kept *kept;
};

/* Take a moment into account, in which a rank may need most; `beside` is transient, too. */
static inline void compare(struct kept *here, double saved, double transient, double beside)
{
    double total = saved + transient + beside;
    if (total > here->most) {
        here->most = total;
        here->most_saved = saved;
        here->most_transient = transient + beside;
    }
}

/* Begin to offload a pass: the one that began `ahead` offloads before has left. */
static void offload(struct rank *here, struct pass own, int64_t ahead, const struct sizes *of)
{
    struct pass *slot = &here->leaving[here->turn++ % ahead];
    if (slot->unit >= 0) {
        for (int64_t cost = 0; cost < of->costs; cost++)
            here->kept[cost].alive -= of->offloaded[slot->unit * of->costs + cost];
        here->gone = *slot;
    }
    *slot = own;
}

/* Reload a pass, if it has left. */
static void reload(struct rank *here, struct pass own, int64_t ahead, const struct sizes *of)
{
    bool stays = false;
    for (int64_t slot = 0; slot < ahead; slot++)
        if (same(here->leaving[slot], own)) {
            here->leaving[slot].unit = -1;
            stays = true;
        }
    for (int64_t cost = 0; !stays && cost < of->costs; cost++)
        here->kept[cost].alive += of->offloaded[own.unit * of->costs + cost];
    if (same(here->gone, own))
        here->gone = NO_PASS;
}

/* Compute a step, `in_block` with the one before it; `is` has the flags of its operation. A
 * `backward` pass has gradients, too. */
static void compute(
    struct rank *rank, int32_t unit, bool in_block, bool backward, const bool is[FLAGS],
    const struct sizes *of)
{
    for (int64_t cost = 0; cost < of->costs; cost++) {
        struct kept *here = &rank->kept[cost];
        int64_t at = unit * of->costs + cost;
        if (rank->gone.unit >= 0) {
            double kept = here->alive + fmax(here->pending, 0.0);
            compare(here, kept + of->offloaded[rank->gone.unit * of->costs + cost], 0.0, 0.0);
        }
        if (is[SAVES])
            here->alive += of->saved[at];
        if (is[HALVES])
            here->pending += of->halved[at];
        /* Rounding may leave a little of what has ended. */
        double kept = here->alive + fmax(here->pending - of->restored_layer[at], 0.0);
        double beside = in_block ? here->needed : 0.0;
        here->needed = of->transient[at] + (backward ? of->gradients[at] : 0.0);
        compare(here, kept, here->needed, beside);
        if (is[ENDS_SAVED])
            here->alive -= of->saved[at];
        if (is[ENDS_HALVED])
            here->pending -= of->halved[at];
    }
    rank->gone = NO_PASS;
}

/* Ranks that hold nothing yet, with rings of `ahead` offloads; NULL without memory for them. */
static struct rank *begin_ranks(
    int64_t ranks, int64_t costs, int64_t ahead, struct pass **rings, struct kept **kept)
{
    struct rank *begun = malloc((size_t)(ranks + 1) * sizeof *begun);
    *rings = malloc((size_t)(ranks * ahead + 1) * sizeof **rings);
    *kept = malloc((size_t)(ranks * costs + 1) * sizeof **kept);
    if (!begun || !*rings || !*kept) {
        free(begun);
        return NULL;
    }
    for (int64_t slot = 0; slot < ranks * ahead; slot++)
        (*rings)[slot] = NO_PASS;
    for (int64_t each = 0; each < ranks * costs; each++)
        (*kept)[each] = (struct kept){.most = -1.0};
    for (int64_t nth = 0; nth < ranks; nth++)
        begun[nth] = (struct rank){
            .gone = NO_PASS, .leaving = *rings + nth * ahead, .kept = *kept + nth * costs};
    return begun;
}

/* Whether all tasks have operations and ranks that there are. */
static bool are_in_range(
    int64_t tasks, int64_t operations, int64_t ranks, const int8_t *operation, const int32_t *rank)
{
    for (int64_t task = 0; task < tasks; task++)
        if (operation[task] < 0 || operation[task] >= operations || rank[task] < 0 ||
            rank[task] >= ranks)
            return false;
    return true;
}

/* Fill, for each rank and each of some costs, what is saved and what is transient when both need
 * most.
 *
 * The tasks are columns of a graph or of compute steps alone. `of_operation` says of each operation
 * whether it is a compute step, and whether it begins or ends what is saved, what halves keep, and
 * what is offloaded. An offload has surely ended when `ahead` more have begun. Its memory is free
 * from the rank's next compute step on: reloads before that allocate beside it. Without a backward
 * pass nothing is saved. Micro-batches are cut into `slices`.
 */
int64_t bfpp_find_peaks(
    int64_t tasks, int64_t ranks, int64_t units, int64_t costs, int64_t operations, int64_t slices,
    int64_t ahead, const int8_t *operation, const int32_t *rank, const int32_t *unit, const int32_t *microbatch,
    const int32_t *block, const bool *of_operation, const double *saved, const double *halved,
    const double *restored_layer, const double *transient, const double *gradients,
    const double *offloaded, double *most_saved, double *most_transient)
{
    if (ahead < 1 || !are_in_range(tasks, operations, ranks, operation, rank))
        return MALFORMED;
    if (ahead > tasks)
        ahead = tasks;
    bool trains = false;
    for (int64_t task = 0; task < tasks && !trains; task++)
        trains = of_operation[ENDS_SAVED * operations + operation[task]];
    const struct sizes of = {
        costs, saved, halved, restored_layer, transient, gradients, offloaded};
    int64_t result = 0;
    struct pass *rings;
    struct kept *kept;
    struct rank *all = begin_ranks(ranks, costs, ahead, &rings, &kept);
    if (!all)
        result = OUT_OF_MEMORY;
    for (int64_t task = 0; task < tasks && !result; task++) {
        bool is[FLAGS];
        for (int64_t flag = 0; flag < FLAGS; flag++)
            is[flag] = of_operation[flag * operations + operation[task]];
        if (!is[COMPUTES] && !is[OFFLOADS] && !is[RELOADS])
            continue;
        struct pass own = {unit[task], microbatch[task]};
        if (own.unit < 0 || own.unit >= units) {
            result = MALFORMED;
            break;
        }
        bool backward = trains && !is[SAVES];
        is[SAVES] &= trains;
        struct rank *here = &all[rank[task]];
        if (is[OFFLOADS])
            offload(here, own, ahead, &of);
        if (is[RELOADS])
            reload(here, own, ahead, &of);
        if (is[COMPUTES])
            compute(here, own.unit, block[task] >= 0 && block[task] != task, backward, is, &of);
    }
    for (int64_t each = 0; each < ranks * costs && !result; each++) {
        most_saved[each] = kept[each].most_saved / (double)slices;
        most_transient[each] = kept[each].most_transient / (double)slices;
    }
    free(kept);
    free(rings);
    free(all);
    return result;
}
