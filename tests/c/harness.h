/* The whole test harness of the C tests: CHECK, and a main that runs every test of a file in its own process.
 * A test program ends with SP_TESTS(first, second, ...). Invariant: a test that crashes, hangs or fails never hides the next one. */
#ifndef SP_HARNESS_H
#define SP_HARNESS_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* The same with a text that says for which input it was not true. */
#define CHECK_FOR(condition, ...)                                                         \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: not true: %s, for ", __FILE__, __LINE__, #condition); \
            fprintf(stderr, __VA_ARGS__);                                                 \
            fputc('\n', stderr);                                                          \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

typedef struct sp_test {
    const char *name;
    void (*run)(void);
} sp_test;

enum { SP_TEST_SECONDS = 120 };

static inline bool sp_test_passes(const sp_test *test) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(SP_TEST_SECONDS);
        test->run();
        exit(0); /* not _exit: the leak sanitizer looks at exit */
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child) return false;
    if (WIFSIGNALED(status)) fprintf(stderr, "%s: ended by signal %d\n", test->name, WTERMSIG(status));
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static inline int sp_tests_run(const char *program, const sp_test *tests, size_t count) {
    size_t failed = 0;
    for (size_t i = 0; i < count; i++)
        if (!sp_test_passes(&tests[i])) {
            fprintf(stderr, "FAILED %s: %s\n", program, tests[i].name);
            failed++;
        }
    printf("%s: %zu tests, %zu failed\n", program, count, failed);
    return failed != 0 || count == 0;
}

#define SP_TESTS(...)                                                         \
    int main(void) {                                                          \
        static const sp_test tests[] = {__VA_ARGS__};                         \
        return sp_tests_run(__FILE__, tests, sizeof tests / sizeof tests[0]); \
    }
#define T(name) \
    { #name, name }

/* xorshift64*: the same numbers on every machine. */
static inline uint64_t sp_random(uint64_t *state) {
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

#endif
