/* Repeats calls of the core from a file (`tests/helpers/core_calls.py` writes it), each on arrays of
 * its own that are as long as they must be, so that sanitizers see every access beyond them.
 *
 *     calls FILE [TOLERANCE [THREADS]]
 *
 * Where a call's results are in the file, they are compared: to the bit, or with a relative tolerance
 * for real numbers. Returns 1 if some differ. Several threads repeat all calls at once.
 */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { WHOLE, REAL, NOTHING, CONSTANT, WRITTEN };

struct argument {
    int64_t kind, bytes, is_real;
    union {
        int64_t whole;
        double real;
    } number;
    char *before, *after, *array;
};

struct call {
    int64_t function, has_results, result, arguments;
    struct argument *argument;
};

static int64_t dispatched(int64_t function, struct argument *with);

static struct call *calls;
static int64_t n_calls;
static double tolerance;

static void read_into(void *to, size_t bytes, FILE *file)
{
    if (bytes && fread(to, bytes, 1, file) != 1)
        exit((fprintf(stderr, "the file is too short\n"), 2));
}

static int64_t read_whole(FILE *file)
{
    int64_t value;
    read_into(&value, sizeof value, file);
    return value;
}

static char *read_array(int64_t bytes, FILE *file)
{
    char *array = malloc((size_t)bytes);
    read_into(array, (size_t)bytes, file);
    return array;
}

static void read_argument(struct argument *argument, bool has_results, FILE *file)
{
    argument->kind = read_whole(file);
    if (argument->kind == WHOLE || argument->kind == REAL)
        read_into(&argument->number, sizeof argument->number, file);
    if (argument->kind < CONSTANT)
        return;
    argument->bytes = read_whole(file);
    argument->is_real = read_whole(file);
    argument->before = read_array(argument->bytes, file);
    if (argument->kind == WRITTEN && has_results)
        argument->after = read_array(argument->bytes, file);
}

static void read_calls(FILE *file)
{
    n_calls = read_whole(file);
    calls = calloc((size_t)n_calls, sizeof *calls);
    for (int64_t at = 0; at < n_calls; at++) {
        struct call *call = calls + at;
        call->function = read_whole(file);
        call->has_results = read_whole(file);
        call->result = read_whole(file);
        call->arguments = read_whole(file);
        call->argument = calloc((size_t)call->arguments, sizeof *call->argument);
        for (int64_t nth = 0; nth < call->arguments; nth++)
            read_argument(call->argument + nth, call->has_results, file);
    }
}

/* NaNs are the same whatever their sign, which processors choose. */
static bool near(double one, double other)
{
    if (isnan(one) || isnan(other))
        return isnan(one) && isnan(other);
    return fabs(one - other) <= tolerance * fmax(fabs(one), fabs(other));
}

static bool is_same(const struct argument *argument)
{
    if (!argument->is_real)
        return !memcmp(argument->array, argument->after, (size_t)argument->bytes);
    const double *one = (const double *)argument->array, *other = (const double *)argument->after;
    for (size_t at = 0; at < (size_t)argument->bytes / sizeof *one; at++)
        if (memcmp(one + at, other + at, sizeof *one) && !near(one[at], other[at]))
            return false;
    return true;
}

/* One call on copies of its arrays; returns whether its results are those of the file. */
static bool repeat(const struct call *call)
{
    struct argument with[64];
    memcpy(with, call->argument, (size_t)call->arguments * sizeof *with);
    for (int64_t nth = 0; nth < call->arguments; nth++)
        if (with[nth].kind >= CONSTANT) {
            with[nth].array = malloc((size_t)with[nth].bytes);
            memcpy(with[nth].array, with[nth].before, (size_t)with[nth].bytes);
        }
    bool same = dispatched(call->function, with) == call->result || !call->has_results;
    for (int64_t nth = 0; nth < call->arguments; nth++) {
        if (with[nth].after)
            same = is_same(with + nth) && same;
        free(with[nth].array);
    }
    return same;
}

/* A thread's work: all calls; returns how many differ. */
static void *repeat_all(void *argument)
{
    intptr_t wrong = (intptr_t)argument;
    for (int64_t at = 0; at < n_calls; at++)
        if (!repeat(calls + at)) {
            fprintf(stderr, "call %lld of function %lld differs\n", (long long)at,
                    (long long)calls[at].function);
            wrong++;
        }
    return (void *)wrong;
}

int main(int count, char **words)
{
    FILE *file = count > 1 ? fopen(words[1], "rb") : NULL;
    if (!file)
        return 2;
    read_calls(file);
    fclose(file);
    tolerance = count > 2 ? atof(words[2]) : 0;
    pthread_t threads[16];
    int64_t wrong = 0;
    int n_threads = count > 3 ? atoi(words[3]) : 1;
    for (int nth = 0; nth < n_threads; nth++)
        pthread_create(threads + nth, NULL, repeat_all, NULL);
    for (int nth = 0; nth < n_threads; nth++) {
        void *found;
        pthread_join(threads[nth], &found);
        wrong += (int64_t)(intptr_t)found;
    }
    printf("%lld calls, %lld differ\n", (long long)n_calls * n_threads, (long long)wrong);
    return wrong > 0;
}
