/* Orders of a building block that repeats, whose first and last micro-batches are moved together.
 *
 * The rules are at the head of `bfpp/schedules/families/controllable_memory.py`, the reference in
 * Python is `tests/helpers/repeated_block.py`. */
#include "orders.h"

#include <stdlib.h>
#include <string.h>

/* The legs of a micro-batch, and its weight halves, of which there are two for each leg back. */
enum { FORWARD_DOWN, FORWARD_UP, INPUT_DOWN, INPUT_UP, WEIGHT, EMPTY };

/* Passes and weight halves of a micro-batch on a rank: as many slots as from one to the next. */
#define PERIOD 6
#define LEGS 4

static const int8_t OPERATION_OF_LEG[] = {
    FORWARD, FORWARD, BACKWARD_INPUT, BACKWARD_INPUT, BACKWARD_WEIGHT};

/* Activations alive, and weight halves that wait for a free slot. */
struct count {
    int32_t alive, waiting;
};

/* A rank: the slot of each pass and weight half, those of input halves in order, and what is in
 * each slot. `before` has the counts before each, `over` how many of these are more than the most.
 */
struct rank {
    int32_t *slot, *inputs, *number;
    int8_t *leg;
    struct count *before;
    int64_t over;
};

/* All ranks. Weight halves have slots of their own, or, if they `fill`, take those that are free.
 */
struct block {
    int64_t ranks, microbatches, room;
    struct rank *rank;
    struct count *changed;
    int32_t most;
    bool fills;
};

static int32_t *slot_of(const struct block *block, int64_t rank, int64_t leg, int64_t number)
{
    return block->rank[rank].slot + leg * block->microbatches + number;
}

static bool is_forward(int8_t leg) { return leg == FORWARD_DOWN || leg == FORWARD_UP; }

static bool is_input(int8_t leg) { return leg == INPUT_DOWN || leg == INPUT_UP; }

/* Put passes into their slots, with weight halves or without; false where two meet in one. */
static bool lay_out(struct block *block, bool with_weights)
{
    int64_t microbatches = block->microbatches;
    for (int64_t each = 0; each < block->ranks; each++) {
        struct rank *rank = &block->rank[each];
        memset(rank->leg, EMPTY, (size_t)block->room);
        for (int64_t at = 0; at < (with_weights ? PERIOD : LEGS) * microbatches; at++) {
            int64_t leg = at / microbatches < WEIGHT ? at / microbatches : WEIGHT;
            int32_t slot = rank->slot[at];
            if (slot < 0 || slot >= block->room || rank->leg[slot] != EMPTY)
                return false;
            rank->leg[slot] = (int8_t)leg;
            rank->number[slot] = (int32_t)(at - leg * microbatches);
        }
        int64_t inputs = 0;
        for (int64_t slot = 0; slot < block->room; slot++)
            if (is_input(rank->leg[slot]))
                rank->inputs[inputs++] = (int32_t)slot;
    }
    return true;
}

/* Put weight halves into the first free slots after their input halves. */
static bool add_weights(struct block *block)
{
    for (int64_t each = 0; each < block->ranks; each++) {
        struct rank *rank = &block->rank[each];
        int32_t free_slot = 0;
        for (int64_t number = 0; number < 2 * block->microbatches; number++) {
            if (rank->inputs[number] > free_slot)
                free_slot = rank->inputs[number];
            do
                free_slot++;
            while (free_slot < block->room && rank->leg[free_slot] != EMPTY);
            *slot_of(block, each, WEIGHT, number) = free_slot;
        }
    }
    return lay_out(block, true);
}

static struct count after(const struct block *block, struct count before, int8_t leg)
{
    if (is_forward(leg))
        before.alive++;
    else if (is_input(leg))
        before.waiting += block->fills;
    else if (leg == WEIGHT)
        before.alive--;
    else if (before.waiting) {
        before.alive--;
        before.waiting--;
    }
    return before;
}

static bool same(struct count one, struct count other)
{
    return one.alive == other.alive && one.waiting == other.waiting;
}

/* Count before each slot; returns the most activations alive on any rank. */
static int32_t count_all(struct block *block)
{
    int32_t most = 0;
    for (int64_t each = 0; each < block->ranks; each++) {
        struct rank *rank = &block->rank[each];
        rank->before[0] = (struct count){0, 0};
        rank->over = 0;
        for (int64_t slot = 0; slot < block->room; slot++) {
            struct count next = after(block, rank->before[slot], rank->leg[slot]);
            rank->before[slot + 1] = next;
            rank->over += next.alive > block->most;
            most = next.alive > most ? next.alive : most;
        }
    }
    return most;
}

/* Run what is in a slot in an earlier one, if that is free and no peak too high.
 *
 * Counts change between the two, and until a free slot makes up for it: from there on they are as
 * they were. */
static bool moved(struct block *block, struct rank *rank, int64_t at, int64_t earlier)
{
    int8_t leg = rank->leg[at];
    if (rank->leg[earlier] != EMPTY)
        return false;
    struct count *changed = block->changed, *was = rank->before + earlier + 1;
    int64_t count = 0, over = rank->over;
    struct count next = after(block, rank->before[earlier], leg);
    for (int64_t slot = earlier + 1;; slot++) {
        over += (next.alive > block->most) - (was[count].alive > block->most);
        changed[count++] = next;
        if (slot == block->room || (slot > at && same(next, rank->before[slot])))
            break;
        next = after(block, next, slot == at ? EMPTY : rank->leg[slot]);
    }
    if (over)
        return false;
    memcpy(was, changed, (size_t)count * sizeof *was);
    rank->over = 0;
    rank->leg[earlier] = leg;
    rank->leg[at] = EMPTY;
    rank->number[earlier] = rank->number[at];
    rank->slot[leg * block->microbatches + rank->number[at]] = (int32_t)earlier;
    if (is_input(leg)) {
        int64_t place = 0;
        while (rank->inputs[place] != at)
            place++;
        for (; place > 0 && rank->inputs[place - 1] > earlier; place--)
            rank->inputs[place] = rank->inputs[place - 1];
        rank->inputs[place] = (int32_t)earlier;
    }
    return true;
}

/* The first slot after the same leg on the rank before, the leg before, and the last of its kind;
 * of weight halves after their input half, unless slots are only `squeezed` out. */
static int64_t ready(
    const struct block *block, int64_t rank, int8_t leg, int64_t number, bool squeezed)
{
    int64_t last = -1, before = leg == FORWARD_DOWN || leg == INPUT_DOWN ? rank - 1 : rank + 1;
    int32_t waits[] = {-1, -1, -1};
    if (leg == WEIGHT && squeezed)
        return 0;
    if (number > 0)
        waits[0] = *slot_of(block, rank, leg, number - 1);
    if (leg == WEIGHT)
        waits[1] = block->rank[rank].inputs[number];
    else {
        if (before >= 0 && before < block->ranks)
            waits[1] = *slot_of(block, before, leg, number);
        if (leg > 0)
            waits[2] = *slot_of(block, rank, leg - 1, number);
    }
    for (int each = 0; each < 3; each++)
        last = waits[each] > last ? waits[each] : last;
    return last + 1;
}

/* Move all to earlier slots, but for what runs while the pipeline is full. */
static void move_all(struct block *block)
{
    int64_t full = *slot_of(block, 0, INPUT_UP, 0);
    int64_t drains = *slot_of(block, 0, FORWARD_DOWN, block->microbatches - 1);
    for (int64_t at = 0; at < block->room; at++) {
        if (full <= at && at <= drains)
            continue;
        for (int64_t each = 0; each < block->ranks; each++) {
            struct rank *rank = &block->rank[each];
            if (rank->leg[at] == EMPTY)
                continue;
            int64_t earlier = ready(block, each, rank->leg[at], rank->number[at], false);
            while (earlier < at && !moved(block, rank, at, earlier))
                earlier++;
        }
    }
}

/* Leave out the slots in which nothing can run. `free_slot` is of each rank. */
static void squeeze(struct block *block, int32_t *free_slot)
{
    memset(free_slot, 0, (size_t)block->ranks * sizeof *free_slot);
    for (int64_t at = 0; at < block->room; at++)
        for (int64_t each = 0; each < block->ranks; each++) {
            struct rank *rank = &block->rank[each];
            if (rank->leg[at] == EMPTY)
                continue;
            int64_t first = ready(block, each, rank->leg[at], rank->number[at], true);
            int32_t slot = first > free_slot[each] ? (int32_t)first : free_slot[each];
            *slot_of(block, each, rank->leg[at], rank->number[at]) = slot;
            free_slot[each] = slot + 1;
        }
}

/* Fill the orders, those of weight halves as their input halves. */
static void fill_orders(
    const struct block *block, int8_t *operation, int32_t *stage, int32_t *microbatch)
{
    int64_t at = 0;
    for (int64_t each = 0; each < block->ranks; each++) {
        const struct rank *rank = &block->rank[each];
        int64_t weights = 0;
        for (int64_t slot = 0; slot < block->room; slot++) {
            int8_t leg = rank->leg[slot];
            if (leg == EMPTY)
                continue;
            int64_t own = leg == WEIGHT ? rank->inputs[weights++] : slot;
            bool is_first = rank->leg[own] == FORWARD_DOWN || rank->leg[own] == INPUT_UP;
            operation[at] = OPERATION_OF_LEG[leg];
            stage[at] = (int32_t)(is_first ? each : 2 * block->ranks - 1 - each);
            microbatch[at++] = rank->number[own];
        }
    }
}

/* Give each rank its pieces of memory, and its passes the slots of the block that repeats. */
static void begin(struct block *block, const int32_t *first, struct count *counts, int32_t *numbers)
{
    int64_t microbatches = block->microbatches, room = block->room;
    for (int64_t each = 0; each < block->ranks; each++) {
        struct rank *rank = &block->rank[each];
        rank->before = counts + each * (room + 1);
        rank->slot = numbers;
        rank->inputs = rank->slot + PERIOD * microbatches;
        rank->number = rank->inputs + 2 * microbatches;
        rank->leg = (int8_t *)(rank->number + room);
        numbers = rank->number + 2 * room;
        for (int64_t at = 0; at < LEGS * microbatches; at++)
            rank->slot[at] = first[LEGS * each + at / microbatches] +
                             (int32_t)(PERIOD * (at % microbatches));
    }
}

/* Fill the orders of ranks on a V, one after the other, given the slots of the `first`
 * micro-batch's legs. Returns 0. */
int64_t bfpp_repeat_block(
    int64_t ranks, int64_t microbatches, const int32_t *first, int8_t *operation, int32_t *stage,
    int32_t *microbatch)
{
    int64_t last = 0, result = MALFORMED;
    if (ranks < 1 || microbatches < 1 || ranks * microbatches > INT32_MAX / (4 * PERIOD))
        return MALFORMED;
    for (int64_t each = 0; each < LEGS * ranks; each++) {
        if (first[each] < 0 || first[each] > INT32_MAX / 8)
            return MALFORMED;
        last = first[each] > last ? first[each] : last;
    }
    /* Weight halves may come after all passes, twice if they are still to be moved. */
    struct block block = {.ranks = ranks, .microbatches = microbatches};
    block.room = last + (PERIOD + LEGS) * microbatches + 2;
    size_t room = (size_t)block.room, rows = (size_t)ranks;
    block.rank = malloc(rows * sizeof *block.rank);
    struct count *counts = malloc((rows + 1) * (room + 1) * sizeof *counts);
    int32_t *numbers =
        malloc((rows * (2 * room + 8 * (size_t)microbatches) + rows) * sizeof *numbers);
    if (!block.rank || !counts || !numbers) {
        result = OUT_OF_MEMORY;
        goto done;
    }
    begin(&block, first, counts + room + 1, numbers + ranks);
    block.changed = counts;
    if (!lay_out(&block, false) || !add_weights(&block))
        goto done;
    block.most = count_all(&block);
    count_all(&block);
    move_all(&block);
    squeeze(&block, numbers);
    if (!lay_out(&block, false))
        goto done;
    block.fills = true;
    count_all(&block);
    move_all(&block);
    if (!add_weights(&block))
        goto done;
    fill_orders(&block, operation, stage, microbatch);
    result = 0;
done:
    free(numbers);
    free(counts);
    free(block.rank);
    return result;
}
