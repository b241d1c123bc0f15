/* The time from step to step; `bfpp/traces/timeline/period.py` says what it is.
 *
 * It is the largest mean of a cycle through ranks, where rank i follows rank j after L_ij, the
 * longest path from the begin of j to the end of i. L itself is as large as the square of ranks, so
 * it is never made: one pass over the tasks, given when ranks begin, finds the path by which each
 * rank ends last, the rank from which it comes, and its length.
 *
 * Howard's policy iteration: each rank follows one other, its choice. Of the cycles of choices, the
 * one with the largest mean is the period so far. The times at which ranks begin are raised along
 * the choices, and a pass says which ranks had better choose another. Where none had, no cycle has
 * a larger mean. A few passes are enough. (Cochet-Terrasson et al., Numerical computation of
 * spectral elements in max-plus algebra, 1998.)
 *
 * Rejected: Karp's algorithm, which needs L; and steps simulated one after the other until they
 * take as long as the one before. How many that takes is not bounded by anything that is known of a
 * graph, and steps may take turns of several lengths for ever, of which the period is the mean.
 */
#include "period.h"

#include <math.h>
#include <stdlib.h>

/* Share of the latest time by which a choice has to be better: more than rounding. */
#define ROUNDING 1e-14

/* A path from the begin of a rank; the origin is -1 where there is none. */
struct path {
    double length;
    int64_t origin;
};

/* A step, the times at which ranks begin it, and the path that each rank follows. */
struct steps {
    int64_t tasks, lanes, ranks, dependencies;
    const int32_t *lane, *peer_lane, *rank, *peer, *dependency;
    const int64_t *dependency_start;
    const double *duration;

    struct path *to_task, *to_lane, *to_rank, *choice;
    double *begin;
    int64_t *mark, *stack;
};

static bool is_well_formed(const struct steps *s)
{
    for (int64_t task = 0; task < s->tasks; task++) {
        int64_t first = s->dependency_start[task], last = s->dependency_start[task + 1];
        if (s->lane[task] < 0 || s->lane[task] >= s->lanes || s->peer_lane[task] >= s->lanes ||
            s->rank[task] < 0 || s->rank[task] >= s->ranks || s->peer[task] >= s->ranks ||
            first < 0 || first > last || last > s->dependencies)
            return false;
        for (int64_t at = first; at < last; at++)
            if (s->dependency[at] < 0 || s->dependency[at] >= task)
                return false;
    }
    return true;
}

/* When the end of a path is reached. */
static inline double reached(const struct steps *s, struct path path)
{
    return path.origin < 0 ? -INFINITY : s->begin[path.origin] + path.length;
}

/* Of two paths, the one that takes until later. */
static inline struct path later(const struct steps *s, struct path one, struct path other)
{
    return reached(s, other) > reached(s, one) ? other : one;
}

/* Find the path by which each rank ends last, given when ranks begin. */
static void find_paths(struct steps *s)
{
    const struct path none = {0.0, -1};
    for (int64_t lane = 0; lane < s->lanes; lane++)
        s->to_lane[lane] = none;
    for (int64_t rank = 0; rank < s->ranks; rank++)
        s->to_rank[rank] = none;
    for (int64_t task = 0; task < s->tasks; task++) {
        int32_t lane = s->lane[task], peer_lane = s->peer_lane[task];
        struct path path = {0.0, s->rank[task]};
        path = later(s, path, s->to_lane[lane]);
        if (s->peer[task] >= 0)
            path = later(s, path, (struct path){0.0, s->peer[task]});
        if (peer_lane >= 0)
            path = later(s, path, s->to_lane[peer_lane]);
        for (int64_t at = s->dependency_start[task]; at < s->dependency_start[task + 1]; at++)
            path = later(s, path, s->to_task[s->dependency[at]]);
        path.length += s->duration[task];
        s->to_task[task] = s->to_lane[lane] = path;
        if (peer_lane >= 0)
            s->to_lane[peer_lane] = path;
        if (s->peer[task] < 0) /* a rank ends with what is its own */
            s->to_rank[s->rank[task]] = later(s, s->to_rank[s->rank[task]], path);
    }
}

/* The mean of the cycle of choices through a rank. */
static double cycle_mean(const struct steps *s, int64_t rank)
{
    double length = 0.0;
    int64_t steps = 0, at = rank;
    do {
        length += s->choice[at].length;
        at = s->choice[at].origin;
        steps++;
    } while (at != rank);
    return length / (double)steps;
}

/* The largest mean of a cycle of choices; -INFINITY without any. */
static double largest_mean(struct steps *s)
{
    double largest = -INFINITY;
    for (int64_t rank = 0; rank < s->ranks; rank++)
        s->mark[rank] = -1;
    for (int64_t rank = 0; rank < s->ranks; rank++) {
        int64_t at = rank;
        while (at >= 0 && s->mark[at] < 0) {
            s->mark[at] = rank;
            at = s->choice[at].origin;
        }
        if (at >= 0 && s->mark[at] == rank) { /* the walk came back to itself */
            double mean = cycle_mean(s, at);
            largest = mean > largest ? mean : largest;
        }
    }
    return largest;
}

/* Let ranks begin as late as their choices have it, less a `period`; those first that others follow.
 */
static void raise_begins(struct steps *s, double period)
{
    for (int64_t rank = 0; rank < s->ranks; rank++)
        s->mark[rank] = 0;
    for (int64_t rank = 0; rank < s->ranks; rank++) {
        int64_t depth = 0;
        for (int64_t at = rank; at >= 0 && !s->mark[at]; at = s->choice[at].origin) {
            s->mark[at] = 1;
            s->stack[depth++] = at;
        }
        while (depth > 0) {
            int64_t at = s->stack[--depth];
            double begin = reached(s, s->choice[at]) - period;
            s->begin[at] = begin > s->begin[at] ? begin : s->begin[at];
        }
    }
}

/* Let ranks choose their longest paths, where these are better; returns whether any is. */
static bool choose(struct steps *s, double period)
{
    double latest = fabs(period);
    for (int64_t rank = 0; rank < s->ranks; rank++)
        latest = fmax(latest, fabs(reached(s, s->to_rank[rank])));
    bool better = false;
    for (int64_t rank = 0; rank < s->ranks; rank++)
        if (reached(s, s->to_rank[rank]) - period > s->begin[rank] + ROUNDING * latest) {
            s->choice[rank] = s->to_rank[rank];
            better = true;
        }
    return better;
}

static double find_period(struct steps *s)
{
    double period = -INFINITY;
    for (int64_t rank = 0; rank < s->ranks; rank++)
        s->begin[rank] = -INFINITY; /* none waits for a rank that has no tasks of its own */
    for (int64_t task = 0; task < s->tasks; task++)
        if (s->peer[task] < 0)
            s->begin[s->rank[task]] = 0.0;
    find_paths(s);
    for (int64_t rank = 0; rank < s->ranks; rank++)
        s->choice[rank] = s->to_rank[rank];
    do {
        /* A choice may be worse by rounding: that the period never falls ends the loop. */
        period = fmax(period, largest_mean(s));
        raise_begins(s, period);
        find_paths(s);
    } while (choose(s, period));
    return period;
}

/* Seconds from the end of a step to the end of the next, in the long run; returns 0. */
int64_t bfpp_period(
    int64_t tasks, int64_t lanes, int64_t ranks, int64_t dependencies, const int32_t *lane,
    const int32_t *peer_lane, const int32_t *rank, const int32_t *peer,
    const int64_t *dependency_start, const int32_t *dependency, const double *duration,
    double seconds[1])
{
    struct steps s = {
        .tasks = tasks, .lanes = lanes, .ranks = ranks, .dependencies = dependencies,
        .lane = lane, .peer_lane = peer_lane, .rank = rank, .peer = peer,
        .dependency = dependency, .dependency_start = dependency_start, .duration = duration,
    };
    if (!is_well_formed(&s))
        return MALFORMED;
    struct path *paths = malloc((size_t)(tasks + lanes + 2 * ranks + 1) * sizeof *paths);
    double *begins = malloc((size_t)(ranks + 1) * sizeof *begins);
    int64_t *marks = malloc((size_t)(2 * ranks + 1) * sizeof *marks);
    int64_t result = OUT_OF_MEMORY;
    if (paths && begins && marks) {
        s.to_task = paths;
        s.to_lane = paths + tasks;
        s.to_rank = s.to_lane + lanes;
        s.choice = s.to_rank + ranks;
        s.begin = begins;
        s.mark = marks;
        s.stack = marks + ranks;
        seconds[0] = find_period(&s);
        result = 0;
    }
    free(paths);
    free(begins);
    free(marks);
    return result;
}

/* List the tasks of each kind, in order: those of a kind begin at `first[kind]`. */
static void list_by_kind(
    int64_t tasks, int64_t kinds, const int32_t *kind, int64_t *first, int64_t *by_kind)
{
    for (int64_t each = 0; each <= kinds; each++)
        first[each] = 0;
    for (int64_t task = 0; task < tasks; task++)
        first[kind[task] + 1]++;
    for (int64_t each = 0; each < kinds; each++)
        first[each + 1] += first[each];
    for (int64_t task = 0; task < tasks; task++)
        by_kind[first[kind[task]]++] = task;
    for (int64_t each = kinds; each > 0; each--)
        first[each] = first[each - 1];
    first[0] = 0;
}

/* Times, and the part of them that may be periods. */
struct stretch {
    const double *start, *end;
    double begin, until, period, tolerance;
};

/* Whether the tasks of one kind, in order, start and end again a period later within a stretch. */
static bool kind_repeats(const struct stretch *s, const int64_t *tasks, int64_t count)
{
    int64_t at = 0;
    while (at < count && s->start[tasks[at]] < s->begin)
        at++;
    int64_t after = at;
    while (after < count && s->start[tasks[after]] < s->begin + s->period)
        after++;
    for (; at < count && s->start[tasks[at]] < s->until - s->period; at++, after++) {
        if (after == count)
            return false;
        int64_t task = tasks[at], again = tasks[after];
        if (fabs(s->start[again] - s->start[task] - s->period) > s->tolerance ||
            fabs(s->end[again] - s->end[task] - s->period) > s->tolerance)
            return false;
    }
    return after >= count || !(s->start[tasks[after]] < s->until);
}

/* Whether nothing under way in the last period, or that a task waits for in it, began before. */
static bool is_settled(
    const struct stretch *s, int64_t task, const int32_t *dependency, int64_t count)
{
    if (s->start[task] < s->begin && s->end[task] > s->until - s->period)
        return false;
    if (s->until - s->period <= s->start[task] && s->start[task] < s->until)
        for (int64_t at = 0; at < count; at++)
            if (s->start[dependency[at]] < s->begin)
                return false;
    return true;
}

/* Whether all that starts from `begin` on, before `until`, starts and ends again a `period` later.
 *
 * And whether nothing under way in the last period, or that a task waits for in it, began before.
 * `bfpp/sim/experiment/periodic.py`.
 */
int64_t bfpp_repeats(
    int64_t tasks, int64_t kinds, int64_t dependencies, const int32_t *kind,
    const int64_t *dependency_start, const int32_t *dependency, const double *start,
    const double *end, double begin, double until, double period, double tolerance)
{
    const struct stretch s = {start, end, begin, until, period, tolerance};
    for (int64_t task = 0; task < tasks; task++) {
        int64_t first = dependency_start[task], last = dependency_start[task + 1];
        if (kind[task] < 0 || kind[task] >= kinds || first < 0 || first > last ||
            last > dependencies)
            return MALFORMED;
        for (int64_t at = first; at < last; at++)
            if (dependency[at] < 0 || dependency[at] >= tasks)
                return MALFORMED;
    }
    for (int64_t task = 0; task < tasks; task++) {
        int64_t first = dependency_start[task];
        if (!is_settled(&s, task, dependency + first, dependency_start[task + 1] - first))
            return 0;
    }
    int64_t *scratch = malloc((size_t)(kinds + 1 + tasks) * sizeof *scratch);
    if (!scratch)
        return OUT_OF_MEMORY;
    int64_t *by_kind = scratch + kinds + 1;
    list_by_kind(tasks, kinds, kind, scratch, by_kind);
    bool repeats = true;
    for (int64_t each = 0; each < kinds && repeats; each++)
        repeats = kind_repeats(&s, by_kind + scratch[each], scratch[each + 1] - scratch[each]);
    free(scratch);
    return repeats;
}
