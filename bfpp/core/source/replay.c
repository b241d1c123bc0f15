/* Replay of a task graph; the reference is `bfpp/sim/engines/simpy_engine.py`.
 *
 * `bfpp_sweep` is enough where no two flows meet in a port. `bfpp_replay` shares ports:
 *
 * Only flows are events: a task without one has its times as soon as all those before it have
 * theirs. The heap holds each flow once, by when it enters its ports or, from then on, by when its
 * last byte arrives at the present rate. All that enter or leave at one instant do so before rates
 * change, so that their order does not matter. A flow's bytes are settled when its rate changes.
 *
 * A change in one port is felt by those whose flows pass it, by the flows of those, and so on:
 * rates of all these are filled anew, the narrowest ports first, as in `bfpp.sim.engines.ports`.
 *
 * Few tasks are flows at a time. What is known of those alone is in places that flows take and
 * leave, the last one left first, so that it stays in the processor's cache.
 *
 * The flows in a port form a ring of slots, with one of the port's own, where it begins and ends.
 * A place has a slot for each port that a flow may pass, 2^shift in all, after those of ports.
 *
 * Derivatives are carried along (forward mode): each time, rate and rest of a flow has its slopes
 * beside it, and every assignment to the one has its line for the other. Which flow or port decides
 * a maximum decides the slope, so that at a tie it is that of one of them.
 *
 * Rejected: a new event for each change of a rate, with the old one left in the heap to be ignored,
 * as the reference does. Where many flows share a port, each that comes or goes changes all others,
 * and the heap would grow with the square of their number.
 */
#include "replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The larger of two, or the first where they do not compare: Python's `max`. */
static inline double larger(double one, double other) { return other > one ? other : one; }

static inline double smaller(double one, double other) { return other < one ? other : one; }

/* Start a flow that is alone in its ports at a `time`; returns 1 where another may be in one.
 *
 * `time` becomes when it ends, and `left` when it leaves its ports.
 */
static int flow_alone(
    double size, int64_t width, int64_t n_ports, const int32_t *ports, const double *bandwidth,
    double *left, double *time)
{
    double narrowest = INFINITY;
    for (int64_t nth = 0; nth < width; nth++) {
        int32_t port = ports[nth];
        if (port < 0)
            continue;
        if (port >= n_ports)
            return MALFORMED;
        if (*time < left[port])
            return 1;
        narrowest = smaller(narrowest, bandwidth[port]);
    }
    *time += size / narrowest;
    for (int64_t nth = 0; nth < width; nth++)
        if (ports[nth] >= 0)
            left[ports[nth]] = *time;
    return 0;
}

/* Start each task, in the order of the numbers, as soon as it may; returns whether flows may meet.
 *
 * `start` and `end` are filled as if each flow had its ports to itself: up to the first one that
 * enters a port before those of smaller numbers have left it.
 */
int64_t bfpp_sweep(
    int64_t tasks, int64_t lanes, int64_t dependencies, int64_t width, int64_t n_ports,
    const int32_t *lane, const int32_t *peer_lane, const int64_t *dependency_start,
    const int32_t *dependency, const double *seconds, const double *size, const int32_t *ports,
    const double *bandwidth, double *start, double *end)
{
    if (lanes < 0 || lanes > INT32_MAX)
        return MALFORMED;
    double *free_at = calloc((size_t)(lanes + n_ports + 1), sizeof *free_at);
    if (!free_at)
        return OUT_OF_MEMORY;
    double *left = free_at + lanes;
    int64_t result = 0;
    for (int64_t task = 0; task < tasks && !result; task++) {
        int32_t own = lane[task], peer = peer_lane[task];
        int64_t first = dependency_start[task], last = dependency_start[task + 1];
        if (own < 0 || own >= lanes || peer >= lanes || first < 0 || last > dependencies) {
            result = MALFORMED;
            goto done;
        }
        double time = free_at[own];
        if (peer >= 0)
            time = larger(time, free_at[peer]);
        for (int64_t at = first; at < last; at++) {
            int32_t before = dependency[at];
            if (before < 0 || before >= task) {
                result = MALFORMED;
                goto done;
            }
            time = larger(time, end[before]);
        }
        start[task] = time;
        time += seconds[task];
        if (size[task] > 0.0)
            result = flow_alone(
                size[task], width, n_ports, ports + task * width, bandwidth, left, &time);
        end[task] = time;
        free_at[own] = time;
        if (peer >= 0)
            free_at[peer] = time;
    }
done:
    free(free_at);
    return result;
}

/* What is known of a flow that is under way, at its place. */
struct flow {
    double left, rate, since;
    const int32_t *ports;
    uint32_t task;
    uint32_t in_heap;   /* where */
    uint32_t filled_in; /* which filling gave it a rate */
    bool is_in_ports;
};

/* Places of flows by when these are due, the first on top. */
struct heap {
    int64_t length;
    double *due;
    uint32_t *place;
    struct flow *flows;
};

/* Functions of which there are two instances: with slopes, and with a constant of no parameters,
 * which leaves no trace of them.
 */
#define INSTANCES static inline __attribute__((always_inline))

/* Graph and costs as they are given, and all that is known at an instant, `now`. */
struct replay {
    int64_t tasks, width, n_ports;
    int shift;
    const int64_t *follower_start;
    const int32_t *follower, *ports;
    const double *seconds, *size, *bandwidth, *seconds_slope, *bandwidth_slope;
    double *start, *end, *end_slope;

    double now;
    int64_t ended;
    struct heap heap;
    struct flow *flows;
    uint32_t *left_places; /* Places that flows have left: a stack. From `places` on are new ones. */
    int64_t leavings, places;
    uint32_t *settled; /* Tasks that wait for nothing more: a stack. */
    int64_t settling;
    uint32_t *waits; /* For how many that have not ended. */
    /* The slope of a task's `start`, once it enters its ports of `since`, and then of its `end`. */
    double *time_slope, *left_slope, *rate_slope;

    uint32_t *following, *previous; /* Rings of slots. */
    uint32_t *users;                /* Flows in each port. */
    uint32_t *changed, *has_changed;
    int64_t changes;
    double *change_slope;

    /* While rates are filled, for the `filling`th time: the ports reached, and what they have left
     * for how many flows.
     */
    uint32_t filling;
    uint32_t *reached, *reached_in, *waiting, *filled;
    double *room, *quotient, *room_slope, *share_slope;
};

/* Put a flow that is due at a time at a place of the heap, or as far above as it belongs. */
static void rise(struct heap *heap, int64_t at, double time, uint32_t flow)
{
    while (at > 0) {
        int64_t above = (at - 1) / 2;
        if (heap->due[above] <= time)
            break;
        heap->due[at] = heap->due[above];
        heap->place[at] = heap->place[above];
        heap->flows[heap->place[at]].in_heap = (uint32_t)at;
        at = above;
    }
    heap->due[at] = time;
    heap->place[at] = flow;
    heap->flows[flow].in_heap = (uint32_t)at;
}

/* Put a flow that is due at a time at a place of the heap, or as far below as it belongs. */
static void sink(struct heap *heap, int64_t at, double time, uint32_t flow)
{
    for (;;) {
        int64_t below = 2 * at + 1;
        if (below >= heap->length)
            break;
        if (below + 1 < heap->length && heap->due[below + 1] < heap->due[below])
            below++;
        if (heap->due[below] >= time)
            break;
        heap->due[at] = heap->due[below];
        heap->place[at] = heap->place[below];
        heap->flows[heap->place[at]].in_heap = (uint32_t)at;
        at = below;
    }
    heap->due[at] = time;
    heap->place[at] = flow;
    heap->flows[flow].in_heap = (uint32_t)at;
}

/* Let a task's bytes be due at a time, at a place that is free. */
static void begin_flow(struct replay *r, uint32_t task, double time)
{
    bool is_new = r->leavings == 0;
    uint32_t place = is_new ? (uint32_t)r->places++ : r->left_places[--r->leavings];
    r->flows[place] = (struct flow){
        .left = r->size[task], .ports = r->ports + (int64_t)task * r->width, .task = task};
    rise(&r->heap, r->heap.length++, time, place);
}

/* End a task at a time: those that wait for nothing more settle. */
INSTANCES void end_task(struct replay *r, int64_t parameters, uint32_t task, double time)
{
    r->end[task] = time;
    r->ended++;
    for (int64_t each = 0; each < parameters; each++)
        r->end_slope[task * parameters + each] = r->time_slope[task * parameters + each];
    for (int64_t at = r->follower_start[task]; at < r->follower_start[task + 1]; at++) {
        uint32_t after = (uint32_t)r->follower[at];
        if (time >= r->start[after]) {
            r->start[after] = time;
            for (int64_t each = 0; each < parameters; each++)
                r->time_slope[after * parameters + each] = r->time_slope[task * parameters + each];
        }
        if (--r->waits[after] == 0)
            r->settled[r->settling++] = after;
    }
}

/* End all tasks that have settled, and those that settle then; flows join the heap. */
INSTANCES void settle(struct replay *r, int64_t parameters)
{
    while (r->settling > 0) {
        uint32_t task = r->settled[--r->settling];
        double time = r->start[task] + r->seconds[task];
        for (int64_t each = 0; each < parameters; each++)
            r->time_slope[task * parameters + each] += r->seconds_slope[task * parameters + each];
        if (r->size[task] > 0.0)
            begin_flow(r, task, time);
        else
            end_task(r, parameters, task, time);
    }
}

/* The place of the flow that a slot is of. */
static inline uint32_t flow_of(const struct replay *r, uint32_t slot)
{
    return (uint32_t)(slot - r->n_ports) >> r->shift;
}

/* List the ports that share flows with one, directly or by way of others; returns how many. */
static int64_t reach(struct replay *r, uint32_t origin)
{
    int64_t count = 1;
    r->reached[0] = origin;
    r->reached_in[origin] = r->filling;
    for (int64_t at = 0; at < count; at++) {
        uint32_t slot = r->following[r->reached[at]];
        for (; slot >= r->n_ports; slot = r->following[slot]) {
            const int32_t *passed = r->flows[flow_of(r, slot)].ports;
            for (int64_t nth = 0; nth < r->width; nth++) {
                int32_t other = passed[nth];
                if (other >= 0 && r->reached_in[other] != r->filling) {
                    r->reached[count++] = (uint32_t)other;
                    r->reached_in[other] = r->filling;
                }
            }
        }
    }
    return count;
}

/* Settle a flow's bytes at its present rate, and send the rest at another, a share of a port. */
INSTANCES void change_rate(
    struct replay *r, int64_t parameters, uint32_t place, uint32_t origin, double share)
{
    struct flow *flow = &r->flows[place];
    double passed = r->now - flow->since, rate = flow->rate;
    for (int64_t each = 0; each < parameters; each++) {
        int64_t at = flow->task * parameters + each;
        double changes = r->change_slope[origin * parameters + each];
        double later = changes - r->time_slope[at];
        r->left_slope[at] -= later * rate + r->rate_slope[at] * passed;
        r->time_slope[at] = changes;
        r->rate_slope[at] = r->share_slope[each];
    }
    flow->left = larger(flow->left - passed * rate, 0.0);
    flow->since = r->now;
    flow->rate = share;
    double arrives = r->now + flow->left / share;
    if (arrives < r->heap.due[flow->in_heap])
        rise(&r->heap, flow->in_heap, arrives, place);
    else
        sink(&r->heap, flow->in_heap, arrives, place);
}

/* Give the flows of a port, those that have no rate yet, a share of it. */
INSTANCES void fill_port(
    struct replay *r, int64_t parameters, uint32_t port, uint32_t origin, double share)
{
    /* A port that is as narrow, filled before, may have rated all of these flows. */
    uint32_t flows = r->waiting[port] > 0 ? r->waiting[port] : 1;
    for (int64_t each = 0; each < parameters; each++)
        r->share_slope[each] = r->room_slope[port * parameters + each] / flows;
    for (uint32_t slot = r->following[port]; slot >= r->n_ports; slot = r->following[slot]) {
        uint32_t place = flow_of(r, slot);
        struct flow *flow = &r->flows[place];
        if (flow->filled_in == r->filling)
            continue;
        flow->filled_in = r->filling;
        for (int64_t nth = 0; nth < r->width; nth++) {
            int32_t other = flow->ports[nth];
            if (other < 0)
                continue;
            r->room[other] -= share;
            r->waiting[other]--;
            for (int64_t each = 0; each < parameters; each++)
                r->room_slope[other * parameters + each] -= r->share_slope[each];
        }
        if (share != flow->rate)
            change_rate(r, parameters, place, origin, share);
    }
}

/* Fill the ports that a change in one reaches, the narrowest first; false if there is no such. */
INSTANCES bool fill(struct replay *r, int64_t parameters, uint32_t origin)
{
    int64_t count = reach(r, origin);
    for (int64_t at = 0; at < count; at++) {
        uint32_t port = r->reached[at];
        r->room[port] = r->bandwidth[port];
        r->waiting[port] = r->users[port];
        for (int64_t each = 0; each < parameters; each++)
            r->room_slope[port * parameters + each] =
                r->bandwidth_slope[port * parameters + each];
    }
    while (count > 0) {
        double share = INFINITY;
        int64_t still = 0, full = 0;
        for (int64_t at = 0; at < count; at++) {
            uint32_t port = r->reached[at];
            if (r->waiting[port] > 0) {
                r->quotient[port] = r->room[port] / r->waiting[port];
                share = smaller(share, r->quotient[port]);
                r->reached[still++] = port;
            }
        }
        for (int64_t at = 0; at < still; at++)
            if (r->quotient[r->reached[at]] == share)
                r->filled[full++] = r->reached[at];
        if (still > 0 && full == 0) /* a bandwidth is not a number */
            return false;
        for (int64_t at = 0; at < full; at++)
            fill_port(r, parameters, r->filled[at], origin, share);
        count = still;
    }
    return true;
}

/* Fill all ports that flows have entered or left; false if they cannot be filled. */
INSTANCES bool share_ports(struct replay *r, int64_t parameters)
{
    r->filling++;
    for (int64_t number = 0; number < r->changes; number++) {
        uint32_t origin = r->changed[number];
        r->has_changed[origin] = 0;
        if (r->reached_in[origin] != r->filling && !fill(r, parameters, origin))
            return false;
    }
    r->changes = 0;
    return true;
}

/* Note that the ports of a flow that still have others are to be filled anew. */
INSTANCES void note_change(struct replay *r, int64_t parameters, const struct flow *flow)
{
    for (int64_t nth = 0; nth < r->width; nth++) {
        int32_t port = flow->ports[nth];
        if (port < 0 || r->users[port] == 0)
            continue;
        for (int64_t each = 0; each < parameters; each++)
            r->change_slope[port * parameters + each] =
                r->time_slope[flow->task * parameters + each];
        if (!r->has_changed[port]) {
            r->has_changed[port] = 1;
            r->changed[r->changes++] = (uint32_t)port;
        }
    }
}

/* Let the flow on top of the heap into its ports; false if there are none such. Most are alone
 * there, and change no other.
 */
INSTANCES bool enter(struct replay *r, int64_t parameters, uint32_t place)
{
    struct flow *flow = &r->flows[place];
    bool alone = true;
    int32_t narrowest = -1;
    flow->since = r->now;
    flow->is_in_ports = true;
    for (int64_t nth = 0; nth < r->width; nth++) {
        int32_t port = flow->ports[nth];
        if (port < 0)
            continue;
        if (port >= r->n_ports)
            return false;
        alone = alone && r->users[port] == 0;
        if (narrowest < 0 || r->bandwidth[port] < r->bandwidth[narrowest])
            narrowest = port;
        int64_t slot = r->n_ports + ((int64_t)place << r->shift) + nth;
        uint32_t after = r->following[port];
        r->following[slot] = after;
        r->previous[slot] = (uint32_t)port;
        r->following[port] = r->previous[after] = (uint32_t)slot;
        r->users[port]++;
    }
    if (!alone) {
        /* It is due when the ports are shared: after all others of this instant. */
        sink(&r->heap, 0, INFINITY, place);
        note_change(r, parameters, flow);
        return true;
    }
    flow->rate = narrowest < 0 ? INFINITY : r->bandwidth[narrowest];
    if (narrowest >= 0)
        for (int64_t each = 0; each < parameters; each++)
            r->rate_slope[flow->task * parameters + each] =
                r->bandwidth_slope[narrowest * parameters + each];
    sink(&r->heap, 0, r->now + flow->left / flow->rate, place);
    return true;
}

/* Take the flow on top of the heap, whose last byte has arrived, out of its ports. */
INSTANCES void leave(struct replay *r, int64_t parameters, uint32_t place)
{
    struct heap *heap = &r->heap;
    const struct flow *flow = &r->flows[place];
    for (int64_t each = 0; each < parameters; each++) {
        int64_t at = flow->task * parameters + each;
        double slower = r->rate_slope[at] * (flow->left / flow->rate);
        r->time_slope[at] += (r->left_slope[at] - slower) / flow->rate;
    }
    if (--heap->length > 0)
        sink(heap, 0, heap->due[heap->length], heap->place[heap->length]);
    for (int64_t nth = 0; nth < r->width; nth++) {
        int32_t port = flow->ports[nth];
        if (port < 0)
            continue;
        int64_t slot = r->n_ports + ((int64_t)place << r->shift) + nth;
        uint32_t before = r->previous[slot], after = r->following[slot];
        r->following[before] = after;
        r->previous[after] = before;
        r->users[port]--;
    }
    note_change(r, parameters, flow);
    r->left_places[r->leavings++] = place;
    end_task(r, parameters, flow->task, r->now);
}

/* Count what tasks wait for, and let those that wait for nothing settle; false if malformed. */
static bool begin(struct replay *r, int64_t followers)
{
    for (int64_t port = 0; port < r->n_ports; port++) {
        if (!(r->bandwidth[port] > 0.0))
            return false;
        r->following[port] = r->previous[port] = (uint32_t)port;
    }
    for (int64_t task = 0; task < r->tasks; task++) {
        int64_t first = r->follower_start[task], last = r->follower_start[task + 1];
        if (first < 0 || first > last || last > followers)
            return false;
    }
    for (int64_t at = 0; at < followers; at++) {
        int32_t after = r->follower[at];
        if (after < 0 || after >= r->tasks)
            return false;
        r->waits[after]++;
    }
    for (int64_t task = 0; task < r->tasks; task++) {
        r->start[task] = 0.0;
        if (r->waits[task] == 0)
            r->settled[r->settling++] = (uint32_t)task;
    }
    return true;
}

/* Go on until no flow is under way; false if the graph or its costs are malformed. */
INSTANCES bool run(struct replay *r, int64_t parameters)
{
    for (;;) {
        settle(r, parameters);
        if (r->heap.length == 0)
            return r->ended == r->tasks;
        if (r->changes > 0 && r->heap.due[0] > r->now) {
            if (!share_ports(r, parameters))
                return false;
            continue;
        }
        uint32_t place = r->heap.place[0];
        r->now = r->heap.due[0];
        if (r->flows[place].rate > 0.0)
            leave(r, parameters, place);
        else if (r->flows[place].is_in_ports || !enter(r, parameters, place))
            return false;
    }
}

/* Take `count` elements from the front of scratch memory. */
static double *doubles(double **scratch, int64_t count)
{
    double *taken = *scratch;
    *scratch += count;
    return taken;
}

static uint32_t *numbers(uint32_t **scratch, int64_t count)
{
    uint32_t *taken = *scratch;
    *scratch += count;
    return taken;
}

/* Divide the numbers that are kept while replaying: those that begin as zeros come first. */
static void divide(
    struct replay *r, int64_t parameters, int64_t flows, double *real, uint32_t *whole)
{
    int64_t tasks = r->tasks, ports = r->n_ports, slopes = tasks * parameters;
    r->time_slope = doubles(&real, slopes);
    r->left_slope = doubles(&real, slopes);
    r->rate_slope = doubles(&real, slopes);
    r->change_slope = doubles(&real, ports * parameters);
    r->room_slope = doubles(&real, ports * parameters);
    r->share_slope = doubles(&real, parameters);
    r->room = doubles(&real, ports);
    r->quotient = doubles(&real, ports);
    r->heap.due = doubles(&real, flows);
    r->waits = numbers(&whole, tasks);
    r->users = numbers(&whole, ports);
    r->changed = numbers(&whole, ports);
    r->has_changed = numbers(&whole, ports);
    r->reached = numbers(&whole, ports);
    r->reached_in = numbers(&whole, ports);
    r->waiting = numbers(&whole, ports);
    r->filled = numbers(&whole, ports);
    r->settled = numbers(&whole, tasks);
    r->left_places = numbers(&whole, flows);
    r->heap.place = numbers(&whole, flows);
    r->following = numbers(&whole, ports + (flows << r->shift));
    r->previous = numbers(&whole, ports + (flows << r->shift));
}

/* Replay the tasks, sharing ports between flows; returns 0.
 *
 * `follower` lists, for each task, those that wait for it. Slopes are derivatives by any number of
 * `parameters`, one a column: given those of costs, `end_slope` gets those of `end`.
 */
int64_t bfpp_replay(
    int64_t tasks, int64_t followers, int64_t width, int64_t n_ports, int64_t parameters,
    const int64_t *follower_start, const int32_t *follower, const double *seconds,
    const double *size, const int32_t *ports, const double *bandwidth,
    const double *seconds_slope, const double *size_slope, const double *bandwidth_slope,
    double *start, double *end, double *end_slope)
{
    struct replay r = {
        .tasks = tasks, .width = width, .n_ports = n_ports,
        .follower_start = follower_start, .follower = follower, .ports = ports,
        .seconds = seconds, .size = size, .bandwidth = bandwidth,
        .seconds_slope = seconds_slope, .bandwidth_slope = bandwidth_slope,
        .start = start, .end = end, .end_slope = end_slope,
    };
    if (parameters && !(seconds_slope && size_slope && bandwidth_slope && end_slope))
        return MALFORMED;
    while ((int64_t)1 << r.shift < width)
        r.shift++;
    int64_t flows = 0;
    for (int64_t task = 0; task < tasks; task++)
        flows += size[task] > 0.0;
    int64_t slots = n_ports + (flows << r.shift);
    if (slots >= UINT32_MAX)
        return OUT_OF_MEMORY;
    int64_t slopes = (3 * tasks + 2 * n_ports + 1) * parameters, zeros = tasks + 7 * n_ports;
    double *real = malloc((size_t)(slopes + 2 * n_ports + flows + 1) * sizeof *real);
    uint32_t *whole =
        malloc((size_t)(zeros + tasks + 2 * flows + 2 * slots + 1) * sizeof *whole);
    r.flows = r.heap.flows = malloc((size_t)(flows + 1) * sizeof *r.flows);
    int64_t result = OUT_OF_MEMORY;
    if (real && whole && r.flows) {
        memset(real, 0, (size_t)slopes * sizeof *real);
        memset(whole, 0, (size_t)zeros * sizeof *whole);
        divide(&r, parameters, flows, real, whole);
        if (parameters)
            memcpy(r.left_slope, size_slope, (size_t)(tasks * parameters) * sizeof *size_slope);
        bool is_done = begin(&r, followers) && (parameters ? run(&r, parameters) : run(&r, 0));
        result = is_done ? 0 : MALFORMED;
    }
    free(real);
    free(whole);
    free(r.flows);
    return result;
}
